package specgen

import (
	"fmt"
	"regexp"
	"strconv"
)

// words are what things are called: words that mean something in C, in Go, in CUE or in the code that is generated,
// between ordinary ones.
var words = []string{
	"auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern",
	"float", "for",
	"goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof", "static",
	"struct",
	"switch", "typedef", "typeof", "union", "unsigned", "void", "volatile", "while", "asm", "linux", "unix", "bool",
	"errno", "memcpy", "ntohs",
	"func", "go", "map", "chan", "defer", "fallthrough", "import", "interface", "package", "range", "select",
	"type", "var",
	"string", "error", "any", "nil", "iota", "make", "append", "uint64", "close", "main", "init", "context", "runtime",
	"netip",
	"let", "in", "div", "mod", "null",
	"data", "data_end", "ctx", "key", "value", "row", "size", "end", "front", "payload_len", "reason", "hop", "mtu",
	"state", "slot", "gen",
	"hop_to", "hop_peer", "to", "peer", "from", "lease", "load", "options", "settings", "relay", "index", "pad",
	"prefix", "addr", "port",
	"id", "seq", "flags", "kind", "label", "number", "mode", "level", "tag", "nonce", "zone", "way", "quota", "client",
	"server",
	"a", "b", "x", "y", "z1", "v_2", "v2", "v__2", "long_name_of_thirty_one_letters",
}

// reserved are words that an expression reads in their own way, and names of standard headers.
var reserved = map[string]bool{
	"setting": true, "skb": true, "r": true, "priority": true, "receiver": true, "copies": true,
	"payload": true, "true": true, "false": true, "before": true,
	"eth": true, "vlan": true, "ip": true, "ipv4": true, "ipv6": true, "udp": true, "tcp": true, "icmp": true,
	"icmpv6": true,
}

// namer hands out names that are distinct among themselves.
type namer struct {
	g    *generator
	used map[string]bool
}

func (g *generator) namer(taken ...string) *namer {
	n := &namer{g, map[string]bool{}}
	for _, t := range taken {
		n.used[t] = true
	}
	return n
}

func (n *namer) next() string {
	name := pick(n.g, words)
	for n.used[name] || reserved[name] {
		if name = pick(n.g, words); n.g.one(3) {
			name = fmt.Sprintf("n%d", n.g.IntN(1000))
		}
	}
	n.used[name] = true
	return name
}

var plainLabel = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

var cueWords = map[string]bool{
	"package": true, "import": true, "for": true, "in": true, "if": true, "let": true, "null": true, "true": true,
	"false": true, "div": true, "mod": true, "quo": true, "rem": true,
}

// label writes a name as the label of a CUE field.
func label(name string) string {
	if plainLabel.MatchString(name) && !cueWords[name] {
		return name
	}
	return strconv.Quote(name)
}
