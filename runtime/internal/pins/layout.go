package pins

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// LayoutError says that what is pinned was made for another layout, and can't be adopted.
type LayoutError struct {
	Path  string // where the relay is pinned
	What  string // `table "sources"`
	Found string
	Want  string
	// Larger says that what is pinned would do if it were larger.
	Larger bool
}

func (e *LayoutError) Error() string {
	differs := e.What + " is laid out otherwise"
	if e.What == anotherRelay {
		differs = "it is another one"
	}
	remedy := "remove the old relay (fastrelay-gen remove), or pin the new one elsewhere"
	if e.Larger {
		remedy = "grow it (run --grow, Options.Grow), " + remedy
	}
	return fmt.Sprintf("can't adopt the relay pinned at %s: %s (found %s, want %s); %s", e.Path, differs, e.Found,
		e.Want, remedy)
}

// grown is an old layout with the sizes of now, if those are larger: of what is found by its key, or by an index
// that stays the same in a larger array. If rows have credits, each table's begin after the last one's, so those
// can't grow.
func grown(old, now *abi.Layout) *abi.Layout {
	out := *old
	out.Tables = slices.Clone(old.Tables)
	for i := range out.Tables {
		o := &out.Tables[i]
		for _, t := range now.Tables {
			if t.Name == o.Name {
				o.Size = max(o.Size, t.Size)
			}
		}
	}
	grow := func(size *int, now int) {
		if *size > 0 { // what the old relay has none of starts afresh
			*size = max(*size, now)
		}
	}
	grow(&out.Slots, now.Slots)
	grow(&out.Shared, now.Shared)
	return &out
}

// anotherRelay is what differs if nothing is to be compared.
const anotherRelay = "the relay"

// contents are the names in a layout.
func contents(l *abi.Layout) (programs, others []string) {
	for _, p := range l.Programs {
		programs = append(programs, p.Name)
	}
	for _, t := range l.Tables {
		others = append(others, t.Name)
	}
	for _, g := range l.Groups {
		others = append(others, g.Name)
	}
	return programs, others
}

func contentsText(l *abi.Layout) string {
	programs, others := contents(l)
	text := fmt.Sprintf("%q with programs %s", l.Name, strings.Join(programs, ", "))
	if len(others) > 0 {
		text += " and tables " + strings.Join(others, ", ")
	}
	return text
}

// same reports whether two layouts are of versions of one relay: they have a name in common, besides their own.
func same(old, now *abi.Layout) bool {
	programs, others := contents(now)
	was, wasOthers := contents(old)
	in := func(all []string) func(string) bool {
		return func(name string) bool { return slices.Contains(all, name) }
	}
	return (old.Name == "" || old.Name == now.Name) &&
		(slices.ContainsFunc(was, in(programs)) || slices.ContainsFunc(wasOthers, in(others)))
}

// compare finds what can't be adopted. path is where the old relay is pinned.
func compare(path string, old, now *abi.Layout) error {
	refuse := func(what string, found, want any) error {
		return &LayoutError{Path: path, What: what, Found: fmt.Sprint(found), Want: fmt.Sprint(want)}
	}
	if old.Version != now.Version {
		return refuse("the contract with the kernel's programs", old.Version, now.Version)
	}
	if !same(old, now) {
		return refuse(anotherRelay, contentsText(old), contentsText(now))
	}
	was := map[string]abi.Table{}
	for _, t := range old.Tables {
		was[t.Name] = t
	}
	for _, t := range now.Tables {
		o, ok := was[t.Name]
		if !ok {
			if t.Session != "" && old.Slots > 0 {
				// Sessions that are open have no row in it.
				return refuse(fmt.Sprintf("table %q", t.Name), "none", tableSummary(&t))
			}
			continue
		}
		found := tableSummary(&o) + sessionSummary(&old.Desc, &o)
		if want := tableSummary(&t) + sessionSummary(&now.Desc, &t); found != want {
			return refuse(fmt.Sprintf("table %q", t.Name), found, want)
		}
	}
	if old.Slots > 0 {
		switch {
		case old.Slots != now.Slots:
			return refuse("the array of sessions", fmt.Sprint(old.Slots, " entries"), fmt.Sprint(now.Slots, " entries"))
		case old.Usages != now.Usages:
			return refuse("the counters of sessions", fmt.Sprint(old.Usages, " rows"), fmt.Sprint(now.Usages, " rows"))
		}
	}
	if old.Shared > 0 && old.Shared != now.Shared {
		return refuse("the array of shared counters", fmt.Sprint(old.Shared, " entries"),
			fmt.Sprint(now.Shared, " entries"))
	}
	return compareGroups(old, now, refuse)
}

