package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/test/kept"
	"github.com/fastrelay/fastrelay-gen/internal/test/testkernel"
)

// A relay that passed isn't run again on the same kernel with the same arguments, and its lines are in the report all
// the same; canaries and relays that failed are run each time.
func TestKept(t *testing.T) {
	t.Setenv("FASTRELAY_KEPT", t.TempDir())
	const right, wrong = "golden/bits", "golden/varint"
	canary := canaries[0]
	all := slices.Sorted(slices.Values([]string{right, wrong, canary}))
	k := &keys{relays: filepath.Join(t.TempDir(), "relays"), of: map[string]*kept.Key{}}
	for _, relay := range all {
		key, err := kept.NewKey("test")
		if err != nil {
			t.Fatal(err)
		}
		key.Add("relay", []byte(relay))
		k.of[relay] = key
		if err := os.MkdirAll(filepath.Join(k.relays, relay), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []struct {
		kernel, args string
		want         []string
	}{
		{"6.1", "-packets 5", all},
		{"6.1", "-packets 5", slices.Sorted(slices.Values([]string{wrong, canary}))},
		{"6.1", "-packets 6", all},
		{"6.12", "-packets 5", all},
	} {
		var ran []string
		run := func(relays string, _ ...string) (*testkernel.Report, error) {
			r := &testkernel.Report{}
			for _, relay := range all {
				if _, err := os.Stat(filepath.Join(relays, relay)); err != nil {
					continue
				}
				ran = append(ran, relay)
				line := testkernel.Line{Spec: relay}
				if relay == wrong {
					line.Failed = "it drops packets"
				}
				r.Lines = append(r.Lines, line)
			}
			return r, nil
		}
		report, err := k.report(c.kernel, []string{c.args}, run)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(ran, c.want) || report.Kept != len(all)-len(ran) {
			t.Errorf("%d: %v ran, want %v; %d kept", i, ran, c.want, report.Kept)
		}
		for _, relay := range all {
			if !slices.ContainsFunc(report.Lines, func(l testkernel.Line) bool { return l.Spec == relay }) {
				t.Errorf("%d: nothing of %s", i, relay)
			}
		}
	}
}
