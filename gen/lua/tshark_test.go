//go:build linux

package lua_test

import (
	"bytes"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/lua"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/sample"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

var (
	flagPackets = flag.Int("packets", 100_000, "random packets in all that tshark dissects")
)

// tshark shows fields of random packets, right ones and spoilt ones, with the values and at the places that the model
// reads them.
func TestFieldsAgree(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Fatal(err)
	}
	specs, seed := specFiles(t), needs.Seed(t)
	for i, file := range specs {
		if needs.Left(i, 4) {
			continue
		}
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			r, list, err := build.Plan(t.Context(), file)
			if err != nil || list.Len() > 0 {
				t.Fatal(err, list)
			}
			d := newDissected(t, r.Spec, r.Plan, seed, *flagPackets/len(specs))
			if d.run(func(text string) string { return text }); d.wrong != "" {
				t.Fatal(d.wrong)
			}
			if known := len(d.packets) - d.skipped; d.whole*4 < known || len(d.packets) == 0 {
				t.Errorf("%d of %d packets have all headers", d.whole, known)
			}
		})
	}
}

// The comparison finds dissectors that are wrong.
func TestPlantedFaults(t *testing.T) {
	for _, f := range []struct{ spec, what, old, new string }{
		{"varint", "a varint's length bits are part of it", "place.bit + 2, place.bits - 2", "place.bit, place.bits"},
		{"varint", "varints have one byte", "8 * 2 ^ math.floor(", "8 + 0 * math.floor("},
		{"bits", "a mask is one bit off", "mask = 0x1f", "mask = 0xf8"},
		{"shapes", "bits beyond the eighth byte get lost", ":bor(UInt64(more))", ""},
		{"presence", "a field is there without its condition", "place.there = u.t(v)", ""},
		{"elements", "a list's bias is forgotten", "% room + form.bias", "% room"},
		{"elements", "padding is an element", "if id == form.pad then", "if false then"},
		{"frames", "a trailer belongs to the payload", "span.inner - span.header.trailer", "span.inner"},
		{"frames", "the next frame is inside of the one in front", "local host = entry.after and by_entry[entry.after]",
			"local host"},
		{"counts", "a length is taken as it is", "(v:tonumber() - k.bias) * k.unit", "v:tonumber()"},
		{"sized-uint", "an integer is taken for its first byte", "return bits(tvb, place.bit, place.bits)\nend",
			"return bits(tvb, place.bit, 8)\nend"},
		{"labels", "an error of what is inside is the dissector's", "pcall(inner.call, inner, ", "inner:call("},
		{"labels", "a packet with options has no dissector", `ipv4_any = "ip", `, ""},
		{"labels", "what is inside of a stack counts for nothing", "found.fits = found.fits + 1\n\t\t\t\treturn found",
			"return found"},
		{"fronts", "the IP version in front is not looked at", "(versions[outer] or version) == version", "true"},
		{"fronts", "the last one of several stacks is shown", "found.whole and not best.whole", "true"},
		{"shapes", "a value isn't compared", "if not f.is(tvb, place, value(tvb, place)) then return place end", ""},
	} {
		r, list, err := build.Plan(t.Context(), specFile(f.spec))
		if err != nil || list.Len() > 0 {
			t.Fatal(err, list)
		}
		d := newDissected(t, r.Spec, r.Plan, 1, 400)
		d.run(func(text string) string {
			if !strings.Contains(text, f.old) {
				t.Fatalf("%s: the dissector has no place for the fault any more", f.what)
			}
			return strings.ReplaceAll(text, f.old, f.new)
		})
		if d.wrong == "" {
			t.Errorf("%s (%s): not found", f.what, f.spec)
		}
	}
}

// specFile is where the spec of a name is.
func specFile(name string) string {
	file := filepath.Join("../../golden", name, "spec.cue")
	if _, err := os.Stat(file); err != nil {
		file = filepath.Join("testdata", name, "spec.cue")
	}
	return file
}

