package lab

import (
	"errors"
	"fmt"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// dscp is what packets have inside.
const dscp = 10 << 2

// notECN and congestion are marks (RFC 3168).
const notECN, congestion = 0, 3

// rfc6040 is the mark of a packet that comes out of a tunnel, by those outside and inside (figure 4).
var rfc6040 = [4][4]uint8{{0, 1, 2, 3}, {0, 1, 1, 3}, {0, 1, 2, 3}, {0, 3, 3, 3}}

// MarksOut sends packets with all combinations of marks out of the tunnel: they have those that RFC 6040 says, and, if
// there is a device at the gateway, it gives them the same.
func (l *Lab) MarksOut(family int) error {
	in := l.Gateway.In(l.Kind)
	var relay map[[2]uint8]uint8
	err := counts(in, "ecn", func() (err error) {
		relay, err = l.marks(family, "relay")
		return err
	})
	if err != nil {
		return errors.Join(err, l.counted())
	}
	device := relay
	if !l.Alone {
		err := l.Without(in, l.RelayOut, func() (err error) {
			device, err = l.marks(family, "device")
			return err
		})
		if err != nil {
			return fmt.Errorf("the kernel's own device: %w", err)
		}
	}
	for o := range uint8(4) {
		for i := range uint8(4) {
			want, arrives := dscp|rfc6040[o][i], o != congestion || i != notECN
			for who, got := range map[string]map[[2]uint8]uint8{"relay": relay, "device": device} {
				if was, sent := got[[2]uint8{o, i}]; sent != arrives || sent && was != want {
					err = errors.Join(err, fmt.Errorf("%s: outside %d, inside %d: %#x, arrives: %v; want %#x, %v",
						who, o, i, was, sent, want, arrives))
				}
			}
		}
	}
	return err
}

// Without runs f while a program isn't at a device.
func (l *Lab) Without(p *runtime.Program, dev *testnet.Dev, f func() error) error {
	if err := l.Relay.Do(func() error { return p.Detach(dev.Name) }); err != nil {
		return err
	}
	return errors.Join(f(), l.Relay.Do(func() error { return p.Attach(dev.Name) }))
}

// marks sends packets with all combinations of marks through the tunnel to the client, and returns the traffic class
// that each arrives with, by the marks outside and inside. A packet that is dropped has none.
func (l *Lab) marks(family int, who string) (map[[2]uint8]uint8, error) {
	capture, err := l.ClientDev.Capture()
	if err != nil {
		return nil, err
	}
	name := func(o, i uint8) []byte { return fmt.Appendf(nil, "outside %d, inside %d, %s", o, i, who) }
	for o := range uint8(4) {
		for i := range uint8(4) {
			frame, err := l.Encapsulated(46<<2|o, Packet{
				Src: l.Inner.Of(family), Dst: l.ClientAddr.Of(family), Class: dscp | i, Hops: 64, Payload: name(o, i),
			})
			if err == nil {
				err = l.PeerDev.Inject(frame)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	err = testnet.Until(2*time.Second, "the last packet arrives", func() bool {
		_, ok := find(capture.Frames(), name(3, 3))
		return ok
	})
	frames, failed := capture.Stop()
	if err := errors.Join(err, failed); err != nil {
		return nil, err
	}
	got := map[[2]uint8]uint8{}
	for o := range uint8(4) {
		for i := range uint8(4) {
			if f, ok := find(frames, name(o, i)); ok {
				got[[2]uint8{o, i}], failed = class(f)
				err = errors.Join(err, failed, f.Check())
			}
		}
	}
	return got, err
}

// MarksIn sends packets with each mark into the tunnel: outside, they have the DSCP and the mark of the packet, but for
// that of congestion, which is marked in the way that is asked for, and 64 hops.
func (l *Lab) MarksIn(family int, marked uint8) error {
	for ecn := range uint8(4) {
		payload := fmt.Appendf(nil, "marked %d, %d", ecn, marked)
		frame, err := l.Plain(Packet{
			Src: l.ClientAddr.Of(family), Dst: l.Inner.Of(family), Class: dscp | ecn, Hops: 64, Payload: payload,
		})
		if err != nil {
			return err
		}
		f, err := injected(l.ClientDev, l.PeerDev, frame, payload)
		if err != nil {
			return err
		}
		want := dscp | ecn
		if ecn == congestion {
			want = dscp | marked
		}
		got, err := class(f)
		if err == nil && got != want {
			err = fmt.Errorf("the packet has %#x inside, and %#x outside, want %#x", dscp|ecn, got, want)
		}
		if err == nil && f.TTL() != 64 {
			err = fmt.Errorf("hop limit outside: %d", f.TTL())
		}
		// Check wants UDP, with a checksum over IPv6. The kernel's FOU writes another length into what is captured.
		if l.ethernet() && (l.Outside == 4 || l.Sums) {
			err = errors.Join(err, f.Check())
		}
		if err != nil {
			return err
		}
	}
	return nil
}
