// Package capture reads and writes captures of packets, as tcpdump and Wireshark make them: pcap and pcapng, in both
// byte orders, also compressed by gzip. It reads packet by packet, so the size of a capture doesn't matter.
//
// A packet comes as the hook of a program sees it. Programs whose stack begins with Ethernet get a frame: if the
// capture has none (raw IP, Linux "cooked" captures of all devices), one is made, with what the capture says of the
// sender. Other programs get the packet from its IP header on. The outermost VLAN tag of a frame is put into the
// metadata, as the kernel does before programs at ingress run.
package capture
