package socket

import (
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A packet is marked as the path says, in both IP versions.
func TestMarked(t *testing.T) {
	for _, v4 := range []bool{true, false} {
		for _, ecn := range []quic.ECN{quic.NotECT, quic.ECT1, quic.ECT0, quic.CE} {
			if size, got := parseControl(Marked(ecn, v4)); size != 0 || got != uint8(ecn) {
				t.Errorf("IPv4: %v, %d: size %d, ECN %d", v4, ecn, size, got)
			}
		}
	}
}
