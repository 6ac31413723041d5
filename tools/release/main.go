// Command release builds what a release consists of: static binaries of fastrelay-gen for each system, the licenses
// that come with them, and the checksums of all. The same tree, version and Go release give the
// same bytes, in any folder.
package main

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

// target is a system that binaries are built for.
type target struct{ system, processor string }

var targets = []target{
	{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"},
}

const (
	command = "github.com/fastrelay/fastrelay-gen/cmd/fastrelay-gen"
	stamp   = "github.com/fastrelay/fastrelay-gen/internal/cli.release"

	sumsName    = "SHA256SUMS"
	othersName  = "THIRD_PARTY_LICENSES"
	licenseName = "LICENSE"
)

func main() {
	version := flag.String("version", "", "the version, such as v0.1.0")
	out := flag.String("o", "dist", "the folder to write to; it must not hold anything but an earlier release")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := release(ctx, ".", *version, *out, targets); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		stop()
		os.Exit(1)
	}
}

// release builds all targets from the tree in root.
func release(ctx context.Context, root, version, out string, targets []target) error {
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return fmt.Errorf("%q is not a version: say for example make release VERSION=v0.1.0", version)
	}
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	if err := empty(out); err != nil {
		return err
	}
	var names []string
	for _, t := range targets {
		name := fmt.Sprintf("fastrelay-gen_%s_%s_%s", version, t.system, t.processor)
		if t.system == "windows" {
			name += ".exe"
		}
		if err := build(ctx, root, version, filepath.Join(out, name), t); err != nil {
			return err
		}
		names = append(names, name)
	}
	license, err := os.ReadFile(filepath.Join(root, licenseName))
	if err != nil {
		return err
	}
	others, err := licenses(ctx, root, targets)
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{licenseName: license, othersName: others} {
		if err := os.WriteFile(filepath.Join(out, name), text, 0o644); err != nil {
			return err
		}
		names = append(names, name)
	}
	return sums(out, names)
}

// empty makes the folder, or removes an earlier release from it. Anything else in it is an error.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return err
	}
	known := []string{sumsName, othersName, licenseName}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "fastrelay-gen_v") && !slices.Contains(known, e.Name()) {
			return fmt.Errorf("%s holds %s, which is not part of a release: choose another folder", dir, e.Name())
		}
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// goCommand runs the go command for a target, and returns its standard output.
func goCommand(ctx context.Context, root string, t target, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOOS="+t.system,
		"GOARCH="+t.processor)
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s/%s: go %s: %w\n%s", t.system, t.processor, args[0], err, problems.String())
	}
	return out, nil
}

// build builds one binary. Neither the folder nor the state of a repository is recorded in it: the version is.
func build(ctx context.Context, root, version, binary string, t target) error {
	_, err := goCommand(ctx, root, t, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -X "+stamp+"="+version,
		"-o", binary, command)
	if err != nil {
		return err
	}
	if t.system != "linux" { // on others, programs call the system through its libraries
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

var licensePattern = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// licenses returns the license texts of all modules that the binaries consist of, and of Go.
func licenses(ctx context.Context, root string, targets []target) ([]byte, error) {
	modules := map[string]string{} // module and version -> folder
	for _, t := range targets {
		out, err := goCommand(ctx, root, t, "list", "-deps",
			"-f",
			"{{if .Module}}{{if not .Module.Main}}{{.Module.Path}} {{.Module.Version}}\t{{.Module.Dir}}{{end}}{{end}}",
			command)
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

// sums writes the checksums of all files, as sha256sum does.
func sums(dir string, names []string) error {
	slices.Sort(names)
	var text []byte
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		text = fmt.Appendf(text, "%x  %s\n", sha256.Sum256(content), name)
	}
	return os.WriteFile(filepath.Join(dir, sumsName), text, 0o644)
}
