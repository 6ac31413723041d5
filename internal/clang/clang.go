package clang

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/interrupt"
)

// Preferred and oldest versions of clang. Objects are reproducible for one version only. The README and
// docs/guide.md name the oldest one.
const (
	preferred = 19
	oldest    = 14
	newest    = 30 // names beyond are not looked for
)

// Names of the files in the folder that clang runs in.
const (
	sourceName = "relay.bpf.c"
	copyName   = "annotated.c" // the source with #line directives
	headerName = "fastrelay.h"
	objectName = "relay.o"
)

// Tool is a clang that can make BPF objects, and the strip that came with it.
type Tool struct {
	Clang   string // path
	Strip   string // path of llvm-strip
	Version string // "19.1.7"
	Major   int
}

// ErrNotFound is wrapped if no usable clang is installed.
var ErrNotFound = errors.New("no usable clang")

// Install is what to do about it.
const Install = "apt-get install clang-19 llvm-19"

// NotFoundError says why no clang will do. It wraps ErrNotFound.
type NotFoundError struct {
	Problems []string // of each clang that is there: "/usr/bin/clang is version 11.0.1"
}

func (e *NotFoundError) Error() string {
	if len(e.Problems) == 0 {
		return fmt.Sprintf("no clang was found, and version %d or newer is needed", oldest)
	}
	return fmt.Sprintf("no clang here will do: %s; version %d or newer is needed", strings.Join(e.Problems, "; "),
		oldest)
}

func (e *NotFoundError) Unwrap() error { return ErrNotFound }

// Diagnostic is the message for a person.
func (e *NotFoundError) Diagnostic() *diag.Diagnostic {
	return &diag.Diagnostic{Code: codeNotFound, Message: e.Error(), Hint: "on Debian and Ubuntu: " + Install}
}

var versionPattern = regexp.MustCompile(`clang version (\d+)\.(\d+)\.(\d+)`)

// Find looks for clang-19, then for other versions from the newest to the oldest that will do, then for plain clang.
// If none will do, the error is a *NotFoundError.
func Find(ctx context.Context) (*Tool, error) {
	names := []string{fmt.Sprint("clang-", preferred)}
	for n := newest; n >= oldest; n-- {
		if n != preferred {
			names = append(names, fmt.Sprint("clang-", n))
		}
	}
	missing := &NotFoundError{}
	for _, name := range append(names, "clang") {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		tool, err := probe(ctx, path)
		if err == nil {
			return tool, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		missing.Problems = append(missing.Problems, err.Error())
	}
	return nil, missing
}

// probe asks a clang for its version, and finds its llvm-strip.
func probe(ctx context.Context, path string) (*Tool, error) {
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w", path, err)
	}
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return nil, fmt.Errorf("%s --version says no version of clang", path)
	}
	t := &Tool{Clang: path, Version: fmt.Sprintf("%s.%s.%s", m[1], m[2], m[3])}
	if t.Major, err = strconv.Atoi(string(m[1])); err != nil || t.Major < oldest {
		return nil, fmt.Errorf("%s is version %s", path, t.Version)
	}
	home := path
	if real, err := filepath.EvalSymlinks(path); err == nil {
		home = real
	}
	for _, name := range []string{
		fmt.Sprint("llvm-strip-", t.Major), filepath.Join(filepath.Dir(home), "llvm-strip"), "llvm-strip",
	} {
		if t.Strip, err = exec.LookPath(name); err == nil {
			return t, nil
		}
	}
	return nil, fmt.Errorf("%s has no llvm-strip beside it (it comes with llvm-%d)", path, t.Major)
}

// Options choose among objects.
type Options struct {
	Tool *Tool  // nil: what Find finds
	CPU  string // instruction set, "v2" or "v3"; "": v3, which Linux knows from 5.1 on
	Warn bool   // treat warnings as errors, for tests
	// the position in the spec of each line of the source, for the object's line information; nil: none
	Lines []diag.Pos
	// the oldest one that has to run the object, such as {5, 15}: how much stack it has room for; zero: any
	Kernel [2]int
}

// Error is clang's refusal of generated C.
type Error struct {
	Log     string // what clang wrote
	Version string
	Err     error
}

func (e *Error) Error() string {
	line, _, _ := strings.Cut(strings.TrimSpace(e.Log), "\n")
	return fmt.Sprintf("clang %s refuses the generated C: %v: %s", e.Version, e.Err, line)
}

