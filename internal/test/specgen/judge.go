package specgen

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// judge holds packets that left to the spec itself, without the plan: what left has to be what one of the rules makes
// of what came, with all lengths and checksums right, the payload as it was, and no field changed that the rule doesn't
// speak of. It shares nothing with the compiler, and so finds what the model and the C do wrong together.
type judge struct {
	spec     *spec.Spec
	headers  *packet.Headers
	programs map[string]*spec.Program
}

func newJudge(s *spec.Spec) *judge {
	j := &judge{s, packet.NewHeaders(s), map[string]*spec.Program{}}
	for _, p := range s.Programs {
		j.programs[p.Name.Value] = p
	}
	return j
}

// layer is a header in a packet that leaves: from is its index in the packet that came, or -1.
type layer struct {
	entry string
	h     *spec.Header
	from  int
	other bool   // made in place of one of another family
	after string // the entry after whose payload it begins
	blank bool   // made zeros of
	sum   string // what its push says about its checksum: "", none or computed
}

const none, computed = "none", "computed"

func (l layer) isIP() bool { return slices.Contains(namesOfIP, l.h.Name.Value) }

// complete says what is wrong with a packet that left, or "".
func (j *judge) complete(program string, received, left []byte) string {
	paths, known := j.readings(program, received)
	if !known {
		return ""
	}
	worst := ""
	for _, path := range paths {
		for _, r := range copying(j.programs[program].Rules) {
			for _, out := range j.after(path, r) {
				text := j.compare(received, left, path, out, r)
				if text == "" {
					return ""
				}
				if worst == "" || len(text) < len(worst) {
					worst = text
				}
			}
		}
	}
	return worst
}

// readings are the sequences of headers that a packet fits as it came. They aren't known if there are none, or if only
// checksums keep it from fitting another one: a program doesn't verify all of them, and may have taken that path.
func (j *judge) readings(program string, received []byte) (paths [][]layer, known bool) {
	for _, path := range j.paths(j.programs[program].Stack) {
		if !j.announced(received, path) {
			continue
		}
		_, problems := j.headers.Parse(received, headersOf(path), places(path))
		if len(problems) == 0 {
			paths = append(paths, path)
		} else if j.onlySums(path, problems) {
			return nil, false
		}
	}
	return paths, len(paths) > 0
}

// copying are rules; if one fans out, its receivers' rules.
func copying(rules []*spec.Rule) (out []*spec.Rule) {
	for _, r := range rules {
		if a := r.Do[len(r.Do)-1]; a.FanOut != nil {
			out = append(out, a.FanOut.Rules...)
		} else {
			out = append(out, r)
		}
	}
	return out
}

// became says what is wrong with the reason under which a packet or a receiver's turn ended, or "". If the last rule
// has no conditions, one of the rules is carried out: then no packet comes to their end, and a row that a rule in front
// of it doesn't find is no reason for anything.
func (j *judge) became(program string, received sim.Packet, res sim.Result) string {
	p := j.programs[program]
	if res.Verdict == sim.VerdictPunt && res.Reason == "truncated" && received.VLAN == nil {
		if text := j.truncated(p.Stack, received.Data); text != "" {
			return text
		}
	}
	found := map[string]bool{}
	for _, l := range p.Lookups {
		found["no_"+l.Table.Value] = true
	}
	if res.Verdict == sim.VerdictPunt {
		if text := inVain(p.Rules, found, res.Reason); text != "" {
			return text
		}
	}
	for _, r := range p.Rules {
		a := r.Do[len(r.Do)-1]
		if a.FanOut == nil {
			continue
		}
		found["no_"+a.FanOut.Group.Value] = true
		if len(p.Rules) > 1 {
			continue // whose receivers these are, no one says
		}
		for _, c := range res.Copies {
			if text := inVain(a.FanOut.Rules, found, c.Reason); text != "" {
				return text
			}
		}
	}
	return ""
}

func inVain(rules []*spec.Rule, found map[string]bool, reason string) string {
	last := rules[len(rules)-1]
	required := func(l *spec.Lookup) bool { return !l.Optional }
	if len(last.Match) > 0 || last.When != nil || slices.ContainsFunc(last.Lookups, required) {
		return ""
	}
	if reason == "no_rule" {
		return "the last rule has no conditions, and yet none applies"
	}
	for _, r := range rules {
		for _, l := range r.Lookups {
			if name := "no_" + l.Table.Value; reason == name && !found[name] {
				return fmt.Sprintf("a rule without a row in %s stopped what the next rules could have taken",
					l.Table.Value)
			}
		}
	}
	return ""
}

