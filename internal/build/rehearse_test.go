package build

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// A plan that contradicts itself is never written. The fault is one that strangers found: what is after a header
// of variable length that is popped was written at the place that it came from, and every packet was dropped.
func TestRehearse(t *testing.T) {
	const file = "../../golden/pop-variable/spec.cue"
	r, list, err := Plan(context.Background(), file)
	if err != nil || list.Len() > 0 {
		t.Fatal(err, list.Err())
	}
	if list, err := Rehearse(context.Background(), r.Spec, r.Plan); err != nil || list.Len() > 0 {
		t.Fatalf("a plan that is right: %v, %v", err, list.Err())
	}
	misplaced := false
	for s := range ir.AllStmts(r.Plan) {
		w := ir.RewriteOf(s)
		if w == nil || w.Resize == ir.InPlace || w.OldFront.Base == nil || w.NewFront.Base != nil {
			continue
		}
		for i := range w.Stores {
			if c := &w.Stores[i]; c.Off.Const >= w.L2 {
				c.Off.Base, misplaced = w.OldFront.Base, true
			}
		}
	}
	if !misplaced {
		t.Fatal("the plan has no place for the fault any more")
	}
	list, err = Rehearse(context.Background(), r.Spec, r.Plan)
	if err != nil || list.Len() != 1 {
		t.Fatalf("%v; messages: %v", err, list.Err())
	}
	d := list.All()[0]
	again, err := Rehearse(context.Background(), r.Spec, r.Plan)
	if err != nil || !reflect.DeepEqual(again.All(), list.All()) {
		t.Errorf("%v; on the same packets as before: %v", err, again.Err())
	}
	if d.Code != codeContradiction || d.Pos.File != file || !strings.Contains(line(t, d.Pos.File, d.Pos.Line), "pop:") {
		t.Errorf("the message isn't at the rule that pops: %v", d)
	}
	for _, part := range []string{"contradicts itself", "nothing is written"} {
		if !strings.Contains(d.Message, part) {
			t.Errorf("the message doesn't say %q: %s", part, d.Message)
		}
	}
	for _, part := range []string{"fault of fastrelay-gen", "fastrelay-gen version", "the packet 0"} {
		if !strings.Contains(d.Hint, part) {
			t.Errorf("the hint doesn't say %q: %s", part, d.Hint)
		}
	}
}

// The examples pass their rehearsals.
func TestRehearsals(t *testing.T) {
	for _, file := range examples(t) {
		r, list, err := Plan(context.Background(), file)
		if err != nil || list.Len() > 0 {
			t.Fatal(err, list.Err())
		}
		if list, err := Rehearse(context.Background(), r.Spec, r.Plan); err != nil || list.Len() > 0 {
			t.Errorf("%s: %v, %v", file, err, list.Err())
		}
	}
}

func examples(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../../examples/*/spec.cue")
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	return files
}

func line(t *testing.T, file string, n int) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")[n-1]
}
