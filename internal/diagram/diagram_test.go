package diagram

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fastrelay/fastrelay-gen/spec"
)

func name(s string) spec.Name { return spec.Name{Value: s} }

func bits(n string, b int) *spec.Field {
	return &spec.Field{Name: name(n), Kind: spec.FieldUint, Bits: b}
}

func check(t *testing.T, h *spec.Header, want string) {
	t.Helper()
	_, got, _ := strings.Cut(Header(h), "0 1\n") // after the ruler
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), got); diff != "" {
		t.Errorf("the picture differs (-want +got):\n%s", diff)
	}
}

func TestTwoFields(t *testing.T) {
	number := bits("number", 16)
	number.Is = &spec.Constraint{Op: spec.IsAnd, Args: []*spec.Constraint{
		{Op: spec.IsGe, Value: spec.Literal{Int: 0x4000}}, {Op: spec.IsLe, Value: spec.Literal{Int: 0x4FFF}},
	}}
	length := bits("length", 16)
	length.Counts = &spec.Counts{What: "payload", Unit: 1, Slack: 3}
	check(t, &spec.Header{Name: name("channel_data"), Fields: []*spec.Field{number, length}}, `
+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
|            number             |            length             |
+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+

number: 0x4000 to 0x4fff
length: length of what follows in bytes; up to 3 bytes of padding may follow
`)
}

func TestFieldOverRows(t *testing.T) {
	check(t, &spec.Header{
		Fields: []*spec.Field{bits("kind", 16), {Name: name("source"), Kind: spec.FieldBytes, Bytes: 6}},
	}, `
+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
|             kind              |                               |
+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+                               +
|                            source                             |
+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
`)
}

func TestSmallAndVariableFields(t *testing.T) {
	check(t, &spec.Header{Closed: true, Fields: []*spec.Field{
		bits("form", 1), bits("size", 7),
		{Name: name("id"), Kind: spec.FieldVarint},
		{
			Name: name("key"), Kind: spec.FieldSized, Max: 20,
			Size: &spec.Expr{Op: spec.OpName, Path: []spec.Name{name("size")}},
		},
	}}, `
+-+-+-+-+-+-+-+-+
|F|    size     |
+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/                id (QUIC varint, 1 to 8 bytes)                 /
+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/                 key (size bytes, at most 20)                  /
+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+

F: form
nothing may follow
`)
}

// A separator is as wide as the wider of its neighbours.
func TestShortLastRow(t *testing.T) {
	check(t, &spec.Header{Fields: []*spec.Field{bits("a", 32), bits("b", 8)}}, `
+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
|                               a                               |
+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
|       b       |
+-+-+-+-+-+-+-+-+
`)
}
