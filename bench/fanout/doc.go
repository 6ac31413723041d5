// Package fanout measures one-to-many relays: what a copy costs in the kernel, and what a relay does across namespaces.
// A generated relay is compared with user-space relays in Go that do the same work, with a bare bpf_clone_redirect (the
// limit), and with plain kernel forwarding (the unit); the generated relay of the SFU example, which does more, is
// beside it. bench/README.md says how, and what the figures mean.
package fanout
