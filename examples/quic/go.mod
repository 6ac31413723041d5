module github.com/fastrelay/fastrelay-gen/examples/quic

go 1.26.0

require (
	github.com/cilium/ebpf v0.22.0
	github.com/fastrelay/fastrelay-gen v0.0.0
	github.com/fastrelay/fastrelay-gen/runtime/quic v0.0.0
	golang.org/x/net v0.56.0
	golang.org/x/sys v0.47.0
)

require (
	github.com/gopacket/gopacket v1.7.7 // indirect
	github.com/vishvananda/netlink v1.3.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/crypto v0.54.0 // indirect
)

// Never anybody's dependency, so it can say where the two are.
replace (
	github.com/fastrelay/fastrelay-gen => ../..
	github.com/fastrelay/fastrelay-gen/runtime/quic => ../../runtime/quic
)
