// Package binary builds binaries as they are shipped: static, and the same bytes in any folder.
package binary

import (
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Target is a system that binaries are built for.
type Target struct{ System, Processor string }

// Command is the package of fastrelay-gen.
const Command = "github.com/fastrelay/fastrelay-gen/cmd/fastrelay-gen"

// stamps are the variables that have the version: of fastrelay-gen, and of servers' metrics.
var stamps = []string{
	"github.com/fastrelay/fastrelay-gen/internal/cli.release",
	"github.com/fastrelay/fastrelay-gen/runtime/metrics.version",
}

// goCommand runs the go command for a target, and returns its standard output.
func goCommand(ctx context.Context, root string, t Target, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOOS="+t.System,
		"GOARCH="+t.Processor)
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s/%s: go %s: %w\n%s", t.System, t.Processor, args[0], err, problems.String())
	}
	return out, nil
}

// Build builds one binary of a package. Neither the folder nor the state of a repository is recorded in it: the version
// is.
func Build(ctx context.Context, root, version, binary, pkg string, t Target) error {
	flags := "-ldflags=-s -w"
	for _, name := range stamps {
		flags += " -X " + name + "=" + version
	}
	_, err := goCommand(ctx, root, t, "build", "-trimpath", "-buildvcs=false", flags, "-o", binary, pkg)
	if err != nil {
		return err
	}
	if t.System != "linux" { // on others, programs call the system through its libraries
		return nil
	}
	return static(binary)
}

// static returns an error for a Linux binary that needs a loader or a library.
func static(binary string) error {
	f, err := elf.Open(binary)
	if err != nil {
		return err
	}
	defer f.Close()
	libraries, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || len(libraries) > 0 {
			return fmt.Errorf("%s is not a static binary: it needs a loader and %q", binary, libraries)
		}
	}
	return nil
}

// Own returns the files of this module's own licenses by name, with slashes: the binaries contain the templates, whose
// licenses are in a folder of their own.
func Own(root string) (map[string][]byte, error) {
	tree, files := os.DirFS(root), map[string][]byte{}
	names, err := fs.Glob(tree, OwnFolder+"/*")
	if err != nil {
		return nil, err
	}
	for _, name := range append(names, "LICENSE") {
		if files[name], err = fs.ReadFile(tree, name); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{OwnFolder + "/BSD-2-Clause.txt", OwnFolder + "/GPL-2.0-only.txt"} {
		if files[name] == nil {
			return nil, fmt.Errorf("%s is not in %s: it has to be part of a release", name, root)
		}
	}
	return files, nil
}

// OwnFolder is the folder of the licenses of what is compiled for the kernel.
const OwnFolder = "LICENSES"

var licensePattern = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// Licenses returns the license texts of all modules that binaries of these packages consist of, and of Go.
func Licenses(ctx context.Context, root string, targets []Target, packages ...string) ([]byte, error) {
	modules := map[string]string{} // module and version -> folder
	for _, t := range targets {
		out, err := goCommand(ctx, root, t, append([]string{"list", "-deps", "-f",
			"{{if .Module}}{{if not .Module.Main}}{{.Module.Path}} {{.Module.Version}}\t{{.Module.Dir}}{{end}}{{end}}",
		}, packages...)...)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(out)) {
			if name, dir, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
				modules[name] = dir
			}
		}
	}
	goroot, err := goCommand(ctx, root, targets[0], "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	modules["The Go standard library"] = strings.TrimSpace(string(goroot))
	text := []byte("The binaries contain these modules, under their licenses.\n")
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		entries, err := os.ReadDir(modules[name])
		if err != nil {
			return nil, err
		}
		found := false
		for _, e := range entries {
			if e.IsDir() || !licensePattern.MatchString(e.Name()) {
				continue
			}
			content, err := os.ReadFile(filepath.Join(modules[name], e.Name()))
			if err != nil {
				return nil, err
			}
			found = true
			text = fmt.Appendf(text, "\n==== %s: %s\n\n%s\n", name, e.Name(), strings.TrimSpace(string(content)))
		}
		if !found {
			return nil, fmt.Errorf("module %s has no license file: it can't be part of a release", name)
		}
	}
	return text, nil
}
