package diagram

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gonum.org/v1/gonum/graph/encoding/dot"
	"gonum.org/v1/gonum/graph/multi"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/planfmt"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/spec"
)

type both struct {
	spec *spec.Spec
	plan *ir.Plan
}

var before = map[string]both{} // compiled

// known returns a spec and its plan, for tests that don't change them.
func known(t *testing.T, file string) (*spec.Spec, *ir.Plan) {
	t.Helper()
	b, ok := before[file]
	if !ok {
		b.spec, b.plan = compiled(t, file)
		before[file] = b
	}
	return b.spec, b.plan
}

// compiled returns a spec and its plan.
func compiled(t *testing.T, file string) (*spec.Spec, *ir.Plan) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, list := spec.Load(file, text)
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	plan, list := gen.Compile(s)
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	return s, plan
}

func specs(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"../../examples/*/spec.cue", "../../golden/*/spec.cue"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, files...)
	}
	if len(all) < 50 {
		t.Fatalf("only %d specs", len(all))
	}
	return all
}

// Each reason that a plan's statements have ends some stage.
func TestEveryReasonHasItsPlace(t *testing.T) {
	// In a plan's text.
	const ends = `((forward|decline|drop|copy|skip|changing|[a-z]+:) (drop |decline )?|to the stack \()`
	for i, file := range specs(t) {
		if needs.Left(i, 3) {
			continue
		}
		s, plan := known(t, file)
		for i, p := range s.Programs {
			d := Decide(s, p, plan.Programs[i])
			shown := map[string]bool{}
			for _, stage := range d.Stages {
				for _, e := range stage.Exits {
					shown[e.Reason.Name] = true
				}
			}
			_, body, _ := strings.Cut(planfmt.Program(plan, plan.Programs[i]), "\n  body\n")
			for _, r := range plan.Programs[i].Reasons {
				used := regexp.MustCompile(ends + r.Name + `\b`).MatchString(body)
				if used && !shown[r.Name] {
					t.Errorf("%s: program %s: reason %s is at no stage", file, p.Name.Value, r.Name)
				}
			}
		}
	}
}

// stages are the names of the reasons of each stage, by the stage's title.
func stages(t *testing.T, file, program string) map[string][]string {
	t.Helper()
	s, plan := known(t, file)
	for i, p := range s.Programs {
		if p.Name.Value != program {
			continue
		}
		out := map[string][]string{}
		for _, stage := range Decide(s, p, plan.Programs[i]).Stages {
			out[stage.Title] = []string{}
			for _, e := range stage.Exits {
				out[stage.Title] = append(out[stage.Title], e.Reason.Name)
			}
		}
		return out
	}
	t.Fatalf("%s has no program %s", file, program)
	return nil
}

