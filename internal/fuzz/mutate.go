package fuzz

import (
	"encoding/binary"
	"slices"

	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// packet returns a packet made of a frame: as it is about half of the time, else spoilt in one or two ways.
func (g *generator) packet(f *packet.Frame) sim.Packet {
	p := sim.Packet{Data: slices.Clone(f.Data)}
	if g.one(8) {
		p.Mark, p.Priority = g.Uint32(), g.Uint32()
	}
	if g.one(40) {
		p.GSO = 1 + g.Uint32N(1400)
	}
	if len(f.Spans) == 0 {
		return p
	}
	switch n := g.IntN(100); {
	case n < 52:
	case n < 67:
		g.setFields(&p, f)
	case n < 71:
		p.Data = p.Data[:g.IntN(len(p.Data)+1)]
	case n < 74:
		p.Data = g.short(p.Data, f)
	case n < 75:
		p.VLAN = &sim.Tag{Proto: pick(g.source, []uint16{0x8100, 0x88a8}), TCI: uint16(g.Uint32())}
	case n < 80:
		p.Data = append(p.Data, g.bytes(1+g.IntN(64))...)
	case n < 85:
		g.flip(p.Data)
	case n < 90:
		g.lengths(p.Data, f)
	case n < 95:
		g.checksums(p.Data, f)
	case n < 97:
		g.tag(&p)
	default:
		g.setFields(&p, f)
		g.flip(p.Data)
	}
	return p
}

// setFields gives a few fields other values, and mostly makes the checksums right again.
func (g *generator) setFields(p *sim.Packet, f *packet.Frame) {
	for range 1 + g.IntN(2) {
		sp := pick(g.source, f.Spans)
		if len(sp.Places) == 0 {
			continue
		}
		pl := pick(g.source, sp.Places)
		if pl.Bits == 0 {
			continue
		}
		switch pl.Field.Kind {
		case spec.FieldUint:
			v := g.integer(pl.Bits)
			if known := g.hints[sp.Name()+"."+pl.Field.Name.Value]; len(known) > 0 && g.one(2) {
				v = pick(g.source, known)
			}
			pl.Put(p.Data, packet.Uint(v))
		default:
			pl.Put(p.Data, packet.Bytes(g.bytes(pl.Bits/8)))
		}
	}
	if !g.one(4) {
		// The lengths may be wrong now: then the checksums reach as far as the lengths that still make sense.
		if err := g.headers.FillSums(copyOf(f, p.Data)); err != nil {
			g.flip(p.Data)
		}
	}
}

// copyOf returns a frame with other bytes, whose spans may be changed.
func copyOf(f *packet.Frame, data []byte) *packet.Frame {
	spans := make([]*packet.Span, len(f.Spans))
	for i, sp := range f.Spans {
		s := *sp
		spans[i] = &s
	}
	return &packet.Frame{Data: data, Spans: spans}
}

func (g *generator) flip(b []byte) {
	for range 1 + g.IntN(3) {
		if len(b) > 0 {
			b[g.IntN(len(b))] ^= 1 << g.IntN(8)
		}
	}
}

// lengths makes length fields a little wrong.
func (g *generator) lengths(b []byte, f *packet.Frame) {
	for _, sp := range f.Spans {
		for _, pl := range sp.Places {
			if pl.Field.Counts != nil && g.one(2) {
				pl.Put(b, packet.Uint(pl.Get(b).Int+g.Uint64N(9)-4))
			}
		}
	}
}

// short cuts a packet at any length, and makes the lengths and checksums that are left say so: it is right but for its end.
func (g *generator) short(b []byte, f *packet.Frame) []byte {
	b = b[:g.IntN(len(b)+1)]
	cut := &packet.Frame{Data: b}
	for _, sp := range copyOf(f, b).Spans {
		if sp.End > len(b) {
			break
		}
		cut.Spans = append(cut.Spans, sp)
		for _, pl := range sp.Places {
			if k := pl.Field.Counts; k != nil && k.What != "header" {
				n := len(b) - sp.End
				if k.What == "all" {
					n = len(b) - sp.Start
				}
				pl.Put(b, packet.Uint(uint64(int64(n/max(k.Unit, 1))+k.Bias)))
			}
		}
	}
	if g.headers.FillSums(cut) != nil {
		g.flip(b)
	}
	return b
}

// checksums sets checksums to the values that mean something, or to anything.
func (g *generator) checksums(b []byte, f *packet.Frame) {
	for _, sp := range f.Spans {
		for _, pl := range sp.Places {
			if pl.Field.Checksum != nil && g.one(2) {
				pl.Put(b, packet.Uint(pick(g.source, []uint64{0, 0, 0xffff, g.Uint64()})))
			}
		}
	}
}

// tag puts a VLAN tag behind the link-layer addresses.
func (g *generator) tag(p *sim.Packet) {
	if len(p.Data) < 14 {
		return
	}
	proto := pick(g.source, []uint16{0x8100, 0x88a8})
	tag := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, proto), uint16(g.Uint32()))
	p.Data = slices.Insert(p.Data, 12, tag...)
}

// zeroSum changes a packet so that a checksum of what the program makes of it becomes 0: sent is that result. It moves the
// last two bytes of the packet by the checksum that came out. It returns nil where the packet is too short.
func (g *generator) zeroSum(f *packet.Frame, sent []byte) []byte {
	for _, sp := range slices.Backward(f.Spans) {
		for _, pl := range sp.Places {
			c := pl.Field.Checksum
			if c == nil || c.Covers != "all" || len(f.Data)-sp.End < 2 || len(sent) < 42 {
				continue
			}
			data := slices.Clone(f.Data)
			at := sp.End + (len(f.Data)-sp.End-2)&^1
			// Where the checksum of what left stands is not known here: any of its words may be it.
			word := binary.BigEndian.Uint16(sent[14+2*g.IntN(28)%(len(sent)-16):])
			if g.one(2) {
				word = word<<8 | word>>8
			}
			sum := uint32(binary.BigEndian.Uint16(data[at:])) + uint32(word)
			binary.BigEndian.PutUint16(data[at:], uint16(sum+sum>>16))
			if g.headers.FillSums(copyOf(f, data)) != nil {
				return nil
			}
			return data
		}
	}
	return nil
}