func (e *Error) Unwrap() error { return e.Err }

// Compile makes an object of a program and its header, and returns it with clang's version. A refusal is an *Error,
// a program that needs too much stack a *StackError.
func Compile(ctx context.Context, source, header string, opt Options) (object []byte, version string, err error) {
	tool := opt.Tool
	if tool == nil {
		if tool, err = Find(ctx); err != nil {
			return nil, "", err
		}
	}
	unit := &Unit{Source: source, Header: header, Lines: opt.Lines}
	file := kept(tool, source, header, opt)
	if file != "" {
		if unit.Object, err = os.ReadFile(file); err != nil {
			unit.Object = nil
		}
	}
	if unit.Object == nil {
		if err := unit.compile(ctx, tool, opt); err != nil {
			return nil, tool.Version, err
		}
		if file != "" {
			keep(file, unit.Object)
			if opt.Warn { // it is the same without
				opt.Warn = false
				keep(kept(tool, source, header, opt), unit.Object)
			}
		}
	}
	if err := unit.checkStack(opt.Kernel); err != nil {
		return nil, tool.Version, err
	}
	return unit.Object, tool.Version, nil
}

// stackRefusal is what clang says of a function that needs more than the whole stack.
const stackRefusal = "BPF stack limit"

// compile runs clang.
func (u *Unit) compile(ctx context.Context, tool *Tool, opt Options) error {
	defer interrupt.Hold(ctx)()
	dir, err := os.MkdirTemp("", "fastrelay-clang-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	files, args := inputs(u.Source, u.Header, opt)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	log, err := run(ctx, dir, tool.Clang, args...)
	var stack *StackError
	if err != nil && strings.Contains(log, stackRefusal) { // once more, to see by how much
		_, pos := u.firstError(log)
		stack = &StackError{Pos: pos}
		log, err = run(ctx, dir, tool.Clang, append(args, "-mllvm", "-bpf-stack-size=16384")...)
		if err != nil && ctx.Err() == nil {
			return stack // clang 17 and older don't say
		}
	}
	if err != nil {
		return failure(ctx, tool, log, err)
	}
	if log, err := run(ctx, dir, tool.Strip, "-g", objectName); err != nil {
		return fmt.Errorf("%s: %w: %s", tool.Strip, err, log)
	}
	if u.Object, err = os.ReadFile(filepath.Join(dir, objectName)); err != nil || stack == nil {
		return err
	}
	return cmp.Or(u.checkStack(opt.Kernel), error(stack))
}

// inputs are what clang is given: files by name, and its arguments.
func inputs(source, header string, opt Options) (files map[string]string, args []string) {
	compiled, files := sourceName, map[string]string{sourceName: source, headerName: header}
	if opt.Lines != nil {
		compiled, files[copyName] = copyName, annotate(source, opt.Lines)
	}
	cpu := opt.CPU
	if cpu == "" {
		cpu = "v3"
	}
	args = []string{
		"-O2", "-g", "--target=bpfel", "-mcpu=" + cpu, "-std=gnu11", "-nostdinc", "-fno-strict-aliasing", "-fno-ident",
		"-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-sign-compare", "-Wno-address-of-packed-member",
		"-Wno-tautological-compare",
		// Any folder by another name, and that name taken off: files are called what they are called in #line.
		"-fdebug-compilation-dir=/fastrelay", "-ffile-prefix-map=/fastrelay=", "-fno-color-diagnostics",
		"-c", compiled, "-o", objectName,
	}
	if opt.Warn {
		args = append(args, "-Werror")
	}
	return files, args
}

// Digest is a hash of all that an object depends on, besides the version of clang.
func Digest(source, header string, opt Options) string {
	files, args := inputs(source, header, opt)
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(h, "%s %d\n%s", name, len(files[name]), files[name])
	}
	fmt.Fprintf(h, "%q", args)
	return fmt.Sprintf("sha256:%x", h.Sum(nil))
}

func failure(ctx context.Context, tool *Tool, log string, err error) error {
	var exit *exec.ExitError
	if ctx.Err() != nil || !errors.As(err, &exit) {
		return fmt.Errorf("%s: %w", tool.Clang, errors.Join(ctx.Err(), err))
	}
	return &Error{Log: log, Version: tool.Version, Err: err}
}

// run runs a command in a folder, without what the environment may set.
func run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TMPDIR=" + dir}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}