// Reasons are where a reader of the spec looks for them.
func TestPlacesOfReasons(t *testing.T) {
	gate := stages(t, "../../examples/gate/spec.cue", "long")
	elements := stages(t, "../../golden/elements/spec.cue", "sort")
	video := stages(t, "../../examples/sfu/spec.cue", "video")
	turn := stages(t, "../../examples/turn/spec.cue", "to_peer")
	for _, c := range []struct {
		got  []string
		want []string
	}{
		{gate["header long"], []string{"truncated", "gso_packet", "long_form"}},
		{gate["condition"], []string{"no_match"}},
		{turn["row"], []string{"no_by_channel", "changing"}},
		{elements["condition"], []string{"no_match"}}, // what rule 1 finds in the packet is found before
		{gate["rule 1"], []string{"pass", "changing"}},
		{gate["rule 6"], []string{"closed"}},
		// What rules share by CUE's let is at each of them.
		{gate["rule 9"], []string{"pass", "over_source", "over_network", "over_total", "changing", "full_attempts",
			"no_totals", "no_networks"}},
		{gate["rule 11"], []string{"pass", "over_network", "over_newcomers", "changing", "full_attempts",
			"no_totals", "no_networks"}},
		// What sending checks in a header is at the rule that sends.
		{video["header udp"], []string{"truncated", "not_udp", "udp_length", "gso_packet"}},
		{video["rule 3"], []string{"relayed", "too_big", "udp_checksum", "full_streams", "partial_checksum",
			"no_subscribers", "no_memory", "fault"}},
		{video["rule 3.2, for each receiver"], []string{"layer"}},
		{video["rule 3.3, for each receiver"], []string{"copy", "refused_rate", "contended", "unfit_rtp_payload_type",
			"address_family", "too_big", "no_route", "local", "unreachable", "blackhole", "prohibit", "xfrm", "rule",
			"encap", "no_neighbour", "refused_by_device", "udp_checksum"}},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

// all is the picture of everything in a spec.
func all(s *spec.Spec, plan *ir.Plan, rates bool) (svg, graph string) {
	var parts []*Picture
	var decisions []*Decision
	for _, h := range s.Headers {
		parts = append(parts, Layout(h))
	}
	for i, p := range s.Programs {
		d := Decide(s, p, plan.Programs[i])
		decisions = append(decisions, d)
		parts = append(parts, d.Picture(rates))
	}
	return SVG(s.Name.Value, parts...), DOT(s.Name.Value, s.Headers, decisions)
}

// Pictures of all specs are well-formed and the same each time, and no text leaves its picture.
func TestPicturesOfAllSpecs(t *testing.T) {
	for i, file := range specs(t) {
		if needs.Left(i, 3) {
			continue
		}
		s, plan := known(t, file)
		for _, rates := range []bool{false, true} {
			svg, graph := all(s, plan, rates)
			wellFormed(t, file, svg)
			inside(t, file, svg)
			isGraph(t, file, graph)
			if again, graphAgain := all(s, plan, rates); again != svg || graphAgain != graph {
				t.Errorf("%s: another picture the second time", file)
			}
		}
	}
}

// wellFormed returns the names of a document's elements and attributes.
func wellFormed(t *testing.T, file, svg string) (names []string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if e, ok := token.(xml.StartElement); ok {
			names = append(names, e.Name.Local)
			for _, a := range e.Attr {
				names = append(names, a.Name.Local)
			}
		}
	}
}

var textElement = regexp.MustCompile(`<text x="(\d+)" y="\d+"([^>]*)>([^<]*)</text>`)

func inside(t *testing.T, file, svg string) {
	t.Helper()
	width, err := strconv.Atoi(regexp.MustCompile(` width="(\d+)"`).FindStringSubmatch(svg)[1])
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range textElement.FindAllStringSubmatch(svg, -1) {
		if strings.Contains(m[2], "text-anchor") {
			continue
		}
		x, err := strconv.Atoi(m[1])
		size := 12
		if s := regexp.MustCompile(`font-size="(\d+)"`).FindStringSubmatch(m[2]); s != nil && err == nil {
			size, err = strconv.Atoi(s[1])
		}
		if err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer("&lt;", "<", "&gt;", ">", "&amp;", "&", "&#34;", `"`).Replace(m[3])
		if x+textWidth(text, size) > width {
			t.Errorf("%s: this text leaves the picture: %s", file, m[0])
		}
	}
}

func isGraph(t *testing.T, file, text string) {
	t.Helper()
	if err := dot.UnmarshalMulti([]byte(text), multi.NewDirectedGraph()); err != nil {
		t.Errorf("%s: %v", file, err)
	}
}

// No name or text of a spec becomes markup, whatever got into it.
func TestHostileText(t *testing.T) {
	s, plan := compiled(t, "../../examples/sfu/spec.cue")
	clean, _ := all(s, plan, true)
	want := wellFormed(t, "sfu", clean)
	const evil = `</text><script>alert(1)</script><text x="0" onload='a' y="&#x41;\">` + "\x00\x1b\xff]]>"
	for _, h := range s.Headers {
		if h.Std {
			continue
		}
		h.Name.Value += evil
		for _, f := range h.Fields {
			f.Name.Value += evil
		}
	}
	for i, p := range s.Programs {
		p.Name.Value += evil
		p.Rules[0].When = &spec.Expr{Op: spec.OpName, Path: []spec.Name{{Value: evil}}}
		for _, r := range plan.Programs[i].Reasons {
			r.Name, r.Doc = r.Name+evil, r.Doc+evil
		}
	}
	s.Name.Value += evil
	svg, graph := all(s, plan, true)
	for _, name := range wellFormed(t, "hostile", svg) {
		if !slices.Contains(want, name) && name != "font-style" { // of numbers for long names
			t.Errorf("the picture has an element or attribute %q", name)
		}
	}
	isGraph(t, "hostile", graph)
}
