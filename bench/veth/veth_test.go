package veth

import (
	"testing"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// Each variant relays packets in both directions by its own hook, as a relay has to send them.
func TestPackets(t *testing.T) {
	needs.Root(t)
	for _, v := range Variants[1:] {
		p, err := newPath(v)
		if err != nil {
			t.Fatalf("%s: %v", v, err)
		}
		defer p.Close()
		for _, direction := range []string{"to_peer", "to_client"} {
			for _, size := range []int{120, 1200} {
				if err := p.check(direction, size); err != nil {
					t.Errorf("%s, %s, %d bytes: %v", v, direction, size, err)
				}
				if _, others, err := p.sent(direction); err != nil || others > 0 {
					t.Errorf("%s, %s: the other hook has sent %d packets: %v", v, direction, others, err)
				}
			}
		}
	}
}

// Tests that can't be set up fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
