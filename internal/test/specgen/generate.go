package specgen

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// generator makes one spec. Declarations are written down when something needs them: a lookup declares its table, and
// so most of what a spec declares is used.
type generator struct {
	*rand.Rand
	headers  []*header // the user's
	groups   []*group
	settings []*setting
	tables   []*table
	sessions []*session
	state    *namer // tables (also those of sessions)
	counters []string
	tunnels  bool // some stacks go on inside of another packet

	levels     int // of priority; 0: none
	fans       []*fanGroup
	events     []*event
	eventNames *namer
}

// Generate makes a spec as CUE text. The same seed gives the same text.
func Generate(seed uint64) []byte {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0x59ec))}
	g.state, g.eventNames = g.namer(), g.namer()
	var w strings.Builder
	if congests(seed) {
		fmt.Fprintf(&w, "name: \"n%d\"\n", g.IntN(1000)) // a name of 15 characters at most
		g.rest(&w, g.congestion())
		return []byte(w.String())
	}
	fmt.Fprintf(&w, "name: %q\n", g.namer().next())
	if g.one(8) {
		fmt.Fprintf(&w, "kernel: %q\n", pick(g, []string{"5.17", "5.18", "6.1"}))
	}
	w.WriteString(g.priority())
	names := g.namer()
	for range g.IntN(4) {
		g.headers = append(g.headers, g.header(names.next()))
	}
	if g.one(4) {
		g.headers = append(g.headers, g.transport(names.next()))
	}
	if g.one(3) {
		g.headers = append(g.headers, g.loose(names.next()))
	}
	if g.tunnels = g.one(3); g.tunnels {
		g.headers = append(g.headers, g.tunnelHeader(names.next()))
	}
	g.settings = g.someSettings()
	var programs []string
	pnames := g.namer()
	for range 1 + g.IntN(2) {
		programs = append(programs, g.program(pnames.next()))
	}
	g.rest(&w, programs)
	return []byte(w.String())
}

// rest writes what was declared while the programs were made, and the programs.
func (g *generator) rest(w *strings.Builder, programs []string) {
	section(w, "headers", g.headers, (*header).text)
	section(w, "alternatives", g.groups, (*group).text)
	section(w, "settings", g.settings, (*setting).text)
	section(w, "tables", g.tables, (*table).text)
	section(w, "sessions", g.sessions, (*session).text)
	section(w, "groups", g.fans, (*fanGroup).text)
	section(w, "events", g.events, (*event).text)
	if len(g.events) > 0 && g.one(2) {
		fmt.Fprintf(w, "ring: %d\n", 4096<<g.IntN(6))
	}
	if g.one(4) {
		fmt.Fprintf(w, "translations: %d\n", g.between(1, 1000))
	}
	section(w, "programs", programs, func(s string) string { return s })
}

func section[T any](w *strings.Builder, name string, all []T, text func(T) string) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(w, "%s: {\n", name)
	for _, x := range all {
		fmt.Fprintf(w, "\t%s\n", strings.ReplaceAll(text(x), "\n", "\n\t"))
	}
	w.WriteString("}\n")
}

// one reports true once in n times.
func (g *generator) one(n int) bool { return g.IntN(n) == 0 }

// between returns a number from lo to hi.
func (g *generator) between(lo, hi int) int { return lo + g.IntN(hi-lo+1) }

func pick[T any](g *generator, list []T) T { return list[g.IntN(len(list))] }

// integer is a number of at most so many bits, often small or at a bound.
func (g *generator) integer(bits int) uint64 {
	top := maxOf(bits)
	switch g.IntN(6) {
	case 0:
		return top
	case 1:
		return uint64(g.IntN(3)) & top
	case 2:
		return g.Uint64N(16) & top
	case 3:
		return 1 << g.IntN(bits)
	}
	return g.Uint64() & top
}

func maxOf(bits int) uint64 { return ^uint64(0) >> (64 - bits) }

// literal writes an integer.
func (g *generator) literal(v uint64) string {
	if v > 9 && g.one(2) {
		return fmt.Sprintf("0x%X", v)
	}
	return strconv.FormatUint(v, 10)
}

// quoted writes an expression as CUE: a string, or a number or truth value as it is.
func (g *generator) quoted(expr string) string {
	if expr == "true" || expr == "false" {
		return pick(g, []string{expr, strconv.Quote(expr)})
	}
	if _, err := strconv.ParseUint(expr, 0, 64); err == nil && g.one(2) {
		return expr
	}
	return strconv.Quote(expr)
}

func (g *generator) quotedAll(exprs []string) string {
	var out []string
	for _, e := range exprs {
		out = append(out, g.quoted(e))
	}
	return strings.Join(out, ", ")
}

// braces writes the members of a struct: without braces if there is one, sometimes.
func (g *generator) braces(members []string) string {
	if len(members) == 1 && g.one(2) {
		return members[0]
	}
	return "{" + strings.Join(members, ", ") + "}"
}

var addresses = []string{
	"198.51.100.7", "192.0.2.1", "203.0.113.9", "10.255.0.1", "2001:db8::7", "2001:db8::1", "2001:db8:ffff::9",
	"fd00::ffff:ffff:ffff:ffff",
}

var prefixes = []string{
	"198.51.100.0/24", "192.0.2.0/25", "10.0.0.0/8", "0.0.0.0/0", "203.0.113.9/32", "2001:db8::/32", "2001:db8::1/128",
	"::/0", "fd00::/9", "2001:db8::/127",
}

var macs = []string{"02:00:00:00:00:01", "02:00:00:00:00:02", "ff:ff:ff:ff:ff:ff", "02:00:00:00:00:03"}

func (g *generator) hex(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(g.IntN(4))
	}
	return fmt.Sprintf("%x", b)
}
