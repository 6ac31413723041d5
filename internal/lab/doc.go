// Package lab makes a small network on this machine, for a relay to run in:
//
//	client ——— eth0 relay eth1 ——— peer
//
// Each host is a network namespace without a name, held open by this process alone: when the process ends, however it
// ends, the kernel removes the namespaces with all that is in them. Nothing outside of them is changed. Frames are
// sent from the far ends of the cables, and what arrives there is counted by its addresses.
package lab
