package spectest_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// A test that fails shows the packet and what the program changed, field by field.
func TestFields(t *testing.T) {
	s, plan := edited(t, "dst: \"203.0.113.9\", hop_limit: 64", "dst: \"203.0.113.9\", hop_limit: 9")
	for _, o := range spectest.Model(context.Background(), s, plan) {
		if o.Status == spectest.Passed {
			continue
		}
		got := strings.Join(strings.Fields(o.Fields), " ")
		for _, want := range []string{
			"the packet, 51 bytes:", "channel_data bytes 42-45: number 16385 (0x4001), length 5",
			`payload bytes 46-50: "hello"`, "~ ipv4.ttl byte 22 57 -> 64", "~ ipv4.df byte 20, bit 1 0 -> 1",
			"- channel_data bytes 42-45 number 16385 (0x4001), length 5",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%q is missing in\n%s", want, o.Fields)
			}
		}
		return
	}
	t.Error("no test has failed")
}

// For the tests of all specs: what is shown as changed is empty if no byte is, and never if one is.
func TestChanges(t *testing.T) {
	files, err := filepath.Glob("../../golden/*/spec.cue")
	if err != nil || len(files) < 20 {
		t.Fatal(files, err)
	}
	more, err := filepath.Glob("../../examples/*/spec.cue")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, more...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, diags := spec.Load(file, text)
		if diags.Len() > 0 {
			t.Fatal(diags.Err())
		}
		plan, diags := gen.Compile(s)
		if diags.Len() > 0 {
			t.Fatal(diags.Err())
		}
		packets, diags := spectest.Packets(s, plan)
		if diags.Len() > 0 {
			t.Fatal(diags.Err())
		}
		for _, one := range packets {
			x, diags := spectest.Begin(s, plan, one.Test)
			if diags.Len() > 0 {
				t.Fatal(diags.Err())
			}
			f, err := x.Run(one.Packet)
			if err != nil {
				t.Fatal(err)
			}
			if f.Why == nil || f.Verdict == sim.VerdictSent && len(f.In) == 0 {
				t.Errorf("%s: %s: its headers or its reason aren't found", file, one.Test.Name.Value)
			}
			equal := bytes.Equal(one.Packet.Data, f.Packet.Data)
			if shown := len(f.Changes) > 0; shown == equal && f.Verdict != sim.VerdictDrop {
				t.Errorf("%s: %s: changes are shown: %t\n%x\n%x", file, one.Test.Name.Value, shown, one.Packet.Data,
					f.Packet.Data)
			}
			for _, c := range f.Copies {
				equal := bytes.Equal(one.Packet.Data, c.Packet.Data)
				if shown := len(c.Changes) > 0; c.Sent && shown == equal {
					t.Errorf("%s: %s: in a copy, changes are shown: %t", file, one.Test.Name.Value, shown)
				}
			}
		}
	}
}