// specFiles are the golden specs and the examples that have headers which Wireshark can find.
func specFiles(t *testing.T) (out []string) {
	t.Helper()
	for _, pattern := range []string{"../../golden/*/spec.cue", "../../examples/*/spec.cue", "testdata/*/spec.cue"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			s, list := spec.LoadFile(f)
			if list.Len() > 0 {
				t.Fatal(f, list)
			}
			_, err := lua.Render(s)
			switch {
			case err != nil && !errors.Is(err, lua.ErrNothing):
				t.Fatal(f, err)
			case err != nil && own(s):
				t.Errorf("%s: a program's stack has headers of the spec, and there is no dissector", f)
			case own(s):
				out = append(out, f)
			}
		}
	}
	return out
}

// own reports whether a program's stack has a header of the spec after others.
func own(s *spec.Spec) bool { return slices.ContainsFunc(s.Programs, owns(packet.NewHeaders(s))) }

func owns(hs *packet.Headers) func(p *spec.Program) bool {
	return func(p *spec.Program) bool {
		return p.Hook != ir.Congestion && slices.ContainsFunc(p.Stack[1:], func(e *spec.StackEntry) bool {
			return slices.ContainsFunc(e.Headers, func(n spec.Name) bool {
				return slices.ContainsFunc(hs.Group(n.Value), func(h *spec.Header) bool { return !h.Std })
			})
		})
	}
}

// dissected are packets that tshark takes apart with the dissector of a spec.
type dissected struct {
	*testing.T
	spec    *spec.Spec
	headers *packet.Headers
	packets []*sent
	name    string
	wrong   string          // the first difference
	given   map[string]bool // kinds of headers of which a user says that headers of the spec are in all of them

	skipped, shown, whole, fields, lengths, values, truncated, inside int
}

// sent is a packet.
type sent struct {
	program *spec.Program
	data    []byte
	frame   *packet.Frame // as it was before it was spoilt
	right   bool          // it wasn't
}

func newDissected(t *testing.T, s *spec.Spec, plan *ir.Plan, seed uint64, packets int) *dissected {
	t.Helper()
	d := &dissected{
		T: t, spec: s, headers: packet.NewHeaders(s), name: lua.Prefix + s.Name.Value, given: map[string]bool{},
	}
	src := sample.NewSource(seed)
	few := sample.Few(plan)
	settings := src.Settings(plan, 0)
	model, err := sim.New(few, settings)
	if err != nil {
		t.Fatal(err)
	}
	model.World.Refuses, model.World.Clock = sim.Refuses, sample.Clock
	generators := src.Generators(s, plan, d.headers, settings)
	src.State(few, model, generators...)
	generators = slices.DeleteFunc(generators, func(g *sample.Generator) bool { return !owns(d.headers)(g.Program) })
	for tries := 0; len(d.packets) < packets && tries < 10*packets; tries++ { // of some stacks there is no packet
		g := sample.Pick(src, generators)
		f := g.Frame(model)
		if len(f.Spans) == 0 {
			continue
		}
		p := &sent{program: g.Program, data: f.Data, frame: f, right: len(d.packets)%2 == 0}
		if !p.right {
			spoilt := g.Packet(f)
			if p.data = spoilt.Data; spoilt.VLAN != nil || len(p.data) == 0 {
				continue
			}
			if src.One(4) { // what comes from anywhere
				from := src.IntN(len(p.data))
				for i := from; i < len(p.data); i++ {
					p.data[i] = byte(src.Uint32())
				}
			}
			p.right = bytes.Equal(p.data, f.Data)
		}
		d.packets = append(d.packets, p)
	}
	return d
}

// pdml is what tshark prints of a packet.
type pdml struct {
	Protos []element `xml:"proto"`
}

type element struct {
	Name   string    `xml:"name,attr"`
	Show   string    `xml:"show,attr"`
	Value  string    `xml:"value,attr"`
	Pos    int       `xml:"pos,attr"`
	Size   int       `xml:"size,attr"`
	Fields []element `xml:"field"`
}

