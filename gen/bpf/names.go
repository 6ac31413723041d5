package bpf

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/templates"
)

// Names. In C a variable, a row and a member are called what the spec calls them, wherever that can be: a name that
// means something to the compiler, or to the helpers, gets a prefix, and one that is taken in a function gets a number
// there (package c).

var keywords = strings.Fields(
	`asm auto break case char const continue default do double else enum extern float for goto if inline int
	long register restrict return short signed sizeof static struct switch typedef typeof union unsigned void volatile
	while bool true false linux unix bpf i386 offsetof`)

// locals are names that functions use for what every relay has.
var locals = strings.Fields(
	`skb xdp pkt why data data_end lease now frame_len len csum err direct key val found list front same fan size clock
	event element form how i params translation quiet`)

// ours are the beginnings of names that have a meaning at file scope.
var ours = regexp.MustCompile(
	`^(bpf|fr|prog|tbl|key|val|grp|rcv|group|receiver|list|event|set|find|copy|reason|xdp|hdr|hop|fib|v|m|skb|new|` +
		`saved|headers)_|^(kind|rest|full|copies|event|credit|level|spent|admitted)\d+$`)

// atFileScope matches what the helpers define: macros, functions, and pointers to the kernel's.
var atFileScope = regexp.MustCompile(`(?m)^#define (\w+)|^\w[\w *]*?\b(\w+)\(|^static [^(]*\(\*(\w+)\)`)

// meant are the names that have a meaning to the compiler or to the helpers, which hold for members too.
var meant = sync.OnceValue(func() map[string]bool {
	taken := map[string]bool{}
	for _, name := range keywords {
		taken[name] = true
	}
	for _, file := range []string{FileHeader, fileFanOut, fileFrames, fileCongestion} {
		text, err := templates.FS.ReadFile(file)
		if err != nil {
			panic(err) // it is embedded
		}
		for _, m := range atFileScope.FindAllStringSubmatch(string(text), -1) {
			for _, name := range m[1:] {
				taken[name] = true
			}
		}
	}
	return taken
})

// safe is a name of a spec, with a prefix if it means something, or could be a function of the program's.
func (p *program) safe(want string) string {
	want = ident(want)
	if want == "" || meant()[want] || slices.Contains(locals, want) || ours.MatchString(want) || want[0] >= '0' &&
		want[0] <= '9' || strings.HasPrefix(want, p.short+"_") {
		want = "v_" + want
	}
	return want
}

// local is a new variable that is called what a spec says.
func (p *program) local(want string, typ c.Type) *c.Local { return c.NewLocal(p.safe(want), typ) }

// own is a new variable that is called as none of a spec is.
func own(want string, typ c.Type) *c.Local { return c.NewLocal(ident(want), typ) }

// What functions have a variable in C for, besides variables and rows of the plan and parts of a packet.
type (
	pointerTo struct{ base *ir.Var } // a place that begins at a variable offset
	savedAt   struct{ base *ir.Var } // likewise, in the front that was saved
)

// localOf is the variable in C of something; name makes it.
func (p *program) localOf(of any, name func() *c.Local) *c.Local {
	if p.locals[of] == nil {
		x := name()
		p.locals[of], p.renderer.of[x] = x, of
	}
	return p.locals[of]
}

// shortName is what the names of a program's functions begin with: its own name, unless that means something.
func shortName(name string) string {
	if name = ident(name); ours.MatchString(name + "_") {
		return abi.ProgramPrefix + name
	}
	return name
}

var numbered = regexp.MustCompile(`_\d+$`)

// plain is the name of a variable or a row without the number that tells it from others of the program.
func plain(name string) string { return numbered.ReplaceAllString(name, "") }

// varLocal is a variable of the plan.
func (p *program) varLocal(v *ir.Var) *c.Local {
	return p.localOf(v, func() *c.Local { return p.local(plain(v.Name), paramType(v)) })
}

// rowLocal is a row of the plan.
func (p *program) rowLocal(r *ir.Row) *c.Local {
	return p.localOf(r, func() *c.Local { return p.local(plain(r.Name), c.Pointer(c.StructType(p.vals[r.Table]))) })
}

// member names a member in C. A user's member may be called what a hidden one is.
func member(m *ir.Member) string {
	name := ident(m.Name)
	if m.Hidden && !meant()[name] {
		return name
	}
	switch name {
	case "slot", "gen", "receiver", "head", "count", "rows", "row":
		return "m_" + name
	}
	if meant()[name] || ours.MatchString(name) || strings.HasPrefix(name, "pad") {
		return "m_" + name
	}
	return name
}
