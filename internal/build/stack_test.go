package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// wide is a program that fans out, and in another rule writes a header of n integers again.
func wide(n int, more string) string {
	var fields []string
	for i := range n {
		fields = append(fields, fmt.Sprintf(`{name: "f%d", bits: 64}`, i))
	}
	return `name: "wide"` + more + `
headers: shim: fields: [{name: "id", bits: 24}]
headers: wide: fields: [` + strings.Join(fields, ", ") + `]
groups: all: {key: port: "u16", receiver: {from: "endpoint", to: "endpoint"}}
programs: p: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp", "wide", {inner: "ipv4"}]
	rules: [
		{when: "udp.dst_port == 7000", do: [
			{fan_out: {group: all: ["udp.src_port"], each: [{send: {from: "r.from", to: "r.to"}}]}},
		]},
		{do: [{push: shim: {id: 7}}, "pass"]},
	]
}
`
}

// A program that fans out is refused if its functions together need more stack than the oldest kernel has that is
// to run it, and only there. The message says so at the rule that takes most, and names the fan-out and what to do.
func TestStack(t *testing.T) {
	build := func(text string) error {
		t.Helper()
		file := filepath.Join(t.TempDir(), "spec.cue")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, list, err := Spec(context.Background(), file, Options{})
		if list.Len() > 0 {
			t.Fatal(list.Err())
		}
		return err
	}
	for _, text := range []string{wide(10, ""), wide(14, "\nkernel: \"6.9\"")} {
		if err := build(text); err != nil {
			t.Errorf("%v\n%s", err, text)
		}
	}
	for _, c := range []struct {
		text string
		hint []string
	}{
		{wide(14, ""), []string{"each receiver of the fan-out, most of it for line 10", `demand kernel: "6.9"`}},
		{wide(40, ""), []string{"the program's rules, most of it for line 12", "give the fan-out a program of its"}},
	} {
		err := build(c.text)
		var d *diag.Diagnostic
		if !errors.As(err, &d) || d.Code != "FR0904" || d.Pos.Line != 12 ||
			!strings.Contains(d.Message, "bytes of stack with its fan-out, and the kernel has 512") {
			t.Errorf("got %v\n%s", err, c.text)
			continue
		}
		for _, want := range c.hint {
			if !strings.Contains(d.Hint, want) {
				t.Errorf("the hint doesn't say %q: %s", want, d.Hint)
			}
		}
	}
}