// run has tshark dissect the packets, with a dissector that may be changed before.
func (d *dissected) run(change func(string) string) {
	d.Helper()
	text, err := lua.Render(d.spec)
	if err != nil {
		d.Fatal(err)
	}
	var packets [][]byte
	for _, p := range d.packets {
		packets = append(packets, p.data)
	}
	script, capture := files(d.T, change(text), packets)
	args := []string{"-n", "-r", capture, "-X", "lua_script:" + script, "-T", "pdml", "-J", d.protocols()}
	// What no number says is in a packet, a user says.
	for _, parent := range [][2]string{
		{"udp", "1-65535"}, {"tcp", "1-65535"}, {"ip", "0,3,5,7-16,18-40,42-57,59-255"},
	} {
		if strings.Contains(text, `table.insert(tables, {parent = "`+parent[0]+`"`) {
			args = append(args, "-o", d.preference(text, parent[0])+":"+parent[1])
			d.given[parent[0]] = true
		}
	}
	cmd := exec.Command("tshark", args...)
	cmd.Env = append(os.Environ(), "HOME="+d.TempDir())
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		d.Fatal(err)
	}
	decoder := xml.NewDecoder(out)
	n := 0
	for d.wrong == "" {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			d.Fatalf("after %d packets: %v", n, err)
		}
		start, ok := token.(xml.StartElement)
		if !ok || start.Name.Local != "packet" {
			continue
		}
		var p pdml
		if err := decoder.DecodeElement(&p, &start); err != nil {
			d.Fatalf("packet %d: %v", n, err)
		}
		if n >= len(d.packets) {
			d.Fatal("more packets than there are")
		}
		d.packet(n, d.packets[n], &p)
		n++
	}
	_, _ = io.Copy(io.Discard, out)
	err = cmd.Wait()
	if text := complaints.String(); err != nil || strings.Contains(text, "lua") || strings.Contains(text, "Lua") {
		d.Fatalf("tshark %s: %v: %s", strings.Join(args, " "), err, text)
	}
	if n != len(d.packets) && d.wrong == "" {
		d.Fatalf("tshark shows %d of %d packets: %s", n, len(d.packets), &complaints)
	}
	d.Logf("%d packets, %d of them with other mistakes, %d with headers of the spec, %d fields, %d headers inside; "+
		"%d lengths that disagree, %d values that aren't allowed, %d headers cut off", n, d.skipped, d.shown, d.fields,
		d.inside, d.lengths, d.values, d.truncated)
}

// protocols are the names of the dissector's protocols.
func (d *dissected) protocols() string {
	out := d.name
	for _, parent := range []string{"udp", "tcp", "ip", "ethertype"} {
		out += " " + d.name + "_" + parent
	}
	return out
}

// preference is the name of the preference for a kind of header in front: the first one's protocol has no suffix.
func (d *dissected) preference(text, parent string) string {
	first := strings.Index(text, "table.insert(tables, ")
	if strings.HasPrefix(text[first:], `table.insert(tables, {parent = "`+parent+`"`) {
		return d.name + "." + parent
	}
	return d.name + "_" + parent + "." + parent
}

// reading is a field that tshark shows.
type reading struct {
	header, field string
	element
}

// leaves collects the fields of the spec, and the marks on them.
func (d *dissected) leaves(es []element, out *[]reading, marks map[string]int, at string) {
	for _, e := range es {
		path, ours := strings.CutPrefix(e.Name, d.name+".")
		header, field, _ := strings.Cut(path, ".")
		switch {
		case ours && strings.HasPrefix(path, "_"):
			marks[strings.TrimPrefix(path, "_")+" "+at]++
		case ours && field != "":
			*out = append(*out, reading{header, field, e})
			at = path
		}
		d.leaves(e.Fields, out, marks, at)
	}
}

