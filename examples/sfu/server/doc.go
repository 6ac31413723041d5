// Package server is a selective forwarding unit for RTP (RFC 7667 §3.7): publishers send a stream each, subscribers get
// one of them each, with numbers of their own. The relay that fastrelay-gen made forwards the packets in the kernel;
// this package decides who gets what, and does what the kernel leaves to it: it keeps the last packets of each stream,
// answers those who miss some, translates RTCP, and sends itself what the kernel declined. Without the kernel it does
// everything.
//
// # Numbers
//
// A copy is numbered: the number it came with, plus the receiver's first number, minus what was left out for the
// receiver. So what is left out makes no gap, and what the publisher's network lost does: the receiver asks for it, the
// server asks the publisher, and what comes late gets the number that is still free between its neighbours ([history]).
package server
