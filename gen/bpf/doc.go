// Package bpf is the back end that turns a plan into C for the kernel.
//
// A program becomes short functions, which clang puts together again:
//
//	prog_P      is what the kernel calls: the lease, the link layer, and which headers follow
//	P_ipv4      decides on one path: it reads the packet, looks up, guards; it ends in fr_punt, fr_drop,
//	            or one of the next
//	check_udp   says why a packet is not for the relay, for all paths and programs that check it so (checks.go)
//	P_ipv4_udp  functions of the path, if it would become long (split.go)
//	P_ipv4_send computes all that the packet that leaves needs, then changes the packet, then sends it (write.go)
//	P_send_ipv4 does so for packets of several kinds that leave as one (sharedwrite.go): its callers have read the
//	            packet that came; what several need of its checksums is computed once (received.go)
//	P_fan1      sends it to a group: P_turn1 runs once a receiver, P_copy1 makes a copy, for which P_write1 rewrites
//	            the packet (fanout.go, copy.go)
//
// Places in the packet have names: each header is a packed structure (headers.go) that the plan's FieldRuns give.
// What differs from packet to packet in no way is in templates/fastrelay.h, and in
// templates/fanout.h, which continues it.
//
// Variables, rows and members are called what the spec calls them, unless that means something in C (names.go). At file
// scope names of a spec appear behind prefixes (prog_, tbl_, key_, val_, grp_, rcv_, group_, receiver_, list_, event_,
// set_, hdr_), but for the functions of a program, whose names begin with its own unless that is one of these; every
// other text of a spec appears only in comments that it can't end.
//
// # What the verifier wants
//
// Oldest is Linux 5.10. Each packet access has a check that dominates it: the renderer keeps a record of what was
// checked on the way (known, program.go), and adds a check if the plan's reasoning is beyond the verifier's. Offsets
// that vary are masked where they are used, because a kernel forgets the bounds of a spilled scalar, and the pointer
// that was checked is pinned, because clang likes to compute it anew in another way. Keys on the stack are zeroed,
// unless all of them is written, in aligned pieces.
//
// It looks at code again for each number that it knows another value of. So what a fan-out's turns need stands in a
// map, where it knows nothing, and helpers with loops are functions of their own that aren't
// static, at which it looks once.
//
// # Trees
//
// Functions are trees of package c until the end. A variable in them is an object without a name; what a function has
// to be given is what it mentions and doesn't declare (c.Free). When the functions of all programs are there, passes
// over them (passes.go) give each where its program counts, have fan-outs share their structures, join functions that
// are alike (meet.go), and have what is known of a packet stand in one structure (context.go). Then the variables of
// each function get their names (c.Func.NameLocals), and package c prints them in the kernel's style: first what
// several programs use, then each program. Nothing looks at C as text: what is the same is found in the trees.
//
// Each statement has its line of the spec in Source.Lines; clang reads a copy with #line directives (internal/clang),
// which it keeps in BTF, so that the verifier's log shows the spec.
package bpf
