package specgen

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// truncated says what is wrong with a packet's being counted as truncated, or "": nothing is missing in a packet that
// is right as one of the sequences of headers of a stack, and that what it has of deciding fields makes no other one.
func (j *judge) truncated(stack []*spec.StackEntry, received []byte) string {
	for _, path := range j.paths(stack) {
		if !j.announced(received, path) || j.mayBeOther(stack, path, received) {
			continue
		}
		spans, problems := j.headers.Parse(received, headersOf(path), places(path))
		noTrailer := func(sp *packet.Span) bool { return sp.Inner-sp.End < sp.Header.Trailer }
		if len(problems) > 0 || slices.ContainsFunc(spans, noTrailer) {
			continue
		}
		var names []string
		for _, l := range path {
			names = append(names, l.h.Name.Value)
		}
		return fmt.Sprintf("a whole packet of %s is counted as truncated", strings.Join(names, " "))
	}
	return ""
}

// mayBeOther reports whether a packet of a path has, in front of the alternative that the path has, another one that
// the fields decide for, or that rows choose.
func (j *judge) mayBeOther(stack []*spec.StackEntry, path []layer, received []byte) bool {
	at := 0
	for _, e := range stack {
		var front []*spec.Header
		for _, n := range e.Headers {
			front = append(front, j.headers.Group(n.Value)...)
		}
		here := at < len(path) && path[at].entry == e.Var.Value
		if here {
			front = front[:slices.Index(front, path[at].h)]
		}
		if e.ByLookup {
			return true
		}
		after := ""
		if e.After != nil {
			after = e.After.Value
		}
		for _, h := range front {
			other := append(slices.Clone(path[:at]), layer{entry: e.Var.Value, h: h, from: at, after: after})
			if j.decidedFor(other, received) {
				return true
			}
		}
		if here {
			at++
		}
	}
	return false
}

// decidedFor reports whether what announces the last header of a path, or else its own first fields, say that a packet
// has it.
func (j *judge) decidedFor(path []layer, received []byte) bool {
	h := path[len(path)-1].h
	whole := headersOf(path)
	parent := whole[max(0, len(whole)-2)]
	if slices.ContainsFunc(h.After, func(a *spec.After) bool {
		return parent.Std || a.Parent.Value == parent.Name.Value
	}) {
		c := *h
		c.Fields = nil // it is announced, however much of it is there
		path = slices.Clone(path)
		path[len(path)-1].h = &c
		return j.announced(received, path)
	}
	c := *h
	c.Fields = slices.Clone(h.Fields)
	varies := func(f *spec.Field) bool {
		return f.When != nil || f.Kind == spec.FieldSized || f.Kind == spec.FieldVarint
	}
	if i := slices.IndexFunc(c.Fields, varies); i >= 0 {
		c.Fields = c.Fields[:i]
	}
	for len(c.Fields) > 0 && c.Fields[len(c.Fields)-1].Is == nil {
		c.Fields = c.Fields[:len(c.Fields)-1]
	}
	whole[len(whole)-1] = &c
	spans, _ := j.headers.Parse(received, whole, places(path))
	if len(spans) < len(path) {
		return false // the packet ends in front of the last of them
	}
	for _, p := range spans[len(spans)-1].Places {
		if p.Field.Is != nil && !packet.Allows(p.Field.Is, p.Field, p.Get(received)) {
			return false
		}
	}
	return true
}
