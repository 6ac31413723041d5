package wire

import (
	"fmt"
	"strings"
)

// Namespace is a track namespace, or a prefix or suffix of one: 0 to 32 fields of at least one byte each (§2.4.1,
// §8.7).
type Namespace []string

// Track is a full track name: at most 4,096 bytes in all (§2.4.1). Names are bytes, not text.
type Track struct {
	Namespace Namespace
	Name      string
}

// HasPrefix reports whether n begins with all fields of prefix (§7.5).
func (n Namespace) HasPrefix(prefix Namespace) bool {
	if len(n) < len(prefix) {
		return false
	}
	for i, field := range prefix {
		if n[i] != field {
			return false
		}
	}
	return true
}

// String returns the namespace in the draft's format for people, "example.2enet-team2" (§8.8). Each namespace has one,
// so it is a key of maps too.
func (n Namespace) String() string {
	var b strings.Builder
	for i, field := range n {
		if i > 0 {
			b.WriteByte('-')
		}
		escape(&b, field)
	}
	return b.String()
}

// String returns the name in the draft's format for people, "example.2enet-team2--report" (§8.8). Each track has one,
// so it is a key of maps too.
func (t Track) String() string {
	var b strings.Builder
	b.WriteString(t.Namespace.String())
	b.WriteString("--")
	escape(&b, t.Name)
	return b.String()
}

// ParseTrack takes what String of a track returns, and nothing else (§8.8.1).
func ParseTrack(s string) (Track, error) {
	fields, name, ok := strings.Cut(s, "--")
	if !ok {
		return Track{}, fmt.Errorf("%q has no \"--\" between namespace and track name", s)
	}
	n, err := ParseNamespace(fields)
	if err != nil {
		return Track{}, err
	}
	name, err = unescape(name)
	if err != nil {
		return Track{}, err
	}
	t := Track{n, name}
	return t, t.check()
}

// ParseNamespace takes what String of a namespace returns, and nothing else (§8.8.1).
func ParseNamespace(s string) (Namespace, error) {
	if s == "" {
		return nil, nil
	}
	var n Namespace
	for field := range strings.SplitSeq(s, "-") {
		f, err := unescape(field)
		if err != nil {
			return nil, err
		}
		n = append(n, f)
	}
	return n, n.check()
}

func (n Namespace) check() error { return Track{Namespace: n}.check() }

// check returns the violation that a receiver would find (§8.7).
func (t Track) check() error {
	if len(t.Namespace) > MaxNamespaceFields {
		return violation("a namespace of %d fields; at most %d are allowed", len(t.Namespace), MaxNamespaceFields)
	}
	total := len(t.Name)
	for _, field := range t.Namespace {
		if field == "" {
			return violation("an empty field in a namespace")
		}
		total += len(field)
	}
	if total > MaxTrackName {
		return violation("a track name of %d bytes with its namespace; at most %d are allowed", total, MaxTrackName)
	}
	return nil
}

func literal(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}

func escape(b *strings.Builder, field string) {
	for i := range len(field) {
		if c := field[i]; literal(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(b, ".%02x", c)
		}
	}
}

func unescape(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '.' {
			high, low := -1, -1
			if i+2 < len(s) {
				high, low = strings.IndexByte(lowerHex, s[i+1]), strings.IndexByte(lowerHex, s[i+2])
			}
			if high < 0 || low < 0 {
				return "", fmt.Errorf("%q: a period has to be followed by two hexadecimal digits in lower case", s)
			}
			c = byte(high<<4 | low)
			if literal(c) {
				return "", fmt.Errorf("%q: %q stands for itself and may not be written in hexadecimal", s, c)
			}
			i += 2
		} else if !literal(c) {
			return "", fmt.Errorf("%q: %q has to be written in hexadecimal", s, c)
		}
		b.WriteByte(c)
	}
	return b.String(), nil
}

const lowerHex = "0123456789abcdef"
