// Package runtime is what generated Go imports: it loads a compiled relay into the kernel, attaches its programs, keeps its
// tables and sessions, and reads its counters. It knows a relay only by its [Desc], so it serves relays without generated
// code as well.
//
//	relay, err := runtime.Load(desc, object, runtime.Options{Settings: map[string]any{"port": 3478}})
//	defer relay.Close()
//	err = relay.Program("to_peer").Attach("eth0")
//	session, err := relay.Open("channel", client, server, 0x4001, relayed, peer)
//	err = relay.Table("sources").Put([]any{addr}, []any{4, nil})
//	for reason, n := range relay.Program("to_peer").Reasons() { … }
//
// # Values
//
// Settings, the members of keys and values, and the fields of sessions are passed as the Go types named at [Kind]. Integers
// may be of any Go integer type and are checked against their range. Results always have the types named there.
//
// # The lease
//
// A relay forwards only while its process renews its lease, four times in [Options.Lease]. When the process dies, the lease
// lapses, and every packet goes up: nothing is forwarded for a server that isn't there.
//
// # Namespaces
//
// A relay belongs to the network namespace of the thread that calls [Load]. Interfaces are looked up and routes are followed
// there, whatever thread calls later.
//
// # Privileges
//
// Loading takes CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8), or root.
package runtime
