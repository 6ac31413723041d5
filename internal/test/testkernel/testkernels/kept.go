package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/internal/test/kept"
	"github.com/fastrelay/fastrelay-gen/internal/test/testkernel"
)

const (
	module = "github.com/fastrelay/fastrelay-gen"
	guest  = "./examples/internal/guest"
)

// canaries are relays that always run, whatever was kept: one for sessions, one with copies, which old kernels refuse,
// and one whose headers move.
var canaries = []string{testkernel.TurnDir, "examples/sfu", "golden/family"}

// keys are what the results of relays depend on. Objects are reproducible: if a relay's spec, plan and object, the
// kernel and what checks them are those of an earlier run, so is the result. The compiler isn't among them, since the
// plan is; and the runtime is only for those relays that are attached to devices.
type keys struct {
	relays string // folder
	of     map[string]*kept.Key
}

func newKeys(ctx context.Context, root, relays string, plans map[string]string) (*keys, error) {
	compiler := func(path string) bool { return path == module+"/gen" || path == module+"/spec" }
	attached := func(path string) bool {
		return path != module+"/runtime/abi" &&
			(path == module+"/runtime" || strings.HasPrefix(path, module+"/runtime/") || path == module+"/gen/glue")
	}
	key := func(without func(string) bool) (*kept.Key, error) {
		k, err := kept.NewKey("kernels")
		if err == nil {
			err = k.AddPackages(ctx, root, ".", false, without, guest)
		}
		return k, err
	}
	whole, err := key(compiler)
	if err != nil {
		return nil, err
	}
	loaded, err := key(func(path string) bool { return compiler(path) || attached(path) })
	if err != nil {
		return nil, err
	}
	keys := &keys{relays: relays, of: map[string]*kept.Key{}}
	for relay, plan := range plans {
		checker := loaded
		if slices.Contains(testkernel.OnDevices, relay) {
			checker = whole
		}
		k, err := checker.Copy()
		if err != nil {
			return nil, err
		}
		k.Add("plan", []byte(plan))
		for _, name := range []string{testkernel.SpecName, testkernel.ObjectName} {
			if err := k.AddFile(name, filepath.Join(relays, relay, name)); err != nil {
				return nil, err
			}
		}
		keys.of[relay] = k
	}
	return keys, nil
}

// report runs the relays that have no result yet on a kernel, with the guest's arguments, and the canaries, and returns
// their report together with what was kept of the others.
func (keys *keys) report(kernel string, args []string,
	run func(relays string, args ...string) (*testkernel.Report, error)) (*testkernel.Report, error) {
	var known []testkernel.Line
	fresh := map[string]*kept.Key{} // those that run
	for relay, key := range keys.of {
		key, err := key.Copy()
		if err != nil {
			return nil, err
		}
		key.Add("kernel and arguments", []byte(kernel+" "+strings.Join(args, " ")))
		var lines []testkernel.Line
		text, ok := key.Load()
		if ok && !slices.Contains(canaries, relay) && json.Unmarshal(text, &lines) == nil {
			known = append(known, lines...)
			continue
		}
		fresh[relay] = key
	}
	some, err := os.MkdirTemp(filepath.Dir(keys.relays), "some-")
	if err != nil {
		return nil, err
	}
	for relay := range fresh {
		if err := os.CopyFS(filepath.Join(some, relay), os.DirFS(filepath.Join(keys.relays, relay))); err != nil {
			return nil, err
		}
	}
	report, err := run(some, args...)
	if err != nil || report == nil {
		return report, err
	}
	for _, relay := range slices.Sorted(maps.Keys(fresh)) {
		var lines []testkernel.Line
		for _, l := range report.Lines {
			if l.Spec == relay {
				lines = append(lines, l)
			}
		}
		if len(lines) == 0 || slices.ContainsFunc(lines, func(l testkernel.Line) bool { return l.Failed != "" }) {
			continue
		}
		text, err := json.Marshal(lines)
		if err == nil {
			err = fresh[relay].Save(text)
		}
		if err != nil {
			return report, fmt.Errorf("keep the result of %s: %w", relay, err)
		}
	}
	report.Lines = append(report.Lines, known...)
	if kept := len(keys.of) - len(fresh); kept > 0 {
		report.Kept = kept
	}
	return report, nil
}
