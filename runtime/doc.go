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
// # What happens when
//
//	a table or the sessions are full      [*FullError], which names them; what was there goes on
//	a session's key is in use             [*CollisionError], which names the other session
//	a row can't be written or removed     Open takes back what it did; Close closes the session first, so that a row that
//	                                      remains is a miss, and gives way when its key is used again
//	rights, a feature or memory missing   [*KernelError] from Load or Attach, which says what to do; nothing is left behind
//	the verifier refuses                  the same; errors.As finds the *ebpf.VerifierError with its log
//	a damaged or foreign object           [*ObjectError]
//	a setting out of range                [*ValueError]
//	another process has the pins          [ErrLocked]
//	pins of another layout                [*LayoutError], which names the table; what is pinned stays as it was
//	the process dies                      within [Options.Lease] everything goes up; filters and pins that remain are taken
//	                                      over or removed by the next relay of that name
//	it dies while it opens or closes a    the next one to adopt the relay finds sessions that are whole, and removes the rest
//	session, or while it adopts
//	a program is replaced by adoption     each packet is seen by the old one or by the new one
//	an interface goes away                its attachments go with it; Detach and Close don't mind
//	routes, neighbours or devices change  the rows concerned follow, each as a whole; an address that can't be reached is a
//	                                      reason of its own, and its packets go up
//	the kernel's announcements overflow   everything is read again
//
// # Namespaces
//
// A relay belongs to the network namespace of the thread that calls [Load]. Interfaces are looked up and routes are followed
// there, whatever thread calls later.
//
// # Privileges
//
// Loading takes CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON (before Linux 5.8, CAP_SYS_ADMIN; before 5.11, CAP_SYS_RESOURCE as
// well), or root.
package runtime
