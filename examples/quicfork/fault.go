package quicfork

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// A Fault is a fork without one hook, and the test that has to fail with it.
type Fault struct {
	Name, Test string
	file       string
}

// Faults returns what can be left out: patches that name a test, and what the changes in _fork/without disable.
func Faults() ([]Fault, error) {
	var faults []Fault
	for _, pattern := range []string{"_fork/patches/*.patch", "_fork/without/*.patch"} {
		files, err := fs.Glob(queue, pattern)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := queue.ReadFile(file)
			if err != nil {
				return nil, err
			}
			if test := testLine.FindSubmatch(text); test != nil {
				name := strings.TrimSuffix(path.Base(file), ".patch")
				faults = append(faults, Fault{Name: name, Test: string(test[1]), file: file})
			}
		}
	}
	return faults, nil
}

var testLine = regexp.MustCompile(`(?m)^Test: (\w+)$`)

// Fork returns the fork with the fault.
func (f Fault) Fork(upstream Tree) (Tree, error) {
	tree, err := fork(upstream, f.file)
	if err != nil || path.Base(path.Dir(f.file)) == "patches" {
		return tree, err
	}
	text, err := queue.ReadFile(f.file)
	if err != nil {
		return nil, err
	}
	if err := tree.Patch(string(text)); err != nil {
		return nil, fmt.Errorf("%s doesn't fit our own files: %w", f.Name, err)
	}
	return tree, nil
}
