package bpf

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/templates"
)

// Names. In C a variable, a row and a member are called what the spec calls them, wherever that can be: a name that
// means something to the compiler, or to the helpers, gets a prefix, and one that is taken in a function gets a number.

var keywords = strings.Fields(
	`asm auto break case char const continue default do double else enum extern float for goto if inline int
	long register restrict return short signed sizeof static struct switch typedef typeof union unsigned void volatile
	while bool true false linux unix bpf i386 offsetof`)

// locals are names that functions use for what every relay has.
var locals = strings.Fields(
	`skb data data_end lease now len csum err direct key val found list front same fan size clock event
	element form how i params translation quiet`)

// ours are the beginnings of names that have a meaning at file scope.
var ours = regexp.MustCompile(
	`^(bpf|fr|prog|tbl|key|val|grp|rcv|group|receiver|list|event|set|find|copy|reason|hdr|hop|fib|v|m|skb|new|saved|` +
		`headers)_|^(kind|rest|full|copies|event|credit|level|spent|admitted)\d+$`)

// atFileScope matches what the helpers define: macros, functions, and pointers to the kernel's.
var atFileScope = regexp.MustCompile(`(?m)^#define (\w+)|^\w[\w *]*?\b(\w+)\(|^static [^(]*\(\*(\w+)\)`)

// meant are the names that have a meaning to the compiler or to the helpers, which hold for members too.
var meant = sync.OnceValue(func() map[string]bool {
	taken := map[string]bool{}
	for _, name := range keywords {
		taken[name] = true
	}
	for _, file := range []string{FileHeader, fileFanOut, fileCongestion} {
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

// names hands out the identifiers of one function.
type names map[string]bool

// own reserves an identifier of ours: those of a spec never begin as it does.
func (n names) own(want string) string {
	want = ident(want)
	for i, try := 2, want; ; i++ {
		if !n[try] {
			n[try] = true
			return try
		}
		try = fmt.Sprintf("%s_%d", want, i)
	}
}

// take reserves an identifier like the one that is wanted.
func (n names) take(want string) string {
	want = ident(want)
	if want == "" || meant()[want] || slices.Contains(locals, want) || ours.MatchString(want) || want[0] >= '0' &&
		want[0] <= '9' {
		want = "v_" + want
	}
	return n.own(want)
}

// take reserves an identifier that is none of the program's functions.
func (f *function) take(want string) string {
	if strings.HasPrefix(ident(want), f.prog.short+"_") {
		want = "v_" + want
	}
	return f.names.take(want)
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

// nameOf is what a variable is called in a function.
func (f *function) nameOf(v *ir.Var) string {
	if f.varNames[v] == "" {
		f.varNames[v] = f.take(plain(v.Name))
	}
	return f.varNames[v]
}

// freesNames writes a block, after which the names of variables that it has declared can be taken again.
func (f *function) freesNames(write func()) {
	before := maps.Clone(f.own)
	write()
	for v := range f.own {
		if !before[v] {
			delete(f.names, f.varNames[v])
		}
	}
}

// sharesNames has a function call things what another one does, with which it shares a structure.
func (f *function) sharesNames(g *function) {
	f.names, f.varNames, f.rowNames, f.ptrNames = g.names, g.varNames, g.rowNames, g.ptrNames
	f.savedNames, f.headerNames = g.savedNames, g.headerNames
}

// rowName is what a row is called in a function.
func (f *function) rowName(r *ir.Row) string {
	if f.rowNames[r] == "" {
		f.rowNames[r] = f.take(plain(r.Name))
	}
	return f.rowNames[r]
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
