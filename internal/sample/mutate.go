package sample

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Packet returns a Packet made of a frame: as it is about half of the time, else spoilt in one or two ways. A program
// at XDP alone gets frames, whose tags are in them.
func (g *Generator) Packet(f *packet.Frame) sim.Packet {
	p := g.packet(f)
	if g.Program.Hook == ir.XDP {
		p.Frame, p.GSO, p.VLAN = true, 0, nil
	}
	return p
}

func (g *Generator) packet(f *packet.Frame) sim.Packet {
	p := sim.Packet{Data: slices.Clone(f.Data)}
	if g.One(8) {
		p.Mark, p.Priority = g.Uint32(), g.Uint32()
	}
	if g.One(40) {
		p.GSO = 1 + g.Uint32N(1400)
	}
	if len(f.Spans) == 0 {
		return p
	}
	if g.Does(spec.ActPop) && g.One(3) { // of a header that goes, a checksum is verified, unless there is none
		for _, sp := range f.Spans {
			for _, pl := range sp.Places {
				if c := pl.Field.Checksum; c != nil && c.Optional && len(c.Absent) > 0 {
					pl.Put(p.Data, packet.Uint(0))
				}
			}
		}
	}
	if g.One(16) || g.Program.Multicast && g.One(2) {
		g.readdress(p.Data, f)
	}
	p.Data = g.slack(p.Data, f)
	switch n := g.IntN(100); {
	case n < 52:
	case n < 67:
		g.setFields(&p, f)
	case n < 71:
		p.Data = p.Data[:g.IntN(len(p.Data)+1)]
	case n < 74:
		p.Data = g.short(p.Data, f)
	case n < 75:
		p.VLAN = &sim.Tag{Proto: Pick(g.Source, []uint16{0x8100, 0x88a8}), TCI: uint16(g.Uint32())}
	case n < 80:
		p.Data = g.trail(p.Data, f)
	case n < 85:
		g.flip(p.Data)
		g.mend(p.Data, f)
	case n < 90:
		g.lengths(p.Data, f)
		g.mend(p.Data, f)
	case n < 95:
		g.checksums(p.Data, f)
		g.mend(p.Data, f)
	case n < 96:
		g.Tag(&p)
	case n < 98:
		g.partialSum(p.Data, f)
	default:
		g.setFields(&p, f)
		g.flip(p.Data)
		g.mend(p.Data, f)
	}
	if Tagged(p.Data) && g.One(8) {
		IntoMetadata(&p)
	}
	return p
}

// slack puts bytes after what a header holds whose length allows that, in one packet of three.
func (g *Generator) slack(b []byte, f *packet.Frame) []byte {
	for i, sp := range f.Spans {
		for _, pl := range sp.Places {
			k := pl.Field.Counts
			if k == nil || k.Slack == 0 || sp.IsNet() || !g.One(3) {
				continue
			}
			most := k.Slack
			if most < 0 {
				most = 64
			}
			if out := grow(g.Headers, f, b, i, g.bytes(1+g.IntN(most))); out != nil {
				return out
			}
		}
	}
	return b
}

// trail puts bytes after what a header says it holds: after the frame's datagram, as when a frame is padded, or after
// one inside of another.
func (g *Generator) trail(b []byte, f *packet.Frame) []byte {
	more := g.bytes(1 + g.IntN(64))
	switch g.IntN(4) {
	case 0:
		return append(b, make([]byte, max(1, 60-len(b)))...)
	case 1, 2:
		i := g.IntN(len(f.Spans))
		if out := grow(g.Headers, f, b, i, more); out != nil {
			return out
		}
	}
	if g.One(8) {
		more = g.bytes(1500)
	}
	if len(b)+len(more) > sim.MaxFrame {
		return b
	}
	return append(b, more...)
}

// grow puts bytes after what the i-th header of a frame holds, into all headers in front of it; their lengths and
// checksums fit again. It returns nil if they can't.
func grow(hs *packet.Headers, f *packet.Frame, b []byte, i int, more []byte) []byte {
	at := f.Spans[i].Inner
	for _, sp := range f.Spans[i:] {
		at = max(at, sp.End)
	}
	if i == 0 || at > len(b) {
		return nil
	}
	b = slices.Insert(slices.Clone(b), at, more...)
	for _, sp := range f.Spans[:i] {
		for _, pl := range sp.Places {
			if k := pl.Field.Counts; k != nil && k.What != "header" && sp.Inner >= at {
				pl.Put(b, packet.Uint(pl.Get(b).Int+uint64(len(more)/max(k.Unit, 1))))
			}
		}
	}
	if hs.FillSums(copyOf(f, b), packet.Options{}) != nil {
		return nil
	}
	return b
}

