package glue

import (
	"bytes"
	"fmt"
	"go/format"
	"path"
	"slices"
	"strings"
	"text/template"
	"time"
	"unicode"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/templates"
)

// RenderOptions say what can't be seen in the plan.
type RenderOptions struct {
	Package string // name of the Go package; "" is DefaultPackage of the plan's name
	Object  string // file name of the object, which is embedded; "" is relay_bpfel.o
}

// DefaultPackage returns the name of the package for a relay: turn becomes turnrelay, and my_relay becomes myrelay.
func DefaultPackage(relay string) string {
	return strings.TrimSuffix(strings.ReplaceAll(relay, "_", ""), "relay") + "relay"
}

// Render returns the source of the Go package, formatted. The same plan gives the same bytes.
func Render(p *ir.Plan, opt RenderOptions) ([]byte, error) {
	if opt.Package == "" {
		opt.Package = DefaultPackage(p.Name)
	}
	if opt.Object == "" {
		opt.Object = "relay_bpfel.o"
	}
	if !isPackageName(opt.Package) {
		return nil, fmt.Errorf("%q can't be the name of a Go package: it takes lower-case letters and digits, and no "+
			"keyword", opt.Package)
	}
	// The name goes into a directive, where nothing can be quoted.
	if path.Base(opt.Object) != opt.Object || strings.ContainsFunc(opt.Object, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._-", r)
	}) {
		return nil, fmt.Errorf("%q can't be embedded under that name", opt.Object)
	}
	t, err := template.ParseFS(templates.FS, "relay.go.tmpl", "events.go.tmpl")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, newFile(p, opt)); err != nil {
		return nil, err
	}
	out, err := format.Source(b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("the generated Go of relay %q is wrong, which is a fault of fastrelay-gen: %w",
			p.Name, err)
	}
	return wrapComments(out), nil
}

// Lines have at most so many columns, with tabs that are so wide.
const columns, tab = 120, 4

// wrapComments breaks the lines of paragraphs of comments that are too wide: names of the spec may be long.
func wrapComments(source []byte) []byte {
	var out, paragraph []string
	indent := ""
	flush := func() {
		taken := (tab - 1) * len(indent)
		wide := func(line string) bool { return taken+len(line) > columns }
		if slices.ContainsFunc(paragraph, wide) {
			words := strings.Fields(strings.ReplaceAll(strings.Join(paragraph, " "), indent+"// ", ""))
			paragraph = nil
			line := indent + "//"
			for _, word := range words {
				if taken+len(line)+1+len(word) > columns && line != indent+"//" {
					paragraph = append(paragraph, line)
					line = indent + "//"
				}
				line += " " + word
			}
			paragraph = append(paragraph, line)
		}
		out = append(out, paragraph...)
		paragraph = nil
	}
	for line := range strings.SplitSeq(string(source), "\n") {
		text := strings.TrimLeft(line, "\t")
		of := line[:len(line)-len(text)]
		if !strings.HasPrefix(text, "// ") || strings.HasPrefix(text, "// Code generated") || of != indent {
			flush()
		}
		if strings.HasPrefix(text, "// ") && !strings.HasPrefix(text, "// Code generated") {
			indent = of
			paragraph = append(paragraph, line)
			continue
		}
		out = append(out, line)
	}
	flush()
	return []byte(strings.Join(out, "\n"))
}

// file is the data of the template.
type file struct {
	Package    string
	Relay      string
	Object     string
	Kernel     string
	Version    int
	Imports    []string
	Desc       string // a Go literal
	Settings   []setting
	Optional   bool // a setting is given by a pointer
	Programs   []program
	Tables     []table
	Sessions   []session
	Counters   []field
	Groups     []group
	Events     []event
	Congestion bool   // the relay is a congestion control
	Receiver   string // the interface that all receivers have, if an event may name several kinds; "": none
}

type setting struct {
	Field   string
	Name    string // in the spec
	Type    string
	Doc     []string
	Pointer bool // optional, and its zero value is a value like others
	Given   string
}

type program struct {
	Make    string // the expression that makes it
	Field   string
	Type    string
	Reason  string // type of its reasons
	Name    string
	Index   int
	Hook    string
	Paths   []string
	Reasons []reason
}

type reason struct {
	Const string
	Doc   string
	Above bool // the text has no room beside the constant
}

// field is a member of a Go struct.
type field struct {
	Field string
	Name  string
	Type  string
	Doc   string
	Lay   string // the statement that lays it out, or reads it
	From  string // of an event: an expression that takes the value from the runtime's
	Index int
}

// shape is a Go type whose values the runtime lays out as the kernel has them.
type shape struct {
	Type   string
	About  string
	Fields []field
	Single bool   // it is the type of its only member, and declared elsewhere
	Func   string // that lays values out
}

