package lab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/gateway"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
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
	if !l.Alone && !l.Dummy {
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
func (l *Lab) Without(p *runtime.AnyProgram, dev *testnet.Dev, f func() error) error {
	if err := l.Relay.Do(func() error { return p.Detach(dev.Name) }); err != nil {
		return err
	}
	o := runtime.AttachOptions{}
	if p == l.Gateway.In(l.Kind) {
		o.Hook = l.Hook
	}
	return errors.Join(f(), l.Relay.Do(func() error { return p.AttachAt(dev.Name, o) }))
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
				err = errors.Join(err, failed, dissect.Check(f))
			}
		}
	}
	return got, err
}

// MarksIn sends packets with each mark into the tunnel: outside, they have the DSCP and the mark of the packet, but for
// that of congestion, which is marked in the way that is asked for. All their headers, with lengths and checksums, are
// as an independent program writes them.
func (l *Lab) MarksIn(family int, marked uint8) error {
	for ecn := range uint8(4) {
		// So long that no Ethernet frame needs padding.
		payload := fmt.Appendf(nil, "marked %d inside, %d outside", ecn, marked)
		p := Packet{
			Src: l.ClientAddr.Of(family), Dst: l.Inner.Of(family), Class: dscp | ecn, Hops: 64, Payload: payload,
		}
		frame, err := l.Plain(p)
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
		if err == nil {
			p.Hops--
			err = l.compare(f, want, p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// errHeaders is that a packet in the tunnel has other headers than it should have.
var errHeaders = errors.New("other headers")

// compare compares a captured frame that the gateway has sent into the tunnel, with that traffic class outside and this
// packet inside, with what it should be.
func (l *Lab) compare(f testnet.Frame, class uint8, inside Packet) error {
	want, err := l.sent(f, class, inside)
	if err != nil {
		return err
	}
	got := bytes.Clone(f.Data)
	length, checksum := 14+2, 14+20+6 // where the outer IP header has a length, and UDP a checksum
	if l.Outside == 6 {
		length, checksum = 14+4, 14+40+6
	}
	if len(got) == len(want) {
		if f.Partial { // a device would complete it
			err = dissect.Check(f)
			copy(want[checksum:][:2], got[checksum:])
		}
		// The kernel's FOU takes UDP's header off the length, before or after the capture has copied the frame.
		if n := binary.BigEndian.Uint16(want[length:]); l.Kind == gateway.FOU &&
			binary.BigEndian.Uint16(got[length:]) == n-8 {
			binary.BigEndian.PutUint16(got[length:], n)
		}
	}
	if !bytes.Equal(got, want) {
		err = errors.Join(err, fmt.Errorf("%w: got %x, want %x", errHeaders, got, want))
	}
	return err
}

// Planted has the gateway write wrong headers, one after the other, and reports what MarksIn doesn't find.
func (l *Lab) Planted(family int) (err error) {
	wrong := map[string]gateway.Tunnel{}
	plant := func(name string, change func(*gateway.Tunnel)) {
		t := l.Tunnel
		change(&t)
		wrong[name] = t
	}
	if l.Kind != gateway.IPIP {
		plant("checksum", func(t *gateway.Tunnel) { t.Sums = !t.Sums })
	}
	if l.ethernet() {
		plant("VNI", func(t *gateway.Tunnel) { t.VNI++ })
		plant("address of a frame", func(t *gateway.Tunnel) { t.RemoteMAC = t.MAC })
	}
	if l.Kind == gateway.GENEVE {
		plant("option", func(t *gateway.Tunnel) { t.Option++ })
	}
	defer func() { err = errors.Join(err, l.Gateway.Add(l.Tunnel)) }()
	for name, tunnel := range wrong {
		if err := l.Gateway.Add(tunnel); err != nil {
			return err
		}
		if found := l.MarksIn(family, congestion); !errors.Is(found, errHeaders) {
			return fmt.Errorf("a wrong %s isn't found: %w", name, errors.Join(found, l.counted()))
		}
	}
	return nil
}
