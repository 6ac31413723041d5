//go:build linux

package fuzz

import (
	"encoding/binary"
	"slices"

	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/sample"
	"github.com/fastrelay/fastrelay-gen/internal/test/testlive"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// newShot returns a packet made of a frame, with facts that only a device can give it. Bare says that it has no
// link-layer header.
func newShot(g *sample.Generator, f *packet.Frame, bare bool) *testlive.Shot {
	if len(f.Spans) > 0 && g.One(6) { // a packet that takes more than a page
		if data := sample.Resize(g.Headers, f, 2000+g.IntN(4500)); data != nil {
			f = &packet.Frame{Data: data, Spans: f.Spans}
		}
	}
	p := g.Packet(f)
	link := 0 // by what a link-layer header that is there for the while moves the headers
	if bare {
		link = linkHeader
		p.Data, p.VLAN = slices.Concat(make([]byte, link), p.Data), nil
	} else if p.VLAN != nil && len(p.Data) >= 12 {
		tag := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, p.VLAN.Proto), p.VLAN.TCI)
		p.Data = slices.Insert(slices.Clone(p.Data), 12, tag...)
	} else if len(p.Data) >= 14 && g.One(24) {
		g.Tag(&p)
	}
	s := &testlive.Shot{Data: p.Data, Mark: p.Mark}
	if len(s.Data) < 14 {
		s.Data = append(s.Data, make([]byte, 14-len(s.Data))...)
	}
	s.Data = s.Data[:min(len(s.Data), testlive.MaxShot-4)]
	// The kernel looks after some headers for the transport header, and doesn't cut off what is after the datagram
	// where it finds it there.
	if end, proto := datagram(s.Data); proto != 6 && proto != 17 {
		s.Data = s.Data[:end]
		if at := len(s.Data) - len(ipv6(s.Data)); at < len(s.Data) && slices.Contains(extensions, proto) {
			s.Data[at+6] = 253 // an extension header that none is: the transport header would be anywhere
		}
	}
	if t := binary.BigEndian.Uint16(s.Data[12:]); (t == 0x8100 || t == 0x88a8) && len(s.Data) < 26 {
		s.Data = append(s.Data, make([]byte, 26-len(s.Data))...) // the kernel drops a frame that ends inside its tag
	}
	moved := link // and a tag
	if sample.Tagged(s.Data) && !sample.Tagged(f.Data) {
		moved = 4
	}
	if len(s.Data) > 4096 && !g.One(3) {
		s.Linear = uint16(14 + g.IntN(200))
	}
	places := sums(f, moved)
	switch n := g.IntN(20); {
	case n < 5:
	case n < 14 && len(places) > 0:
		leave(g, s, sample.Pick(g.Source, places))
		if g.One(3) {
			super(g, s, f, moved)
		}
	case n < 16 && len(f.Spans) > 0: // a header that has no such checksum, or one that the spec doesn't know
		start := moved + sample.Pick(g.Source, f.Spans).Start
		leave(g, s, sim.Partial{Start: start, Field: start + field(g)})
	case n < 18 && len(f.Spans) > 0: // a header after all of them
		start := moved + f.Spans[len(f.Spans)-1].End + g.IntN(12)
		leave(g, s, sim.Partial{Start: start, Field: start + field(g)})
	case n < 19:
		start := 14 + g.IntN(64)
		leave(g, s, sim.Partial{Start: start, Field: start + g.IntN(24)})
	}
	s.Data = s.Data[link:]
	s.Linear -= min(s.Linear, uint16(link))
	if s.Partial != (sim.Partial{}) {
		s.Partial.Start -= link
		s.Partial.Field -= link
	}
	return s
}

// extensions are the protocol numbers of IPv6 extension headers that the kernel looks after.
var extensions = []byte{0, 43, 44, 51, 60}

// ipv6 is a frame from its IPv6 header on; empty if it has none.
func ipv6(frame []byte) []byte {
	at := 14
	for len(frame) >= at+24 && sample.Tagged(frame[at-14:]) {
		at += 4
	}
	if len(frame) < at+40 || frame[at]>>4 != 6 {
		return nil
	}
	return frame[at:]
}

// field is where a checksum often is in its header: UDP's, TCP's, others.
func field(g *sample.Generator) int {
	return sample.Pick(g.Source, []int{6, 6, 6, 16, 16, 2, 0, 10, 7})
}

// sums returns the checksums of a frame's headers that may be left to a device.
func sums(f *packet.Frame, moved int) (out []sim.Partial) {
	for _, sp := range f.Spans {
		for _, pl := range sp.Places {
			if c := pl.Field.Checksum; c != nil && c.Offloaded && pl.Bits > 0 {
				out = append(out, sim.Partial{Start: moved + sp.Start, Field: moved + pl.Bit/8})
			}
		}
	}
	return out
}

// leave leaves a checksum to a device: its field holds what makes it the same when it is completed.
func leave(g *sample.Generator, s *testlive.Shot, at sim.Partial) {
	ip := 14
	for len(s.Data) >= ip+24 && sample.Tagged(s.Data[ip-14:]) {
		ip += 4
	}
	first := ip + 20 // where a transport header may begin
	if ip < len(s.Data) && s.Data[ip]>>4 == 6 {
		first = ip + 40
	}
	if at.Field+2 > len(s.Data) || at.Start < first || at.Field < at.Start {
		return
	}
	s.Data = slices.Clone(s.Data)
	field := s.Data[at.Field:]
	old := binary.BigEndian.Uint16(field)
	if !g.One(16) {
		field[0], field[1] = 0, 0
		binary.BigEndian.PutUint16(field, add([]byte{byte(^old >> 8), byte(^old)}, ^add(s.Data[at.Start:], 0)))
	}
	s.Partial = at
}

// super makes a GSO packet of one whose checksum is left to a device.
func super(g *sample.Generator, s *testlive.Shot, f *packet.Frame, moved int) {
	front, version := 0, byte(0)
	for _, sp := range f.Spans {
		switch at := moved + sp.Start; {
		case at == s.Partial.Start:
			front = moved + sp.End
		case at < s.Partial.Start && (sp.Header.Name.Value == "ipv4" || sp.Header.Name.Value == "ipv6"):
			version = sp.Header.Name.Value[3]
		}
	}
	size := len(s.Data) - front
	if version == 0 || size < 2 {
		return
	}
	switch s.Partial.Field - s.Partial.Start {
	case 6:
		s.GSOType = testlive.GSOUDP
	case 16:
		s.GSOType = testlive.GSOTCPv4
		if version == '6' {
			s.GSOType = testlive.GSOTCPv6
		}
	default:
		return
	}
	s.GSOSize = uint16(max(size/8, 1) + g.IntN(size-max(size/8, 1)))
}