// mend mostly makes those checksums right again that are verified where a packet comes in: else it comes no further
// than there.
func (g *Generator) mend(b []byte, f *packet.Frame) {
	if !g.One(4) {
		_ = g.Headers.FillVerified(copyOf(f, b)) // lengths that make no sense are found before
	}
}

// readdress addresses a frame to another host, or to many, or gives it an IP address that no single host has.
func (g *Generator) readdress(b []byte, f *packet.Frame) {
	if len(b) >= 6 && g.One(2) {
		to := g.bytes(6)
		switch g.IntN(4) {
		case 0:
			to = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
		case 1:
			to[0] |= 1
		case 2:
			copy(to, packet.DefaultDestination[:])
			to[g.IntN(6)] ^= 1 << g.IntN(8)
		}
		copy(b, to)
		if !g.One(4) {
			return
		}
	}
	for _, sp := range f.Spans {
		for _, pl := range sp.Places {
			if r := pl.Field.Role.Value; pl.Field.Type != "ip" || r != "source" && r != "destination" || g.One(2) {
				continue
			}
			noHost := !g.One(4)
			odd := slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool {
				return a.BitLen() != 8*pl.Field.Bytes || noHost && isHost(a)
			})
			pl.Put(b, packet.Bytes(Pick(g.Source, odd).AsSlice()))
		}
	}
	if g.Headers.FillSums(copyOf(f, b), packet.Options{}) != nil {
		g.flip(b)
	}
}

