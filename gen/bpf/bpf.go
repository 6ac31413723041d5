package bpf

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"text/template"
	"unicode"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/templates"
)

// File names of the C program and the header that it includes.
const (
	FileC      = "relay.bpf.c"
	FileHeader = "fastrelay.h"

	// what follows in FileHeader, if a plan needs it
	fileFanOut     = "fanout.h"
	fileFrames     = "xdp.h"
	fileCongestion = "congestion.h"
)

// Options are choices that don't change what the program does.
type Options struct {
	// Quote returns a line of a spec's text, to be shown in a comment above what it became; nil or "": none is shown.
	Quote func(file string, line int) string
}

// Source is a plan as C.
type Source struct {
	C      string // relay.bpf.c
	Header string // fastrelay.h
	// Lines has the position in the spec for each line of C (the first is Lines[0]); a zero Pos if there is none. It
	// is for clang.Options: with it the object's line information names lines of the spec.
	Lines []diag.Pos
}

// Files returns the source by file name.
func (s *Source) Files() map[string]string {
	return map[string]string{FileC: s.C, FileHeader: s.Header}
}

var tmpl = template.Must(template.New("").ParseFS(templates.FS, "*.c.tmpl"))

// Render turns a plan into C. It fails only if the plan contradicts itself, which is a fault of the compiler.
func Render(p *ir.Plan, opt Options) (*Source, error) {
	r := newRenderer(p, opt)
	data := r.file()
	if r.err != nil {
		return nil, fmt.Errorf("plan %q: %w", p.Name, r.err)
	}
	file := &c.Printer{}
	text := func(part string, data any) error {
		var b strings.Builder
		err := tmpl.ExecuteTemplate(&b, part, data)
		file.Text(b.String())
		return err
	}
	err := text("head", data)
	file.Tops(append(r.counted(), r.made.shared...))
	for i, prog := range data.Programs {
		err = errors.Join(err, text("program", prog))
		file.Tops(r.made.sections[i])
	}
	if data.Congestion != nil {
		err = errors.Join(err, text("congestion", data.Congestion))
	}
	if err != nil {
		return nil, fmt.Errorf("plan %q: %w", p.Name, err)
	}
	files := []string{FileHeader}
	if r.more {
		files = append(files, fileFanOut)
	}
	if r.frames() {
		files = append(files, fileFrames)
	}
	if data.Congestion != nil {
		files = append(files, fileCongestion)
	}
	var header strings.Builder
	for _, name := range files {
		h, err := templates.FS.ReadFile(name)
		if err != nil {
			return nil, err
		}
		header.Write(h)
	}
	return &Source{C: file.String(), Header: header.String(), Lines: file.Pos}, nil
}

// renderer holds what all parts of one rendering share.
type renderer struct {
	plan       *ir.Plan
	opt        Options
	names      map[string]bool // identifiers taken at file scope
	keys       map[*ir.Table]string
	vals       map[*ir.Table]string
	headers    map[string]*header // of packets, by their fields
	headerList []*header
	needs      map[string]string
	rowsAt     map[*ir.Row]int   // where in fr_rows rows are copied to
	learned    map[*ir.Table]int // of these, the tables that programs write to
	sameSize   int               // numbers that go with it
	frontSize  int               // bytes of the front of a packet that goes to many
	more       bool              // the second part of the header is needed
	checks     map[c.Key]string  // names of functions that check, by their trees
	tallies    *ir.Tallies
	reasons    []c.Ident               // by number
	bases      map[*ir.Program]c.Ident // where programs count; none: at the beginning, and nothing else does
	of         map[*c.Local]any        // what variables in C are of
	apart      map[*c.Func]bool        // functions that aren't given what is known of a packet (context.go)
	made       *unit
	err        error
}

func newRenderer(p *ir.Plan, opt Options) *renderer {
	r := &renderer{
		plan: p, opt: opt, names: map[string]bool{}, keys: map[*ir.Table]string{}, vals: map[*ir.Table]string{},
		needs: map[string]string{}, checks: map[c.Key]string{}, tallies: p.Tallies(), bases: map[*ir.Program]c.Ident{},
		of: map[*c.Local]any{}, apart: map[*c.Func]bool{},
	}
	r.made = &unit{renderer: r}
	return r
}

func (r *renderer) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// unique reserves an identifier at file scope. Two names of a spec can make one (a and b_c, a_b and c); the second gets
// a number.
func (r *renderer) unique(name string) string {
	for n, try := 2, name; ; n++ {
		if !r.names[try] && !meant()[try] {
			r.names[try] = true
			return try
		}
		try = fmt.Sprintf("%s_%d", name, n)
	}
}

// fileData is what the template shows.
type fileData struct {
	Spec     string
	Title    string
	About    []string
	Kernel   string
	Defines  []string
	Settings []settingData
	Headers  [][]string
	Structs  []structData
	Maps     []mapData
	Programs []programData

	Congestion *congestionData // nil: no program runs at tcp/congestion
}

// congestionData is what a congestion control does at each event of a socket.
type congestionData struct {
	Name   string
	Events []congestionEvent
}

type congestionEvent struct{ Event, Program string } // Program: "" if nothing is to be done

type settingData struct{ Doc, Decl string }

type structData struct {
	Name, Doc   string
	Members     []string
	Align, Size int
}

type mapData struct {
	Name  string
	Attrs []string
	Find  []string
}