func headersOf(path []layer) []*spec.Header {
	var out []*spec.Header
	for _, l := range path {
		out = append(out, l.h)
	}
	return out
}

// places says which headers begin after the payload of another one.
func places(path []layer) packet.Options {
	var o packet.Options
	for _, l := range path {
		host := slices.IndexFunc(path, func(p layer) bool { return l.after != "" && p.entry == l.after })
		o.After = append(o.After, host+1)
	}
	return o
}

// paths are the sequences of headers that a stack stands for.
func (j *judge) paths(stack []*spec.StackEntry) [][]layer {
	paths := [][]layer{nil}
	for _, e := range stack {
		var next [][]layer
		for _, p := range paths {
			if e.Optional {
				next = append(next, p)
			}
			after := ""
			if e.After != nil {
				after = e.After.Value
			}
			for _, n := range e.Headers {
				for _, h := range j.headers.Group(n.Value) {
					l := layer{entry: e.Var.Value, h: h, from: len(p), after: after}
					next = append(next, append(slices.Clone(p), l))
				}
			}
		}
		paths = next
	}
	return paths
}

// onlySums reports whether nothing is wrong with a packet but checksums.
func (j *judge) onlySums(path []layer, problems []packet.Problem) bool {
	sum := map[string]bool{}
	for _, l := range path {
		for _, f := range l.h.Fields {
			sum[l.h.Name.Value+"."+f.Name.Value] = f.Checksum != nil
		}
	}
	return !slices.ContainsFunc(problems, func(p packet.Problem) bool { return !sum[p.Field] })
}

// announced reports whether each header of a path is one that the header in front of it announces, or needs no
// announcement: those of the standard ones can't name a spec's own header in front of them.
func (j *judge) announced(frame []byte, path []layer) bool {
	spans, _ := j.headers.Parse(frame, headersOf(path), places(path))
	for i, sp := range spans[min(1, len(spans)):] {
		parent, named, ok := spans[i], false, false
		for _, a := range sp.Header.After {
			if a.Parent.Value != parent.Name() {
				continue
			}
			named = true
			ok = ok || !slices.ContainsFunc(a.Match, func(m *spec.FieldMatch) bool {
				p := parent.Place(m.Field.Path[0].Value)
				return p == nil || !packet.Allows(m.Is, p.Field, p.Get(frame))
			})
		}
		if len(sp.Header.After) > 0 && !ok && (named || parent.Header.Std) {
			return false
		}
	}
	return true
}

// after is what a rule makes of a path: one sequence of headers, or one for each family.
func (j *judge) after(path []layer, r *spec.Rule) [][]layer {
	out := slices.Clone(path)
	named := func(name string) int {
		return slices.IndexFunc(out, func(l layer) bool {
			return l.from >= 0 && (l.entry == name || l.h.Name.Value == name ||
				slices.Contains(j.headers.Group(name), l.h))
		})
	}
	for _, a := range r.Do {
		switch a.Kind {
		case spec.ActPop:
			if i := named(a.Header.Value); i >= 0 {
				out = slices.Delete(out, i, i+1)
			}
		case spec.ActBlank:
			if i := named(a.Header.Value); i >= 0 {
				out[i].blank = true
			}
		case spec.ActPush:
			at := len(out)
			if a.Before != nil {
				at = named(a.Before.Value)
			}
			if at >= 0 {
				out = slices.Insert(out, at, layer{
					entry: a.Header.Value, h: j.headers.Header(a.Header.Value), from: -1, sum: pushedSum(a),
				})
			}
		case spec.ActSend:
			out = slices.DeleteFunc(out, func(l layer) bool { return l.h.Metadata == "vlan" && l.from >= 0 })
		}
	}
	all := [][]layer{out}
	if send := r.Do[len(r.Do)-1]; send.Kind == spec.ActSend && send.From != nil {
		for i, l := range out {
			if l.h.Name.Value != "ipv4" && l.h.Name.Value != "ipv6" {
				continue
			}
			other := slices.Clone(out)
			other[i].h, other[i].other = j.headers.Header(map[string]string{
				"ipv4": "ipv6", "ipv6": "ipv4",
			}[l.h.Name.Value]), true
			all = append(all, other)
			break
		}
	}
	return all
}

// pushedSum is what a push says about a checksum.
func pushedSum(a *spec.Action) string {
	for _, as := range a.Set {
		switch v := as.Value; {
		case as.Target.Path[0].Value != "checksum":
		case v.Op == spec.OpInt && v.Int == 0:
			return none
		case v.Op == spec.OpName && v.Path[0].Value == computed:
			return computed
		}
	}
	return ""
}

