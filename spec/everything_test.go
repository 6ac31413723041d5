package spec

import (
	_ "embed"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

//go:embed testdata/everything.cue
var everything string

// The typed spec as text, without positions.
func dump(s *Spec) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	names := func(all []Name) (out []string) {
		for _, n := range all {
			out = append(out, n.Value)
		}
		return out
	}
	matches := func(all []*FieldMatch) (out []string) {
		for _, m := range all {
			out = append(out, m.Field.String()+": "+m.Is.String())
		}
		return out
	}
	lookups := func(all []*Lookup) (out []string) {
		for _, l := range all {
			out = append(out, fmt.Sprint(l.Var.Value, " ", l.Optional, " ", l.Table.Value, l.Key))
		}
		return out
	}
	members := func(all []*Member) (out []string) {
		for _, m := range all {
			out = append(out, m.Name.Value+" "+m.Type.Text)
		}
		return out
	}
	var rules func(indent string, all []*Rule)
	rules = func(indent string, all []*Rule) {
		for _, r := range all {
			p("%srule match %v when %v lookups %v", indent, matches(r.Match), r.When, lookups(r.Lookups))
			for _, a := range r.Do {
				var set []string
				for _, as := range a.Set {
					set = append(set, as.Target.String()+"="+as.Value.String())
				}
				text := fmt.Sprintf("%s  %s %v", indent, a.Kind, set)
				if a.Before != nil {
					text += " before " + a.Before.Value
				}
				for _, n := range []struct {
					what, name string
				}{
					{"header", a.Header.Value}, {"table", a.Table.Value}, {"reason", a.Reason.Value},
					{"event", a.Event.Value},
				} {
					if n.name != "" {
						text += " " + n.what + " " + n.name
					}
				}
				for name, value := range a.Members() {
					text += " " + name + " " + value
				}
				if len(a.Key)+len(a.Value) > 0 {
					text += fmt.Sprintf(" key %v value %v", a.Key, a.Value)
				}
				p("%s", text)
				if f := a.FanOut; f != nil {
					p("%s    group %s %v", indent, f.Group.Value, f.Key)
					rules(indent+"    ", f.Rules)
					if f.Drop != nil {
						p("%s    drop %s", indent, f.Drop.Value)
					}
				}
			}
		}
	}
	value := func(l Literal) string {
		var all []string
		for _, one := range l.All() {
			all = append(all, (&Constraint{Value: one}).String())
		}
		return strings.Join(all, "/")
	}
	values := func(all []*TestValue) (out []string) {
		for _, v := range all {
			out = append(out, v.Name.Value+"="+value(v.Value))
		}
		return out
	}
	packet := func(what string, k *Packet) {
		if k == nil {
			return
		}
		p("  %s %x vlan %v partial %v other host %v", what, k.Hex, k.VLAN, k.Partial, k.OtherHost)
		for _, l := range k.Layers {
			p("    %s%v %q", l.Header.Value, values(l.Fields), l.Bytes)
		}
	}
	p("spec %s kernel %d.%d", s.Name.Value, s.Kernel.Major, s.Kernel.Minor)
	for _, h := range s.Headers {
		if h.Std {
			continue
		}
		p("header %s closed %v trailer %d", h.Name.Value, h.Closed, h.Trailer)
		for _, f := range h.Fields {
			p("  %s kind %d bits %d bytes %d max %d little %v type %q", f.Name.Value, f.Kind, f.Bits, f.Bytes, f.Max,
				f.Little, f.Type)
			if f.Size != nil {
				p("    size %s", f.Size)
			}
			if f.When != nil {
				p("    when %s", f.When)
			}
			if f.Is != nil {
				p("    is %s reason %s", f.Is, f.Reason.Value)
			}
			for _, e := range f.Elements {
				p("    elements when %v id %d len %d bias %d pad %d stop %d", e.When, e.ID, e.Len, e.Bias,
					e.Pad, e.Stop)
			}
			if k := f.Checksum; k != nil {
				p("    checksum %s %v absent %v optional %v offloaded %v verify %v", k.Covers, k.Pseudo,
					names(k.Absent), k.Optional, k.Offloaded, k.Verify)
			}
			if c := f.Counts; c != nil {
				p("    counts %s unit %d bias %d slack %d data %v", c.What, c.Unit, c.Bias, c.Slack, c.Data)
			}
		}
		for _, a := range h.After {
			p("  after %s %v", a.Parent.Value, matches(a.Match))
		}
		for _, x := range h.Parts {
			if x.Alias != nil {
				p("  part %s = %s", x.Name.Value, x.Alias)
			} else {
				p("  part %s = %s : %s", x.Name.Value, x.Addr, x.Port)
			}
		}
	}
	for _, g := range s.Alternatives {
		p("group %s %v std %v", g.Name.Value, names(g.Headers), g.Std)
	}
	for _, x := range s.Settings {
		def := "none"
		if x.Default != nil {
			def = value(*x.Default)
		}
		p("setting %s %s default %s is %v doc %q", x.Name.Value, x.Type.Text, def, x.Is, x.Doc)
	}
	for _, x := range s.Tables {
		p("table %s %s %v %d", x.Name.Value, x.Kind, x.PerCPU, x.Size)
		for _, m := range append(x.Key[:len(x.Key):len(x.Key)], x.Value...) {
			p("  %s %s", m.Name.Value, m.Type.Text)
		}
	}
	for _, x := range s.Sessions {
		p("session %s %d fields, lifetime %d idle %d", x.Name.Value, len(x.Fields), x.Lifetime.Value, x.Idle.Value)
		for _, r := range x.Rows {
			p("  %s %v %v", r.Table.Value, names(r.Key), names(r.Value))
		}
	}
	p("priority %d levels from %v high %v", s.Priority.Levels, s.Priority.From, s.Priority.High)
	for _, x := range s.Groups {
		p("group %s %v %v max %d rows %d size %d", x.Name.Value, members(x.Key), members(x.Receiver), x.Max,
			x.Rows, x.Size)
	}
	for _, x := range s.Events {
		p("event %s %v required %v", x.Name.Value, members(x.Fields), x.Required)
	}
	p("ring %d translations %d", s.Ring, s.Translations)
	for _, x := range s.Programs {
		p("program %s %s match %v when %v lookups %v multicast %v", x.Name.Value, x.Hook, matches(x.Match), x.When,
			lookups(x.Lookups), x.Multicast)
		if x.Priority != nil {
			p("  priority from %v", x.Priority.From)
		}
		for _, e := range x.Stack {
			p("  %s %v %v", e.Var.Value, names(e.Headers), e.Optional)
		}
		rules("  ", x.Rules)
	}
	for _, x := range s.Tests {
		p("test %q %s settings %v", x.Name.Value, x.Program.Value, values(x.Settings))
		for _, y := range x.Sessions {
			p("  session %s %v", y.Session.Value, values(y.Fields))
		}
		for _, y := range x.Rows {
			p("  row %s %v", y.Table.Value, values(y.Values))
		}
		for _, y := range x.Groups {
			p("  group %s %v", y.Group.Value, values(y.Key))
			for _, r := range y.Receivers {
				p("    %v", values(r))
			}
		}
		if x.Route != nil {
			p("  route %s %d", x.Route.State, x.Route.MTU)
		}
		for _, word := range x.Conditions {
			p("  %s", word)
		}
		packet("packet", x.Packet)
		via := ""
		if x.Expect.Via != nil {
			via = value(*x.Expect.Via)
		}
		p("  expect %s %q untouched %v via %q counters %v", x.Expect.Verdict, x.Expect.Reason, x.Expect.Untouched, via,
			values(x.Expect.Counters))
		packet("expected", x.Expect.Packet)
		for _, y := range x.Expect.Rows {
			p("  row %s %v absent %v", y.Table.Value, values(y.Values), y.Absent)
		}
		p("  copies %v events %v", x.Expect.Copies != nil, x.Expect.Events != nil)
		for _, y := range x.Expect.Copies {
			p("  copy declined %v %q", y.Declined, y.Reason)
			packet("of", y.Packet)
		}
		for _, y := range x.Expect.Events {
			p("  event %s of receiver %d %v", y.Event.Value, y.Receiver, values(y.Fields))
		}
	}
	return b.String()
}

func TestEverything(t *testing.T) {
	got := dump(load(t, everything))
	file := "testdata/everything.txt"
	if os.Getenv("FASTRELAY_UPDATE") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
