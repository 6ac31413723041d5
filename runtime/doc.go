// Package runtime is what generated Go imports: it loads a compiled relay into the kernel, attaches its programs, keeps
// its tables and sessions, and reads its counters.
//
// Tables, sessions and groups of a generated package have types: they are instances of [Table], [Sessions] and
// [Groups]. Each stands on one without types, such as [AnyTable], since the runtime knows a relay only by its
// [abi.Desc]. So it serves tools and relays without generated code as well:
//
//	relay, err := runtime.Load(desc, object, runtime.Options{Settings: map[string]any{"port": 3478}})
//	defer relay.Close()
//	err = relay.Program("to_peer").Attach("eth0")
//	session, err := relay.Open("channel", client, server, 0x4001, relayed, peer)
//	err = relay.Table("sources").Put([]any{addr}, []any{4, nil})
//	sent, err := relay.Program("to_peer").Count("sent")
//	group, err := relay.GroupKind("subscribers").Open(ctx, publisher, server, 7)
//	anna, err := group.Add(ctx, local, remote, 100, 97)
//	for event, err := range relay.Events(ctx) { … }
//
// What can fail returns an error or, if it iterates, yields one as its last step. What waits takes a context.
//
// # Values
//
// Without types, settings, the members of keys and values, and the fields of sessions are passed as the Go types named
// at [abi.Kind]. Integers may be of any Go integer type and are checked against their range; bytes may be an array.
// Results always have the types named there.
//
// # The lease
//
// A relay forwards only while its process renews its lease, four times in [Options.Lease]. When the process dies, the
// lease lapses, and every packet passes to the stack: nothing is forwarded for a server that isn't there.
//
// # What happens when
//
//	a table or the sessions are full      [*FullError], which names them; what was there goes on
//	a session's key is in use             [*CollisionError], which names the other session
//	a group's key is in use               [*ExistsError], which has the group
//	a group's list can't be changed       the kernel goes on with the old list and the old values; all changes that
//	                                      waited fail, and what they allocated is free
//	a change meets packets                each packet sees the receivers from before it or from after it, with their
//	                                      values, none twice
//	a receiver's neighbour isn't known    its copies are declined; the kernel is made to look for it, every four
//	                                      seconds again
//	the ring of events is full            records are lost and counted, or copies declined, as the spec says; no one
//	                                      waits
//	a receiver is removed                 when the call returns, no packet reaches it; its credits read 0 and admit
//	                                      nothing, its usage stays readable, and events in the ring still name it
//	a row can't be written or removed     Open takes back what it did; Close closes the session first, so that a row
//	                                      that remains is a miss, and gives way when its key is used again
//	rights, a feature or memory missing   [*KernelError] from Load or Attach, which says what to do; nothing is left
//	the verifier refuses                  the same; errors.As finds the *ebpf.VerifierError with its log
//	a damaged or foreign object           [*ObjectError]
//	a setting out of range                [*ValueError]
//	another process has the pins          [ErrLocked]
//	the relay is being drained            [ErrDraining] for all that would be new; see [Relay.Drain]
//	pins of another layout                [*LayoutError], which names the table; what is pinned stays as it was
//	the process dies                      within [Options.Lease] everything passes to the stack; filters and pins
//	                                      that remain are taken over or removed by the next relay of that name
//	it dies while it changes a group      the next one finds the receivers from before the change or from after it
//	it dies while it opens or closes a    the next one to adopt the relay finds sessions that are whole, and removes
//	session, or while it adopts           the rest
//	a program is replaced by adoption     each packet is seen by the old one or by the new one
//	an interface goes away                its attachments go with it; Detach and Close don't mind
//	routes, neighbours or devices change  the rows concerned follow, each as a whole; an address that can't be reached
//	                                      is a reason of its own, and its packets pass to the stack
//	the kernel's announcements overflow   everything is read again
//
// # Namespaces
//
// A relay belongs to the network namespace of the thread that calls [Load]. Interfaces are looked up and routes are
// followed there, whatever thread calls later.
//
// # Privileges
//
// Loading takes CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON (before Linux 5.8, CAP_SYS_ADMIN; before 5.11, CAP_SYS_RESOURCE
// as well), or root. With CAP_NET_RAW, a relay learns MTUs of paths that the kernel doesn't know of; see
// [Relay.PathMTUs].
//
// # Operating a relay
//
// [Options.Control] takes a server for whoever operates the relay; package runtime/control has one. It calls the
// methods that are here, so that there is one list of sessions, whoever opens them.
//
// # Locks
//
// Each field says what guards it. A goroutine acquires locks in this order, and may leave out any:
//
//	Relay.mu          rows of sessions and of tables with hops, sessions, attachments, next hops; held over system
//	                  calls that write rows, since only one change of rows may run at a time (docs/internals.md)
//	receiverLists.mu  what is planned and applied for groups and receivers; not held while the kernel's lists change
//	all others        the mutexes of credits, counters, translations, events, routes and path MTUs guard what each of
//	                  these allocates or knows
//
// Relay.life is apart: it is held for reading while the kernel's maps are used without Relay.mu, and for writing by
// Close alone, which has Relay.mu then. So who holds life for reading doesn't acquire Relay.mu, but for the committer
// of lists, which Close waits for before it asks for life.
package runtime
