// Package quic makes a fork of quic-go, with hooks for a relay that sends some packets of a connection elsewhere: in the
// kernel, or sealed in batches.
package quic
