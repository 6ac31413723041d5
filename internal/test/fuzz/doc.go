// Package fuzz compares a compiled relay with the reference model on random packets and random state (differential
// testing).
//
// A round is a random state and some hundred packets that run through both: verdict, bytes, mark and priority are
// compared after every packet, and tables, slots and counters (which say under which reason each packet went) at the
// end. Packets are made of the headers of a program's stack, with values that the tables hold, and then spoilt: cut at
// any length, fields at their bounds, wrong lengths, checksums that are 0 or become 0, bytes after the end, tags, GSO
// packets. What is sent and was right when it came is decoded by gopacket as well, which must find every checksum and
// length right.
//
// If a relay sends copies, those are taken when they leave (package testrun) and compared in their order, byte for
// byte, with their mark, priority and device; some devices refuse them. Records for user space are read after every
// packet, or, in some rounds, so seldom that the ring runs full. Times are left out, and buckets are in states in which
// a second more or less makes no difference.
//
// A difference is made small (fewer packets, fewer rows, a shorter packet with fewer bytes that are not 0) and saved as
// a case that Replay runs again.
//
// What BPF_PROG_TEST_RUN can't show (package testrun says what) is compared by RunLive on devices: checksums that are
// left to a device, of headers that the spec names or doesn't, tags in the metadata, GSO packets, data that isn't
// linear. A packet comes in through a packet socket with a virtio header; the model gets it with the facts that a watch
// in front of the program saw. What the next program gets and what comes out of the other end of a cable has to be what
// the model says, with checksums completed and GSO packets cut up if the device in between makes the kernel do that.
// Packets without a link-layer header come in through a tun device.
package fuzz