// packet compares what tshark shows of a packet with what the model reads.
func (d *dissected) packet(n int, p *sent, shown *pdml) {
	var got []reading
	marks := map[string]int{}
	fail := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		for _, r := range got {
			text += fmt.Sprintf("\n%s.%s at %d, %d bytes: %s (%s)", r.header, r.field, r.Pos, r.Size, r.Show, r.Value)
		}
		d.wrong = fmt.Sprintf("packet %d of program %s: %s\n%x", n, p.program.Name.Value, text, p.data)
	}
	if text := luaError(shown.Protos); text != "" {
		fail("%s", text)
		return
	}
	for _, proto := range shown.Protos {
		if strings.HasPrefix(proto.Name, d.name) {
			d.leaves(proto.Fields, &got, marks, "")
			break // another one is in a packet inside of this one
		}
	}
	first := slices.IndexFunc(p.frame.Spans, func(sp *packet.Span) bool { return !sp.Header.Std })
	if first < 0 {
		return
	}
	var headers []*spec.Header
	var after []int
	for _, sp := range p.frame.Spans {
		headers, after = append(headers, sp.Header), append(after, sp.After)
	}
	farther := func(h *spec.Header) bool { return d.given[h.Name.Value] } // what is in it isn't the spec's
	if slices.ContainsFunc(headers[:first-1], farther) || !d.outerRight(p.data, headers[:first], headers[first]) {
		d.skipped++
		return // what Wireshark makes of it is its business
	}
	spans, problems := d.headers.Parse(p.data, headers, packet.Options{After: after})
	end := len(headers) // of those of the spec
	if n := slices.IndexFunc(headers[first:], func(h *spec.Header) bool { return h.Std }); n >= 0 {
		end = first + n
	}
	whole := len(spans) >= end
	want, inside := d.readings(p.data, spans[first:min(end, len(spans))]), spans[min(end, len(spans)):]
	same := 0
	for same < min(len(got), len(want)) && got[same].header == want[same].header &&
		got[same].field == want[same].field {
		if text := want[same].differs(&got[same]); text != "" {
			fail("%s.%s: %s", got[same].header, got[same].field, text)
			return
		}
		same++
	}
	d.fields += same
	cut := false // the last header is shown as far as it fits
	for m, count := range marks {
		switch {
		case strings.HasPrefix(m, "length"):
			d.lengths += count
		case strings.HasPrefix(m, "value"):
			d.values += count
		default:
			d.truncated += count
			cut = true
		}
	}
	p.right = p.right && whole && len(problems) == 0
	if len(got) > 0 {
		d.shown++
	}
	agrees := same == len(want) && same == len(got)
	other := !agrees && d.other(p, got, headers[:first], cut)
	if same == len(want) && whole || other {
		d.whole++
	}
	switch {
	case agrees && whole:
		// A header of the spec may be inside once more; what is wrong with that one isn't marked here.
		room, shows := d.room(p, headers)
		_, made := d.headers.Parse(p.data, headers[:end], packet.Options{After: after})
		_, ours := d.headers.Parse(p.data, headers[:end], packet.Options{After: append(after, room...)})
		value := d.marks(ours, marks, headers[first:end], fail)
		if len(ours) < len(made) && shows && !value && !cut {
			fail("neither a length nor what follows is marked: %v", made)
		}
		if len(problems) == 0 && d.reads(p, spans[:end]) {
			d.within(p, inside, d.earlier(p, headers[first-1], headers[first:end]), shown, fail)
		}
	case agrees, other:
	case !p.right && (same == len(got) || same == len(want) && cut):
	default:
		fail("%d of %d fields agree, %d are shown; %v", same, len(want), len(got), problems)
	}
}

