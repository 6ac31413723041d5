package packet

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// Describe returns layers of which Build makes a frame again, with as few fields as that takes; its headers are known.
// It is nil if there are none, as when a trailer isn't zeros.
func (hs *Headers) Describe(frame []byte, spans []*Span) []Layer {
	var layers []Layer
	at := make([]int, len(spans)) // by span: its layer
	end, trailers := 0, 0
	for i, sp := range spans {
		if sp.After > 0 && sp.Start >= end {
			layers = append(layers, Layer{Raw: frame[end:sp.Start]})
		}
		at[i] = len(layers)
		layers = append(layers, Layer{Header: sp.Header, Values: map[string]Value{}})
		end = sp.End
		trailers += sp.Header.Trailer
	}
	if rest := frame[end:max(end, len(frame)-trailers)]; len(rest) > 0 {
		layers = append(layers, Layer{Raw: rest})
	}
	const rounds = 6
	for round := range rounds {
		built, err := hs.Build(layers, Options{})
		if err == nil && bytes.Equal(built.Data, frame) {
			return layers
		}
		for i, sp := range spans {
			for j := range sp.Places {
				p := &sp.Places[j]
				derived := p.Field.Counts != nil || p.Field.Checksum != nil
				if !p.There || derived && round < rounds/2 {
					continue
				}
				if err == nil && i < len(built.Spans) {
					if q := built.Spans[i].Place(p.Field.Name.Value); q != nil && q.There &&
						p.Text(frame) == q.Text(built.Data) && p.Bits == q.Bits {
						continue
					}
				}
				layers[at[i]].Values[p.Field.Name.Value] = p.written(frame)
			}
		}
	}
	return nil
}

// written is the value of a field, which gives an integer of variable size its size, too.
func (p *Place) written(frame []byte) Value {
	v := p.Get(frame)
	if p.Field.Kind == spec.FieldVarint && p.Bits > 0 && 8*len(varint(v.Int)) != p.Bits {
		return Bytes(bytes.Clone(frame[p.Bit/8 : (p.Bit+p.Bits)/8]))
	}
	return v
}

// CUE writes layers as a test of a spec has them.
func CUE(layers []Layer) string {
	var b strings.Builder
	b.WriteString("[\n")
	for _, l := range layers {
		if l.Header == nil {
			fmt.Fprintf(&b, "{payload: %s},\n", payloadCUE(l.Raw))
			continue
		}
		var fields []string
		for _, f := range l.Header.Fields {
			if v, ok := l.Values[f.Name.Value]; ok {
				fields = append(fields, f.Name.Value+": "+v.cue(f))
			}
		}
		fmt.Fprintf(&b, "{%s: {%s}},\n", l.Header.Name.Value, strings.Join(fields, ", "))
	}
	b.WriteString("]")
	return b.String()
}

// cue is a value as a literal.
func (v Value) cue(f *spec.Field) string {
	if v.Bytes == nil {
		return fmt.Sprint(v.Int)
	}
	if f.Type == "ip" || f.Type == "mac" {
		return fmt.Sprintf("%q", v.text(f))
	}
	return fmt.Sprintf("%q", hex.EncodeToString(v.Bytes))
}

func payloadCUE(b []byte) string {
	plain := !slices.ContainsFunc(b, func(x byte) bool { return x < 0x20 || x > 0x7e || x == '"' || x == '\\' })
	switch {
	case plain:
		return fmt.Sprintf("%q", b)
	case len(b) > 8 && !slices.ContainsFunc(b, func(x byte) bool { return x != 0 }):
		return fmt.Sprintf("{zeros: %d}", len(b))
	}
	return fmt.Sprintf("{hex: %q}", hex.EncodeToString(b))
}

// Expected returns layers with which Check compares what a program made of a packet: those of which Build makes the
// frame, and the fields that the program changed, but for lengths and checksums, which Check looks at anyway. It is nil
// if Check would find fault with the frame itself.
func (hs *Headers) Expected(frame []byte, spans []*Span, changes []Change) []Layer {
	layers := hs.Describe(frame, spans)
	for _, l := range layers {
		if l.Header == nil {
			continue
		}
		i := slices.IndexFunc(spans, func(sp *Span) bool { return sp.Header == l.Header })
		for j := range spans[i].Places {
			p := &spans[i].Places[j]
			changed := slices.ContainsFunc(changes, func(c Change) bool {
				return c.Name == l.Header.Name.Value+"."+p.Field.Name.Value
			})
			if _, given := l.Values[p.Field.Name.Value]; p.There && changed && !given && p.Field.Counts == nil &&
				p.Field.Checksum == nil {
				l.Values[p.Field.Name.Value] = p.written(frame)
			}
		}
	}
	if len(layers) == 0 || len(hs.Check(frame, layers, Options{})) > 0 {
		return nil
	}
	return layers
}