// withoutSum is a header without checksums.
func withoutSum(h *spec.Header) *spec.Header {
	c := *h
	c.Fields = slices.Clone(h.Fields)
	for i, f := range c.Fields {
		if f.Checksum != nil {
			f := *f
			f.Checksum = nil
			c.Fields[i] = &f
		}
	}
	return &c
}

// compare holds a packet that left against one possibility.
func (j *judge) compare(received, left []byte, path, out []layer, r *spec.Rule) string {
	was, _ := j.headers.Parse(received, headersOf(path), places(path))
	leaving := headersOf(out)
	for i, l := range out {
		if l.blank { // it has its size, and no form any more
			leaving[i] = &spec.Header{Name: l.h.Name, Trailer: l.h.Trailer, Fields: []*spec.Field{{
				Name: l.h.Name, Kind: spec.FieldBytes, Bytes: was[l.from].End - was[l.from].Start,
			}}}
		}
		if l.sum == none {
			leaving[i] = withoutSum(l.h)
		}
	}
	now, problems := j.headers.Parse(left, leaving, places(out))
	if len(problems) > 0 {
		return "what left is not right: " + problems[0].String()
	}
	for i, l := range out {
		if l.sum == "" {
			continue
		}
		if v := now[i].Place("checksum").Get(left).Int; (v == 0) != (l.sum == none) {
			return fmt.Sprintf("the checksum of header %s is %04x, and its push says: %s", l.h.Name.Value, v, l.sum)
		}
	}
	if text := payloads(received, left, was, now, out, r.Do[len(r.Do)-1].Kind == spec.ActSend); text != "" {
		return text
	}
	changeable := j.changeable(r)
	for i, l := range out {
		if l.from < 0 || l.other {
			continue
		}
		if l.blank {
			if zeros := left[now[i].Start:now[i].End]; slices.Max(zeros) > 0 {
				return fmt.Sprintf("header %s is blanked, and leaves as %x", l.h.Name.Value, zeros)
			}
			continue
		}
		for _, f := range l.h.Fields {
			x, y := was[l.from].Place(f.Name.Value), now[i].Place(f.Name.Value)
			if f.Counts != nil || f.Checksum != nil || x == nil || y == nil || changeable[f.Name.Value] ||
				j.announces(l.h, f.Name.Value) && changesAfter(out, i) {
				continue
			}
			if v, w := x.Get(received), y.Get(left); x.There != y.There || v.Int != w.Int ||
				!bytes.Equal(v.Bytes, w.Bytes) {
				return fmt.Sprintf("field %s.%s changed, which the rule doesn't name", l.h.Name.Value, f.Name.Value)
			}
		}
	}
	return ""
}

// changesAfter reports whether the i-th header has another one after it than when it came.
func changesAfter(out []layer, i int) bool {
	return i+1 >= len(out) || out[i+1].from != out[i].from+1 || out[i+1].other
}

// announces reports whether a field of a header may say which header follows.
func (j *judge) announces(h *spec.Header, field string) bool {
	return slices.ContainsFunc(j.spec.Headers, func(n *spec.Header) bool {
		return slices.ContainsFunc(n.After, func(a *spec.After) bool {
			return a.Parent.Value == h.Name.Value && slices.ContainsFunc(a.Match, func(m *spec.FieldMatch) bool {
				return m.Field.Path[0].Value == field
			})
		})
	})
}

// changeable are the names of the fields that a rule may change.
func (j *judge) changeable(r *spec.Rule) map[string]bool {
	out := map[string]bool{}
	name := func(e *spec.Expr) {
		for _, n := range e.Path {
			out[n.Value] = true
		}
	}
	for _, a := range r.Do {
		switch a.Kind {
		case spec.ActSet, spec.ActMark:
			for _, s := range a.Set {
				name(s.Target)
			}
		case spec.ActSend:
			for _, n := range []string{"ttl", "hop_limit", "id", "df", "flow_label", "dst", "src"} {
				out[n] = true
			}
			if a.Via == nil {
				out["src_port"], out["dst_port"] = true, true
			}
		}
	}
	for _, h := range j.spec.Headers {
		for _, p := range h.Parts {
			if !out[p.Name.Value] {
				continue
			}
			for _, e := range []*spec.Expr{p.Addr, p.Port, p.Alias} {
				if e != nil {
					name(e)
				}
			}
		}
	}
	return out
}
