// Package fanout measures one-to-many relays: what a copy costs in the kernel, and what a relay does across namespaces,
// for the generated relay of the SFU example beside a bare bpf_clone_redirect (the limit), a user-space relay in Go, and
// plain kernel forwarding (the unit). bench/README.md says how, and what the figures mean.
package fanout