type table struct {
	Make  string
	Field string
	Type  string
	Name  string
	About string
	Key   shape
	Row   shape
	Bound bool // user space reads it
}

// group is a kind of group.
type group struct {
	Make     string
	Field    string
	Type     string // of the kind
	Name     string
	About    string
	Handle   string // of an open group
	Receiver string // of a receiver
	Change   string
	Key      shape
	Row      shape // of a receiver's values
	State    shape
}

// event is what is emitted.
type event struct {
	Type     string
	Name     string
	ID       int
	Lost     string // its field in Lost
	Receiver string // type of the receiver that it names, or each copy; "": it names none
	Of       string // the function that finds it
	Fields   []field
	Copy     string  // type of what it says of each copy; "": nothing
	Values   []field // of that
	Required bool
}

type session struct {
	Make   string
	Field  string
	Type   string // of the kind
	Handle string // of an open session
	Usage  string // type of its counters
	Name   string
	Ends   string
	Fields shape
	Rows   []field
}

func newFile(p *ir.Plan, opt RenderOptions) *file {
	d := Desc(p)
	f := &file{
		Package: opt.Package, Relay: p.Name, Object: opt.Object, Version: abi.Version,
		Kernel: fmt.Sprintf("%d.%d", p.Kernel.Major, p.Kernel.Minor), Desc: literal(d),
	}
	types := newScope("Settings", "Options", "Relay", "Load", "Counters")
	funcs := newScope()
	members := newScope("Close", "Counters", "DetachAll", "RefreshRoutes", "Runtime")
	if len(p.Events) > 0 {
		for _, name := range []string{"Event", "Events", "Lost"} {
			types.pick(name)
			members.pick(name)
		}
	}
	f.Congestion = slices.ContainsFunc(p.Programs, func(p *ir.Program) bool { return p.Hook == ir.Congestion })
	if f.Congestion {
		members.pick("Register")
		members.pick("Unregister")
	}
	for i, s := range p.Settings {
		f.Settings = append(f.Settings, newSetting(s, d.Settings[i]))
		f.Optional = f.Optional || f.Settings[i].Pointer
	}
	unique(len(f.Settings), func(i int) *string { return &f.Settings[i].Field })
	for i, prog := range p.Programs {
		name := exported(prog.Name)
		out := program{
			Field: members.pick(name), Type: types.pick(name + "Program"), Reason: types.pick(name + "Reason"),
			Name: prog.Name, Index: i, Hook: prog.Hook, Paths: prog.Paths,
		}
		for _, r := range prog.Reasons {
			out.Reasons = append(out.Reasons, reason{Const: types.pick(name + constant(r)), Doc: oneLine(r.Doc)})
		}
		width := 0 // of the column in which texts begin; the first constant has its type and value
		for i, r := range out.Reasons {
			n := len(r.Const)
			if i == 0 {
				n += len(" "+out.Reason) + len(" = iota")
			}
			width = max(width, n)
		}
		for i := range out.Reasons {
			r := &out.Reasons[i]
			r.Above = width+len(r.Doc) > 95
		}
		f.Programs = append(f.Programs, out)
	}
	for _, t := range p.Tables {
		if t.Session == nil {
			f.Tables = append(f.Tables, newTable(t, types, members, funcs))
		}
	}
	for _, s := range p.Sessions {
		f.Sessions = append(f.Sessions, newSession(s, types, members, funcs))
	}
	for _, g := range p.Groups {
		f.Groups = append(f.Groups, newGroup(g, types, members, funcs))
	}
	f.addEvents(p, types)
	for _, c := range p.Counters {
		f.Counters = append(f.Counters, field{Field: exported(c.Name), Name: c.Name, Index: c.Index})
	}
	unique(len(f.Counters), func(i int) *string { return &f.Counters[i].Field })
	f.Imports = imports(f)
	f.makes()
	return f
}

// makes writes the expressions that make what a relay has, in lines that aren't too wide.
func (f *file) makes() {
	widest := 0
	for _, name := range f.members() {
		widest = max(widest, len(name))
	}
	call := func(function, name string, args ...string) string {
		first := fmt.Sprintf("runtime.%s(rt, %q", function, name)
		rest := strings.Join(args, ", ")
		switch {
		case len(args) == 0:
			return first + ")"
		case 2*tab+widest+len(": "+first+", "+rest+"),") <= columns:
			return first + ", " + rest + ")"
		case 3*tab+len(rest+"),") <= columns:
			return first + ",\n" + rest + ")"
		}
		return first + ",\n" + strings.Join(args, ",\n") + ")"
	}
	for i, p := range f.Programs {
		f.Programs[i].Make = call("TypedProgram["+p.Reason+"]", p.Name)
	}
	for i, t := range f.Tables {
		function := "TypedTable"
		if t.Bound {
			function = "TypedReadTable"
		}
		f.Tables[i].Make = call(function, t.Name, t.Key.Func, t.Row.Func)
	}
	for i, s := range f.Sessions {
		f.Sessions[i].Make = call("TypedSessions", s.Name, s.Fields.Func, "new"+s.Usage)
	}
	for i, g := range f.Groups {
		f.Groups[i].Make = call("TypedGroups", g.Name, g.Key.Func, g.Row.Func, g.State.Func)
	}
}

