package packet

import (
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/spell"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/literal"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Resolve gives the layers of a test their headers and types. Mistakes go into diags; the result is nil if there are
// any.
func (hs *Headers) Resolve(layers []*spec.Layer, diags *diag.List) []Layer {
	before := diags.Len()
	out := make([]Layer, 0, len(layers))
	for _, l := range layers {
		if l.Header.Value == "" {
			out = append(out, Layer{Raw: l.Bytes})
			continue
		}
		h := hs.byName[l.Header.Value]
		if h == nil {
			d := diags.Add(codeUnknownHeader, l.Header.Pos, "no header %q", l.Header.Value)
			if g := hs.groups[l.Header.Value]; g != nil {
				d.WithLabel("this is a group: say which one, %q or %q", g[0], g[len(g)-1])
			} else {
				d.WithLabel("%s", didYouMean(l.Header.Value, hs.names))
			}
			continue
		}
		out = append(out, Layer{Header: h, Values: map[string]Value{}})
		r := resolver{hs, out, diags}
		for _, v := range l.Fields {
			r.set(v)
		}
	}
	if diags.Len() > before {
		return nil
	}
	return out
}

// resolver sets fields of the last layer, and of those in front of it if a name of the last layer stands for them.
type resolver struct {
	hs     *Headers
	layers []Layer
	diags  *diag.List
}

func (r *resolver) set(v *spec.TestValue) {
	h := r.layers[len(r.layers)-1].Header
	if f := field(h, v.Name.Value); f != nil {
		r.store(len(r.layers)-1, f, v.Value)
		return
	}
	for _, part := range h.Parts {
		if part.Name.Value == v.Name.Value {
			r.part(part, v)
			return
		}
	}
	r.diags.Add(codeUnknownField, v.Name.Pos, "no field %q in header %q", v.Name.Value, h.Name.Value).
		WithLabel("%s", didYouMean(v.Name.Value, settable(h))).
		WithRelated(h.Name.Pos, "the header is declared here")
}

func field(h *spec.Header, name string) *spec.Field {
	i := slices.IndexFunc(h.Fields, func(f *spec.Field) bool { return f.Name.Value == name })
	if i < 0 {
		return nil
	}
	return h.Fields[i]
}

func settable(h *spec.Header) []string {
	names := map[string]bool{}
	for _, f := range h.Fields {
		names[f.Name.Value] = true
	}
	for _, p := range h.Parts {
		names[p.Name.Value] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// part sets the fields that a name of the header stands for.
func (r *resolver) part(part *spec.Part, v *spec.TestValue) {
	if part.Alias != nil {
		if i, f := r.find(part.Alias.Path); f != nil {
			r.store(i, f, v.Value)
		}
		return
	}
	ap, err := literal.Endpoint(v.Value.Text)
	if err != nil || ap.Addr().Zone() != "" {
		r.diags.Add(codeFieldValue, v.Value.Pos, "%s is an endpoint", v.Name.Value).
			WithHint("endpoints are written \"192.0.2.1:3478\" or \"[2001:db8::1]:3478\"")
		return
	}
	if i, f := r.find(part.Addr.Path); f != nil {
		r.store(i, f, spec.Literal{Kind: spec.LitString, Text: ap.Addr().String(), Pos: v.Value.Pos})
	}
	if i, f := r.find(part.Port.Path); f != nil {
		r.store(i, f, spec.Literal{Kind: spec.LitInt, Int: uint64(ap.Port()), Pos: v.Value.Pos})
	}
}

// find returns the field that a dotted name stands for, seen from the last layer, and its layer.
func (r *resolver) find(path []spec.Name) (int, *spec.Field) {
	last := len(r.layers) - 1
	if len(path) == 1 {
		return last, field(r.layers[last].Header, path[0].Value)
	}
	for i := last; i >= 0; i-- {
		h := r.layers[i].Header
		if h == nil || h.Name.Value != path[0].Value && !slices.Contains(r.hs.groups[path[0].Value], h.Name.Value) {
			continue
		}
		if f := field(h, path[1].Value); f != nil {
			return i, f
		}
		for _, part := range h.Parts {
			if part.Name.Value == path[1].Value && part.Alias != nil {
				inner := resolver{r.hs, r.layers[:i+1], r.diags}
				return inner.find(part.Alias.Path)
			}
		}
	}
	return 0, nil
}

func (r *resolver) store(layer int, f *spec.Field, l spec.Literal) {
	v, err := parseLiteral(l, f)
	if err != nil {
		h := r.layers[layer].Header
		r.diags.Add(codeFieldValue, l.Pos, "%s.%s: %s", h.Name.Value, f.Name.Value, err).
			WithRelated(f.Name.Pos, "the field is declared here")
		return
	}
	r.layers[layer].Values[f.Name.Value] = v
}

// Make resolves and builds the packet of a test, or reports why it can't be: then the frame is empty.
func (hs *Headers) Make(p *spec.Packet, diags *diag.List) *Frame {
	if p.Hex != nil {
		f := &Frame{Data: p.Hex}
		if eth := hs.Header("eth"); eth != nil {
			f.Spans, _ = hs.Parse(p.Hex, hs.Guess(p.Hex, eth), Options{})
		}
		return f
	}
	before := diags.Len()
	layers := hs.Resolve(p.Layers, diags)
	if diags.Len() > before {
		return &Frame{}
	}
	f, err := hs.Build(layers, Options{Partial: p.Partial})
	if err != nil {
		diags.Add(codeUnbuildable, p.Pos, "the packet can't be built: %s", err)
		return &Frame{}
	}
	return f
}

func didYouMean(name string, known []string) string {
	if n := spell.Nearest(name, known); n != "" {
		return "did you mean \"" + n + "\"?"
	}
	return ""
}
