module github.com/fastrelay/fastrelay-gen/examples/moq

go 1.26.0

require (
	github.com/cilium/ebpf v0.22.0
	github.com/fastrelay/fastrelay-gen v0.0.0
	github.com/fastrelay/fastrelay-gen/examples/quic v0.0.0
	github.com/fastrelay/fastrelay-gen/examples/quicfork v0.0.0
	github.com/fastrelay/fastrelay-gen/runtime v0.1.0
	golang.org/x/net v0.56.0
	golang.org/x/sys v0.47.0
)

require (
	github.com/quic-go/qpack v0.6.0 // indirect
	github.com/safchain/ethtool v0.7.0 // indirect
	github.com/vishvananda/netlink v1.3.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/crypto v0.54.0 // indirect
	golang.org/x/text v0.40.0 // indirect
)

// Never anybody's dependency, so it can say where the others are.
replace (
	github.com/fastrelay/fastrelay-gen => ../..
	github.com/fastrelay/fastrelay-gen/bench => ../../bench
	github.com/fastrelay/fastrelay-gen/examples => ..
	github.com/fastrelay/fastrelay-gen/examples/quic => ../quic
	github.com/fastrelay/fastrelay-gen/examples/quicfork => ../quicfork
	github.com/fastrelay/fastrelay-gen/runtime => ../../runtime
)