// marks compares the lengths and values that are marked as wrong with those that the model finds wrong. It reports
// whether there is such a value.
func (d *dissected) marks(problems []packet.Problem, marks map[string]int, headers []*spec.Header,
	fail func(string, ...any)) (value bool) {
	want, marked := map[string]int{}, false
	for _, p := range problems {
		header, field, _ := strings.Cut(p.Field, ".")
		i := slices.IndexFunc(headers, func(h *spec.Header) bool { return h.Name.Value == header && !h.Std })
		if i < 0 {
			continue
		}
		for _, f := range headers[i].Fields {
			switch {
			case f.Name.Value != field:
			case strings.Contains(p.Text, "allow"):
				value = true
			case f.Counts != nil:
				want["length "+p.Field]++
			}
		}
	}
	for k, n := range want {
		if (marks[k] > 0) != (n > 0) && !value { // after a value that isn't allowed, what follows isn't looked for
			fail("%s is not marked", k)
		}
	}
	for k := range marks {
		marked = marked || strings.HasPrefix(k, "value ")
		if path, ok := strings.CutPrefix(k, "length "); ok && want[k] == 0 && strings.Count(path, ".") == 1 &&
			!d.hasElements(path) {
			fail("%s is marked", k)
		}
	}
	if value != marked {
		fail("a value that isn't allowed: %v, marked: %v", value, marked)
	}
	return value
}

func (d *dissected) hasElements(path string) bool {
	header, field, _ := strings.Cut(path, ".")
	return slices.ContainsFunc(d.headers.Header(header).Fields, func(f *spec.Field) bool {
		return f.Name.Value == field && len(f.Elements) > 0
	})
}

// other reports whether what is shown is what another program's stack reads; of the last header, if it is cut off, only
// which one it is.
func (d *dissected) other(p *sent, got []reading, front []*spec.Header, cut bool) bool {
	programs := slices.Clone(d.spec.Programs)
	for _, h := range d.spec.Headers { // one that no stack has is shown alone
		programs = append(programs, &spec.Program{
			Stack: []*spec.StackEntry{{Var: h.Name, Headers: []spec.Name{h.Name}}},
		})
	}
	for _, program := range programs {
		headers, after := slices.Clone(front), make([]int, len(front))
		at := map[string]int{}
		rest := got
		for _, e := range program.Stack {
			h := d.nextHeader(e, rest)
			if h == nil {
				continue
			}
			host := 0
			if e.After != nil {
				host = at[e.After.Value]
			}
			headers, after = append(headers, h), append(after, host)
			at[e.Var.Value] = len(headers)
			spans, _ := d.headers.Parse(p.data, headers, packet.Options{After: after})
			if len(spans) < len(headers) {
				if cut && !slices.ContainsFunc(rest, func(r reading) bool { return r.header != h.Name.Value }) {
					return true
				}
				break
			}
			want := d.readings(p.data, spans[len(spans)-1:])
			for i := range want {
				if i >= len(rest) || want[i].header != rest[i].header || want[i].field != rest[i].field ||
					want[i].differs(&rest[i]) != "" {
					return false
				}
			}
			rest = rest[len(want):]
		}
		if len(rest) == 0 {
			return true
		}
	}
	return false
}

// nextHeader is the header of an entry that a reading is of, if it is one of the spec.
func (d *dissected) nextHeader(e *spec.StackEntry, got []reading) *spec.Header {
	for _, h := range d.entry(e) {
		if !h.Std && len(got) > 0 && got[0].header == h.Name.Value {
			return h
		}
	}
	return nil
}

// outerRight reports whether the headers in front of those of the spec are what Wireshark takes them for.
func (d *dissected) outerRight(frame []byte, headers []*spec.Header, next *spec.Header) bool {
	spans, problems := d.headers.Parse(frame, headers, packet.Options{})
	if len(spans) < len(headers) {
		return false
	}
	for i, h := range append(slices.Clone(headers[1:]), next) {
		if !announced(frame, spans[i], h) {
			return false
		}
	}
	last := spans[len(spans)-1]
	for _, field := range []string{"mf", "fragment_offset"} {
		if pl := last.Place(field); pl != nil && pl.Get(frame).Int > 0 {
			return false // tshark waits for all fragments
		}
	}
	port := func(field string) uint64 { return last.Place(field).Get(frame).Int }
	if last.Place("src_port") != nil && port("src_port") == 0 && port("dst_port") == 0 {
		return false // ports that are no one's
	}
	for field, known := range map[string][]uint64{
		"protocol": {1, 2, 4, 6, 17, 41, 58}, "next_header": {1, 2, 4, 6, 17, 41, 58},
		"type": {0x0800, 0x8100, 0x86DD, 0x88A8},
	} {
		pl := last.Place(field)
		if pl != nil && slices.Contains(known, pl.Get(frame).Int) {
			return false // a protocol that Wireshark knows
		}
	}
	return !slices.ContainsFunc(problems, func(p packet.Problem) bool {
		return !strings.HasSuffix(p.Field, "checksum")
	})
}