// members are the fields of a relay.
func (f *file) members() (names []string) {
	for _, p := range f.Programs {
		names = append(names, p.Field)
	}
	for _, t := range f.Tables {
		names = append(names, t.Field)
	}
	for _, s := range f.Sessions {
		names = append(names, s.Field)
	}
	for _, g := range f.Groups {
		names = append(names, g.Field)
	}
	return names
}

// constant is the name of a reason in Go, after its program's. Names of kinds that a spec and the compiler both give
// are distinguished by the kind, so that none depends on what else a program does.
func constant(r *ir.Reason) string {
	name := exported(r.Name)
	switch r.Kind {
	case ir.Dropped:
		return "Drop" + name
	case ir.Declined:
		return "Declined" + name
	case ir.Punted:
		first, _, _ := strings.Cut(r.Name, "_")
		if slices.Contains([]string{"sent", "pass", "fault", "copy", "drop", "declined", "up"}, first) {
			return "Up" + name
		}
	}
	return name
}

func newSetting(s *ir.Setting, d abi.Setting) setting {
	out := setting{Field: exported(s.Name), Name: s.Name, Type: s.Type.Go()}
	if doc := oneLine(s.Doc); doc != "" {
		out.Doc = append(out.Doc, doc)
	}
	about := "It must be given."
	out.Given = ""
	if !d.Required {
		about = fmt.Sprintf("Left out: %v.", d.Default)
		switch s.Type.Kind {
		case ir.Mac:
			out.Given = " != nil"
		case ir.Addr:
			out.Given = ".IsValid()"
		default:
			out.Pointer, out.Given = true, " != nil"
		}
	}
	if s.Type.Kind == ir.Uint && (s.Min != 0 || s.Max != maxOf(s.Type.Bits)) {
		about += fmt.Sprintf(" %d to %d.", s.Min, s.Max)
	}
	out.Doc = append(out.Doc, fmt.Sprintf("%s is the setting %q. %s", out.Field, s.Name, about))
	slices.Reverse(out.Doc)
	return out
}

func newTable(t *ir.Table, types, scope, funcs scope) table {
	name := exported(t.Name)
	out := table{Field: scope.pick(name), Type: types.pick(name + "Table"), Name: t.Name, Bound: t.Bound()}
	kinds := map[string]string{
		"hash": "a hash table", "lru": "a hash table that forgets the rows used least recently", "array": "an array",
		"lpm": "a table of prefixes, the longest of which counts",
	}
	out.About = fmt.Sprintf("%s of %d rows", kinds[t.Kind], t.Size)
	if t.PerCPU {
		out.About += ", with values for each processor"
	}
	if out.Bound {
		out.About += ", which packets make and which end with sessions"
	}
	out.Row = newShape(types.pick(name+"Row"), "is a value of "+t.Name+".", funcs, t.Value.Members)
	out.Key = newKey(name+"Key", "is a key of "+t.Name+".", types, funcs, t.Key.Members)
	return out
}

func newSession(s *ir.Session, types, scope, funcs scope) session {
	name := exported(s.Name)
	out := session{
		Field: scope.pick(name), Type: types.pick(name + "Sessions"), Handle: types.pick(name + "Session"),
		Usage: types.pick(name + "Counters"), Name: s.Name,
	}
	var ends []string
	if s.Lifetime > 0 {
		ends = append(ends, fmt.Sprintf("%v after it was opened or refreshed", time.Duration(s.Lifetime)))
	}
	if s.Idle > 0 {
		ends = append(ends, fmt.Sprintf("%v after its last packet", time.Duration(s.Idle)))
	}
	out.Ends = strings.Join(ends, ", or ")
	var members []*ir.Member
	for _, f := range s.Fields {
		members = append(members, &ir.Member{Name: f.Name, Type: f.Type})
	}
	out.Fields = newShape(types.pick(name), fmt.Sprintf("is what a session %q is opened with.", s.Name), funcs, members)
	for i, f := range s.Fields {
		out.Fields.Fields[i].Doc = rangeDoc(f)
	}
	for i, r := range s.Rows {
		out.Rows = append(out.Rows, field{Field: exported(r.Table.Name), Name: r.Table.Name, Index: i})
	}
	unique(len(out.Rows), func(i int) *string { return &out.Rows[i].Field })
	return out
}

