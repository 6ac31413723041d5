module github.com/fastrelay/fastrelay-gen/examples/quic

go 1.26.0

require (
	github.com/fastrelay/fastrelay-gen v0.0.0
	github.com/fastrelay/fastrelay-gen/runtime/quic v0.0.0
)

// Never anybody's dependency, so it can say where the two are.
replace (
	github.com/fastrelay/fastrelay-gen => ../..
	github.com/fastrelay/fastrelay-gen/runtime/quic => ../../runtime/quic
)
