package build

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const example = "../../examples/paths/spec.cue"

func spoiled(t *testing.T) *Result {
	t.Helper()
	r, list, err := Spec(context.Background(), example, Options{})
	if err != nil || list.Len() > 0 {
		t.Fatal(err, list.Err())
	}
	return r
}

// check wants a refusal with this code, whose folder has these files.
func check(t *testing.T, err error, code string, files ...string) {
	t.Helper()
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		t.Fatalf("not a refusal: %v", err)
	}
	dir := t.TempDir()
	d := refusal.Diagnose(dir)
	if string(d.Code) != code {
		t.Errorf("code %s, not %s: %s", d.Code, code, d.Message)
	}
	if d.Pos.File != example || !d.Pos.IsValid() {
		t.Errorf("the message has no place in the spec: %v: %s", d.Pos, d.Message)
	}
	for _, name := range files {
		if _, err := os.Stat(filepath.Join(dir, "fastrelay-failure", name)); err != nil {
			t.Error(err)
		}
	}
	if !strings.Contains(d.Hint, "this is a fault of fastrelay-gen") {
		t.Errorf("hint: %s", d.Hint)
	}
}

// A fault planted in the generated C: clang refuses it, and the message is at the spec's line.
func TestClangRefuses(t *testing.T) {
	r := spoiled(t)
	r.Files[SourceName] = []byte(strings.Replace(string(r.Files[SourceName]), "(be8(data + 22) <= 1)", "(be8(dato + 22) <= 1)", 1))
	check(t, r.compile(context.Background()), "FR0901", "relay.bpf.c", "fastrelay.h", "plan.txt", "log.txt")
}

// The verifier refuses a read behind what was checked. This loads a program: it needs root.
func TestVerifierRefuses(t *testing.T) {
	r := spoiled(t)
	r.Files[SourceName] = []byte(strings.Replace(string(r.Files[SourceName]), "(be8(data + 22) <= 1)", "(be8(data + 2200) <= 1)", 1))
	if err := r.compile(context.Background()); err != nil {
		t.Fatal(err)
	}
	_, err := Verify(r)
	check(t, err, "FR0902", "relay.bpf.c", "relay.o", "plan.txt", "log.txt")
}