// compareGroups finds what can't be adopted of groups, credits, translations and events. What the old relay had none of
// starts afresh.
func compareGroups(old, now *abi.Layout, refuse func(what string, found, want any) error) error {
	if old.Receivers > 0 {
		summaries := func(l *abi.Layout) (names []string, text map[string]string) {
			text = map[string]string{}
			for _, g := range l.Groups {
				names = append(names, g.Name)
				text[g.Name] = groupSummary(&g)
			}
			return names, text
		}
		was, found := summaries(old)
		is, want := summaries(now)
		for _, name := range append(was, is...) {
			if found[name] != want[name] {
				return refuse(fmt.Sprintf("group %q", name), orNone(found[name]), orNone(want[name]))
			}
		}
	}
	if old.Ring > 0 {
		for i := range max(len(old.Events), len(now.Events)) {
			found, want := eventSummary(old, i), eventSummary(now, i)
			if found != want {
				return refuse("the ring's events", orNone(found), orNone(want))
			}
		}
	}
	entries := func(n int) string { return fmt.Sprint(n, " entries") }
	for _, s := range []struct {
		what       string
		found, now int
	}{
		{"the array of receivers", old.Receivers, now.Receivers},
		{"the array of credits", old.Credits, now.Credits},
		{"the table of translations", old.Translations, now.Translations},
		{"the ring of events", old.Ring, now.Ring},
	} {
		if s.found > 0 && s.found != s.now {
			return refuse(s.what, entries(s.found), entries(s.now))
		}
	}
	if old.Credits > 0 && max(old.Levels, 1) != max(now.Levels, 1) {
		return refuse("priority", fmt.Sprint(old.Levels, " levels"), fmt.Sprint(now.Levels, " levels"))
	}
	return nil
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func eventSummary(l *abi.Layout, i int) string {
	if i >= len(l.Events) {
		return ""
	}
	e := l.Events[i]
	text := fmt.Sprintf("%s:%s (%d bytes)", e.Name, summarize(e.Fields), e.Size)
	if e.Copies != nil {
		text += fmt.Sprintf(", copies:%s (%d bytes)", summarize(e.Copies.Values), e.Copies.Size)
	}
	return text
}

// groupSummary names everything that matters about a group's layout.
func groupSummary(g *abi.Group) string {
	return fmt.Sprintf("%d groups of %d, %d receivers from %d on:%s (%d bytes) ->%s (%d bytes)",
		g.Size, g.Max, g.Rows, g.Base, summarize(g.Key), g.KeySize, summarize(g.Receiver), g.ReceiverSize)
}

func summarize(members []abi.Member) string {
	var b strings.Builder
	for _, m := range members {
		fmt.Fprintf(&b, " %s %s@%d+%d", m.Name, m.Kind, m.Off, m.Size)
		if m.Levels > 0 {
			fmt.Fprintf(&b, "*%d", m.Levels)
		}
	}
	return b.String()
}

func sessionSummary(d *abi.Desc, t *abi.Table) string {
	s := d.SessionOf(t)
	if s == nil {
		return ""
	}
	var fields []string
	for _, f := range s.Fields {
		fields = append(fields, fmt.Sprint(f.Name, ":", f.Kind, ":", f.Size))
	}
	return fmt.Sprintf(", rows of session %s (%s)", s.Name, strings.Join(fields, " "))
}

// tableSummary names everything that matters about a table's layout.
func tableSummary(t *abi.Table) string {
	var b strings.Builder
	b.WriteString(t.Kind.String())
	if t.PerCPU {
		b.WriteString(" per processor")
	}
	fmt.Fprintf(&b, " of %d:", t.Size)
	fmt.Fprintf(&b, "%s (%d bytes) ->%s (%d bytes)", summarize(t.Key), t.KeySize, summarize(t.Value), t.ValueSize)
	return b.String()
}
