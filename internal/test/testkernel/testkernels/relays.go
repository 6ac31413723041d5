package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/planfmt"
	"github.com/fastrelay/fastrelay-gen/internal/test/testkernel"
)

// everyRelay is the pattern of all examples and golden cases.
const everyRelay = "*/*"

// buildRelays compiles the specs of the examples and golden cases that a pattern matches into folders of the same
// names below out, and returns the text of each plan, by folder.
func buildRelays(ctx context.Context, root, out string, only []string) (map[string]string, error) {
	specs, plans := map[string]bool{}, map[string]string{}
	if slices.Contains(only, everyRelay) {
		only = []string{"examples/*", "golden/*"} // and not the internals' testdata; each has to be there
	}
	for _, pattern := range only {
		found, err := filepath.Glob(filepath.Join(root, pattern, testkernel.SpecName))
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("there is no %s/%s", pattern, testkernel.SpecName)
		}
		for _, file := range found {
			specs[file] = true
		}
	}
	for _, file := range slices.Sorted(maps.Keys(specs)) {
		r, list, err := build.Spec(ctx, file, build.Options{})
		if err == nil {
			err = list.Err()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		name, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return nil, err
		}
		if err := write(filepath.Join(out, name), file, r.Object()); err != nil {
			return nil, err
		}
		plans[name] = planfmt.Text(r.Plan)
	}
	return plans, nil
}

// write writes a relay's folder.
func write(dir, spec string, object []byte) error {
	text, err := os.ReadFile(spec)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files := map[string][]byte{testkernel.SpecName: text, testkernel.ObjectName: object}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
