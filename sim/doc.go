// Package sim is the reference model: it runs the programs of a plan on packets, and is the meaning that generated C is
// compared with. It is written to be read: byte by byte, without tricks, and it knows gen/ir and nothing of the back
// ends.
//
// A Relay holds what the kernel's maps hold, in the same layouts (docs/internals.md), so that a dump of a map compares
// byte for byte. A run never panics. If a plan contradicts itself (a load of bytes that were not checked, a row that
// is used but was not found, a value that doesn't fit where it is stored, a front that is not covered), Run returns an
// error: that is a fault of the compiler, never of the packet.
//
// Two things of the kernel are inputs: the World (clocks, conditions, routes, which clones are refused) and the facts
// about a packet that are not in its bytes. A kernel that runs out of memory is not modelled, so reasons of kind Fault
// are counted here only if it would cut into a transport header (Packet.Transport); nor are other processors, so that
// no compare and swap fails, and a translation is unfinished only if the state before says so.
package sim