// setFields gives a few fields other values, and mostly makes the checksums right again.
func (g *Generator) setFields(p *sim.Packet, f *packet.Frame) {
	for range 1 + g.IntN(2) {
		sp := Pick(g.Source, f.Spans)
		if len(sp.Places) == 0 {
			continue
		}
		pl := Pick(g.Source, sp.Places)
		if pl.Bits == 0 {
			continue
		}
		switch pl.Field.Kind {
		case spec.FieldUint:
			v := g.integer(pl.Bits)
			if known := g.hints.ints[sp.Name()+"."+pl.Field.Name.Value]; len(known) > 0 && g.One(2) {
				v = Pick(g.Source, known)
			}
			pl.Put(p.Data, packet.Uint(v))
		default:
			pl.Put(p.Data, packet.Bytes(g.bytes(pl.Bits/8)))
		}
	}
	if !g.One(4) {
		// The lengths may be wrong now: then the checksums reach as far as the lengths that still make sense.
		if err := g.Headers.FillSums(copyOf(f, p.Data), packet.Options{}); err != nil {
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

func (g *Generator) flip(b []byte) {
	for range 1 + g.IntN(3) {
		if len(b) > 0 {
			b[g.IntN(len(b))] ^= 1 << g.IntN(8)
		}
	}
}

// lengths makes length fields a little wrong.
func (g *Generator) lengths(b []byte, f *packet.Frame) {
	for _, sp := range f.Spans {
		for _, pl := range sp.Places {
			if pl.Field.Counts != nil && g.One(2) {
				pl.Put(b, packet.Uint(pl.Get(b).Int+g.Uint64N(9)-4))
			}
		}
	}
}

// short cuts a packet at any length, and makes the lengths and checksums that are left say so: it is right but for its
// end.
func (g *Generator) short(b []byte, f *packet.Frame) []byte {
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
	if g.Headers.FillSums(cut, packet.Options{}) != nil {
		g.flip(b)
	}
	return b
}

// checksums sets checksums to the values that mean something, or to anything.
func (g *Generator) checksums(b []byte, f *packet.Frame) {
	for _, sp := range f.Spans {
		for _, pl := range sp.Places {
			if pl.Field.Checksum != nil && g.One(2) {
				pl.Put(b, packet.Uint(Pick(g.Source, []uint64{0, 0, 0xffff, g.Uint64()})))
			}
		}
	}
}

// partialSum makes a checksum look as if it were left to a device: the field is the sum of the pseudo-header. Half of
// the time it is right all the same, because the rest of what it covers adds up to what makes it so.
func (g *Generator) partialSum(b []byte, f *packet.Frame) {
	for i, sp := range slices.Backward(f.Spans) {
		for _, pl := range sp.Places {
			if c := pl.Field.Checksum; c == nil || !c.Offloaded || c.Covers != "all" {
				continue
			}
			frame := copyOf(f, b)
			if g.Headers.FillSums(frame, packet.Options{}) != nil {
				return
			}
			full := uint32(pl.Get(b).Int)
			if g.Headers.FillSums(frame, packet.Options{Partial: true}) != nil {
				return
			}
			at := sp.Start + (frame.Spans[i].Inner-sp.Start-2)&^1
			if g.One(2) || at < sp.End || at+2 > len(b) {
				return
			}
			// The checksum decreases by what a word increases.
			word := uint32(binary.BigEndian.Uint16(b[at:])) + full + (0xffff - uint32(pl.Get(b).Int))
			for word > 0xffff {
				word = word>>16 + word&0xffff
			}
			binary.BigEndian.PutUint16(b[at:], uint16(word))
			return
		}
	}
}

func Tagged(b []byte) bool {
	return len(b) >= 18 && (b[12] == 0x81 && b[13] == 0 || b[12] == 0x88 && b[13] == 0xa8)
}

// IntoMetadata moves the outermost VLAN tag into the metadata, as a kernel does when a packet comes in.
func IntoMetadata(p *sim.Packet) {
	p.VLAN = &sim.Tag{Proto: binary.BigEndian.Uint16(p.Data[12:]), TCI: binary.BigEndian.Uint16(p.Data[14:])}
	p.Data = slices.Delete(p.Data, 12, 16)
}

// Tag puts a VLAN tag after the link-layer addresses.
func (g *Generator) Tag(p *sim.Packet) {
	if len(p.Data) < 14 {
		return
	}
	proto := Pick(g.Source, []uint16{0x8100, 0x88a8})
	tag := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, proto), uint16(g.Uint32()))
	p.Data = slices.Insert(p.Data, 12, tag...)
}

// AtBound makes a packet from one that was sent that comes to a bound: a checksum that becomes 0, or a packet of
// exactly the MTU of its next hop, or one byte more.
func (g *Generator) AtBound(f *packet.Frame, sent *sim.Result) []byte {
	if g.One(2) || len(f.Spans) == 0 {
		return g.zeroSum(f, sent.Packet.Data)
	}
	grow := int(sent.Hop.MTU) + 14 - len(sent.Packet.Data) + g.IntN(2)
	if len(f.Data)+grow > sim.MaxFrame {
		return nil
	}
	return Resize(g.Headers, f, grow)
}

// Resize returns a frame whose payload has so many bytes more, or less, with lengths and checksums that fit; nil if
// the payload has not as many.
func Resize(hs *packet.Headers, f *packet.Frame, grow int) []byte {
	last := f.Spans[len(f.Spans)-1]
	end := last.Payload()
	if end+grow < last.End {
		return nil
	}
	data := slices.Clone(f.Data)
	if grow < 0 {
		data = slices.Delete(data, end+grow, end)
	} else {
		data = slices.Insert(data, end, make([]byte, grow)...)
	}
	for _, sp := range f.Spans {
		for _, pl := range sp.Places {
			if k := pl.Field.Counts; k != nil && k.What != "header" && sp.Inner >= end {
				pl.Put(data, packet.Uint(pl.Get(data).Int+uint64(grow/max(k.Unit, 1))))
			}
		}
	}
	if hs.FillSums(copyOf(f, data), packet.Options{}) != nil {
		return nil
	}
	return data
}

// zeroSum changes a packet so that a checksum of what the program makes of it becomes 0: sent is what it made so far.
// The last two bytes that the checksum covers increase by the checksum that came out. It returns nil if
// there is no such checksum.
func (g *Generator) zeroSum(f *packet.Frame, sent []byte) []byte {
	eth := g.Headers.Header("eth")
	if eth == nil {
		return nil
	}
	left, _ := g.Headers.Parse(sent, g.Headers.Guess(sent, eth), packet.Options{})
	out := sumPlace(left)
	in := sumPlace(f.Spans)
	if out == nil || in == nil {
		return nil
	}
	i := slices.IndexFunc(f.Spans, func(sp *packet.Span) bool {
		return slices.ContainsFunc(sp.Places, func(p packet.Place) bool { return p.Bit == in.Bit })
	})
	sp, last := f.Spans[i], f.Spans[len(f.Spans)-1]
	at := sp.Start + (last.Payload()-sp.Start-2)&^1
	if at < last.End {
		return nil
	}
	data := slices.Clone(f.Data)
	word := uint32(out.Get(sent).Int)
	if g.One(2) { // the payload may have moved to positions of the other parity
		word = word>>8 | word<<8&0xff00
	}
	word += uint32(binary.BigEndian.Uint16(data[at:]))
	binary.BigEndian.PutUint16(data[at:], uint16(word+word>>16))
	if g.Headers.FillSums(copyOf(f, data), packet.Options{}) != nil {
		return nil
	}
	return data
}

// sumPlace returns the innermost checksum over a payload.
func sumPlace(spans []*packet.Span) *packet.Place {
	for _, sp := range slices.Backward(spans) {
		for _, pl := range sp.Places {
			if c := pl.Field.Checksum; c != nil && c.Covers == "all" {
				return &pl
			}
		}
	}
	return nil
}