// expected is a field as the model reads it.
type expected struct {
	header, field string
	pos, size     int
	integer       bool
	value         uint64
	bytes         string
}

func (x *expected) differs(r *reading) string {
	switch {
	case r.Pos != x.pos || r.Size != x.size:
		return fmt.Sprintf("it is at %d, %d bytes", x.pos, x.size)
	case x.integer:
		if v, err := strconv.ParseUint(r.Show, 0, 64); err != nil || v != x.value {
			return fmt.Sprintf("it is %d", x.value)
		}
	case r.Value != x.bytes:
		return "it is " + x.bytes
	}
	return ""
}

func (d *dissected) readings(frame []byte, spans []*packet.Span) (out []expected) {
	for _, sp := range spans {
		for _, pl := range sp.Places {
			if !pl.There || pl.Bits == 0 {
				continue
			}
			at := pl.Bit / 8
			x := expected{header: sp.Name(), field: pl.Field.Name.Value, pos: at, size: (pl.Bit+pl.Bits+7)/8 - at}
			v := pl.Get(frame)
			if x.integer, x.value = v.Bytes == nil, v.Int; !x.integer {
				x.bytes = hex.EncodeToString(v.Bytes)
			}
			out = append(out, x)
			out = append(out, elements(frame, sp, &pl)...)
		}
	}
	return out
}

// elements reads a list of elements, as RFC 8285 says.
func elements(frame []byte, sp *packet.Span, pl *packet.Place) (out []expected) {
	form := formOf(frame, sp, pl)
	if form == nil {
		return nil
	}
	at, end := pl.Bit/8, (pl.Bit+pl.Bits)/8
	add := func(what string, at, size int, integer bool, v int) {
		x := expected{
			header: sp.Name(), field: pl.Field.Name.Value + "." + what, pos: at, size: size, integer: integer,
			value: uint64(v),
		}
		if !integer {
			x.bytes = hex.EncodeToString(frame[at : at+size])
		}
		out = append(out, x)
	}
	for at < end {
		id := int(frame[at]) >> (8 - form.ID)
		if id == form.Pad {
			at++
			continue
		}
		head := form.ID / 4
		if id == form.Stop || at+head > end {
			break
		}
		size := int(frame[at+head-1])&(1<<form.ID-1) + form.Bias
		if at+head+size > end {
			break
		}
		add("id", at, 1, true, id)
		add("length", at+head-1, 1, true, size)
		if size > 0 {
			add("content", at+head, size, false, 0)
		}
		at += head + size
	}
	return out
}

// formOf is the form of a list's elements whose condition is true: of those in the specs, comparisons of one field.
func formOf(frame []byte, sp *packet.Span, pl *packet.Place) *spec.Elements {
	for _, e := range pl.Field.Elements {
		if e.When == nil || condition(frame, sp, e.When) != 0 {
			return e
		}
	}
	return nil
}

func condition(frame []byte, sp *packet.Span, e *spec.Expr) uint64 {
	arg := func(i int) uint64 { return condition(frame, sp, e.Args[i]) }
	switch e.Op {
	case spec.OpInt:
		return e.Int
	case spec.OpName:
		return sp.Place(e.Path[0].Value).Get(frame).Int
	case spec.OpAnd:
		return arg(0) & arg(1)
	case spec.OpEq, spec.OpNe, spec.OpGt:
		if map[spec.ExprOp]bool{
			spec.OpEq: arg(0) == arg(1), spec.OpNe: arg(0) != arg(1), spec.OpGt: arg(0) > arg(1),
		}[e.Op] {
			return 1
		}
		return 0
	}
	panic("a condition of elements that the test doesn't know")
}