type programData struct {
	Name, Hook string
	Paths      []string
}

func (r *renderer) file() *fileData {
	p := r.plan
	d := &fileData{
		Spec: comment(path.Base(p.Pos.File)),
		Title: comment(fmt.Sprintf("%s: %s, %s, %s", p.Name, count(len(p.Programs), "program"),
			count(len(p.Tables), "table"), count(len(p.Sessions), "session"))),
		Kernel: fmt.Sprintf("%d.%d", p.Kernel.Major, p.Kernel.Minor),
	}
	for _, s := range p.Settings {
		d.Settings = append(d.Settings, r.setting(s))
	}
	r.nameReasons()
	var rows int
	r.rowsAt, rows = copies(p)
	r.learned = learnedTables(p)
	for _, t := range p.Tables {
		r.table(t, d)
	}
	for _, g := range p.Groups {
		r.group(g, d)
	}
	for _, e := range p.Events {
		r.event(e, d)
	}
	for prog := range p.Flow() {
		d.Programs = append(d.Programs, r.program(prog))
	}
	r.made.passes()
	d.Congestion = congestion(p)
	d.Defines = append(d.Defines, fmt.Sprintf("FR_REASONS %d", max(r.tallies.Len(), 1)))
	if rows > 0 {
		d.Defines = append(d.Defines, fmt.Sprintf("FR_NEEDS_ROWS %d", rows))
	}
	if n := len(r.learned); n > 0 {
		d.Defines = append(d.Defines, fmt.Sprintf("FR_NEEDS_LEARNED %d", n))
	}
	if n := zeros(p); n > 0 {
		d.Defines = append(d.Defines, fmt.Sprintf("FR_NEEDS_ZEROS %d", n))
	}
	if p.Slots > 0 {
		d.Defines = append(d.Defines, fmt.Sprintf("FR_NEEDS_SLOTS %d", p.Slots),
			fmt.Sprintf("FR_USAGES %d", max(p.Usages, 1)))
	}
	if p.Shared > 0 {
		d.Defines = append(d.Defines, fmt.Sprintf("FR_NEEDS_SHARED %d", p.Shared))
	}
	if len(p.Counters) > 0 {
		d.Defines = append(d.Defines, fmt.Sprintf("FR_NEEDS_NAMED %d", len(p.Counters)))
	}
	for _, what := range slices.Sorted(maps.Keys(r.needs)) { // parts of the helpers' files that not every plan needs
		r.define(d, "FR_NEEDS_%s", strings.ToUpper(what))
	}
	if r.frames() {
		d.Defines = append(d.Defines, fmt.Sprintf("FR_DEVICES %d", abi.Devices))
	}
	r.oneToMany(d)
	for _, h := range r.headerList {
		if len(h.members) > 0 {
			d.Headers = append(d.Headers, h.text())
		}
	}
	return d
}

// nameReasons names what packets are counted by.
func (r *renderer) nameReasons() {
	for _, reason := range r.tallies.Reasons {
		r.reasons = append(r.reasons, c.Ident(r.unique("reason_"+ident(reason.Name))))
	}
	for p := range r.plan.Flow() {
		if len(r.plan.Programs) > 1 || r.frames() {
			r.bases[p] = c.Ident(r.unique(strings.ToUpper(p.Symbol())))
		}
	}
}

// counted declares it.
func (r *renderer) counted() []c.Top {
	why := &c.Enum{Doc: "What packets are counted by."}
	for i, name := range r.reasons[1:] {
		x := c.Constant{Name: name}
		if i == 0 {
			x.Value = c.Dec(1)
		}
		why.Constants = append(why.Constants, x)
	}
	if len(r.bases) == 0 {
		return []c.Top{why}
	}
	where := &c.Enum{Doc: "Where the counters of a program begin in fr_reasons."}
	for p := range r.plan.Flow() {
		where.Constants = append(where.Constants, c.Constant{Name: r.bases[p], Value: c.Dec(r.tallies.Base(p))})
	}
	return []c.Top{why, where}
}

// congestion says which program runs at which event of a socket.
func congestion(p *ir.Plan) *congestionData {
	d := &congestionData{Name: p.Name}
	some := false
	for _, event := range []string{"init", "ack", "loss", "release"} {
		e := congestionEvent{Event: event}
		for _, prog := range p.Programs {
			if slices.Contains(prog.On, event) {
				e.Program, some = shortName(prog.Name)+"_on", true
			}
		}
		d.Events = append(d.Events, e)
	}
	if !some {
		return nil
	}
	return d
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// ident makes a name of the spec safe as a part of an identifier. The language allows [a-z][a-z0-9_]* only; this holds
// whatever a plan says.
func ident(s string) string {
	return strings.Map(func(c rune) rune {
		if c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
			return c
		}
		return '_'
	}, s)
}

// comment makes text safe inside a C comment.
func comment(s string) string {
	s = strings.Map(func(c rune) rune {
		switch {
		case c == '\t':
			return ' '
		case c == '\\' || !unicode.IsPrint(c): // among others what changes the direction of text, or can't be seen
			return '?'
		}
		return c
	}, s)
	s = strings.ReplaceAll(s, "*/", "* /")
	s = strings.ReplaceAll(s, "/*", "/ *")
	for strings.Contains(s, "??") { // of three, replacing once leaves two
		s = strings.ReplaceAll(s, "??", "? ?")
	}
	return s
}
