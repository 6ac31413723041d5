package wire_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	. "github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// Names and their texts (§8.8).
func TestNames(t *testing.T) {
	for _, c := range []struct {
		track Track
		text  string
	}{
		{Track{Namespace{"example.net", "team2", "project_x"}, "report"}, "example.2enet-team2-project_x--report"},
		{Track{nil, "a"}, "--a"},
		{Track{Namespace{"a"}, ""}, "a--"},
		{Track{Namespace{"-", "--"}, "-.\x00\xff"}, ".2d-.2d.2d--.2d.2e.00.ff"},
	} {
		if got := c.track.String(); got != c.text {
			t.Errorf("%q is written %s, want %s", c.track.Namespace, got, c.text)
		}
		if got, err := ParseTrack(c.text); err != nil || !reflect.DeepEqual(got, c.track) {
			t.Errorf("%s is read as %q (%v)", c.text, got, err)
		}
		n := c.track.Namespace
		if got, err := ParseNamespace(n.String()); err != nil || !reflect.DeepEqual(got, n) {
			t.Errorf("%s is read as %q (%v)", n, got, err)
		}
	}
}

// What isn't the text of a name (§8.8.1).
func TestWrongNames(t *testing.T) {
	for _, s := range []string{
		"a", "a--.", "a--.2", "a--.2E", "a--.61", "a--b c", "a---b", "-a--b", "a-", "a--b.2", "a--.zz", "a--é",
		strings.Repeat("a-", MaxNamespaceFields) + "a--b",
		"a--" + strings.Repeat("b", MaxTrackName),
	} {
		if got, err := ParseTrack(s); err == nil {
			t.Errorf("%s is read as %q", s, got)
		}
	}
	for _, s := range []string{"a--b", "-", "a-", ".4"} {
		if got, err := ParseNamespace(s); err == nil {
			t.Errorf("namespace %s is read as %q", s, got)
		}
	}
}

func TestHasPrefix(t *testing.T) {
	n := Namespace{"foo", "bar"}
	for _, c := range []struct {
		prefix Namespace
		want   bool
	}{
		{nil, true}, {Namespace{"foo"}, true}, {n, true},
		{Namespace{"fo"}, false}, {Namespace{"foo", "bar", "x"}, false}, {Namespace{"foobar"}, false},
	} {
		if got := n.HasPrefix(c.prefix); got != c.want {
			t.Errorf("%v has the prefix %v: %v", n, c.prefix, got)
		}
	}
}

// These bytes stand for themselves (§8.8), and no others.
func TestLiterals(t *testing.T) {
	const literals = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
	for c := range 256 {
		field := string([]byte{byte(c)})
		want := field
		if !strings.Contains(literals, field) {
			want = fmt.Sprintf(".%02x", c)
		}
		if got := (Namespace{field}).String(); got != want {
			t.Errorf("%q is %q, want %q", field, got, want)
		}
		n, err := ParseNamespace(want)
		if err != nil || len(n) != 1 || n[0] != field {
			t.Errorf("%q comes back as %q (%v)", want, n, err)
		}
	}
}