func rangeDoc(f *ir.Field) string {
	var parts []string
	for _, r := range f.Is {
		parts = append(parts, fmt.Sprintf("%#x to %#x", r.Min, r.Max))
	}
	return strings.Join(parts, ", ")
}

// newKey is the shape of a key: a struct, or its only member's type.
func newKey(name, about string, types, funcs scope, members []*ir.Member) shape {
	if len(members) > 1 {
		return newShape(types.pick(name), about, funcs, members)
	}
	t := members[0].Type
	return shape{
		Type: t.Go(), Single: true, Func: funcs.pick("lay" + name),
		Fields: []field{{Type: t.Go(), Lay: lay(t, "v", "v[:]")}},
	}
}

// newShape is the shape of a struct.
func newShape(name, about string, funcs scope, members []*ir.Member) shape {
	out := shape{Type: name, About: about, Func: funcs.pick("lay" + name)}
	for _, m := range members {
		if !m.Hidden {
			out.Fields = append(out.Fields, field{Field: exported(m.Name), Name: m.Name, Type: m.Type.Go()})
		}
	}
	unique(len(out.Fields), func(i int) *string { return &out.Fields[i].Field })
	i := 0
	for _, m := range members {
		if !m.Hidden {
			f := &out.Fields[i]
			f.Lay = lay(m.Type, "&v."+f.Field, "v."+f.Field+"[:]")
			i++
		}
	}
	return out
}

// unique makes the names of one struct differ.
func unique(n int, name func(i int) *string) {
	s := newScope()
	for i := range n {
		*name(i) = s.pick(*name(i))
	}
}

// codecs are the methods of runtime.Codec for types that have one.
var codecs = map[ir.Kind]string{
	ir.Bool: "Bool", ir.Mac: "MAC", ir.Addr: "Addr", ir.Endpoint: "AddrPort", ir.Prefix: "Prefix",
	ir.NextHop: "NextHop", ir.Ctr: "Counter", ir.Credit: "Credit", ir.Bucket: "Bucket", ir.Translation: "Translation",
}

// lay returns the statement that lays a value out or reads it, given its address and, if it is an array, a slice of it.
func lay(t ir.Type, address, slice string) string {
	one := t.One()
	switch {
	case t.Levels > 0 && one.Kind == ir.Uint:
		return fmt.Sprintf("runtime.Each(c, %s, runtime.Uint[%s])", slice, one.Go())
	case t.Levels > 0 && one.Kind == ir.Bytes:
		return fmt.Sprintf("runtime.Each(c, %s, func(c *runtime.Codec, b *%s) { c.Bytes(b[:]) })", slice, one.Go())
	case t.Levels > 0:
		return fmt.Sprintf("runtime.Each(c, %s, (*runtime.Codec).%s)", slice, codecs[one.Kind])
	case t.Kind == ir.Uint:
		return fmt.Sprintf("runtime.Uint(c, %s)", address)
	case t.Kind == ir.Bytes:
		return fmt.Sprintf("c.Bytes(%s)", slice)
	}
	return fmt.Sprintf("c.%s(%s)", codecs[t.Kind], address)
}

func maxOf(bits int) uint64 {
	if bits >= 64 {
		return ^uint64(0)
	}
	return 1<<bits - 1
}

// shapes are those of all keys, rows and fields.
func (f *file) shapes() (all []shape) {
	for _, t := range f.Tables {
		all = append(all, t.Key, t.Row)
	}
	for _, s := range f.Sessions {
		all = append(all, s.Fields)
	}
	for _, g := range f.Groups {
		all = append(all, g.Key, g.Row, g.State)
	}
	return all
}

// imports returns the packages that the file needs, those of the standard library first.
func imports(f *file) []string {
	need := map[string]bool{}
	use := func(typ string) {
		typ = typ[strings.Index(typ, "]")+1:]
		if strings.HasPrefix(typ, "net.") {
			need["net"] = true
		}
		if strings.HasPrefix(typ, "netip.") {
			need["net/netip"] = true
		}
	}
	for _, s := range f.Settings {
		use(s.Type)
	}
	for _, of := range f.shapes() {
		for _, m := range of.Fields {
			use(m.Type)
		}
	}
	need["context"] = len(f.Events) > 0
	for _, e := range f.Events {
		for _, m := range slices.Concat(e.Fields, e.Values) {
			use(m.Type)
		}
	}
	for name, used := range map[string]bool{
		"iter": len(f.Events) > 0, "log/slog": true, "time": true,
	} {
		if used {
			need[name] = true
		}
	}
	var out []string
	for name, needed := range need {
		if needed {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// oneLine makes a text of the spec fit for a comment, and not for one that tools listen to ("+build").
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || !unicode.IsPrint(r) && !unicode.IsSpace(r) {
			return ' '
		}
		return r
	}, s)
	return strings.TrimLeft(strings.Join(strings.Fields(s), " "), "+ ")
}
