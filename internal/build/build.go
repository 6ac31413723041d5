// Package build is the pipeline from a spec to files: load, compile, rehearse in the model, render, call clang. Its
// result is a map of file names to content; [Write] is the only place that writes, and [Check]
// compares without writing.
package build

import (
	"context"
	"errors"
	"fmt"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/planfmt"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Names of the files that a build writes.
const (
	SourceName  = "relay.bpf.c"
	HelpersName = "fastrelay.h"
	ObjectName  = "relay_bpfel.o"
	PackageName = "relay.go"
)

// Options of a build.
type Options struct {
	Dir string // where to write; empty: a folder beside the spec with the package's name
	// of the generated Go; empty: the folder's name if Dir is given and a package may have it, else
	// the spec's name and "relay"
	Package string
	Reuse   bool // if the folder has what a build would write, take its object, and run neither clang nor the model
}

// Result is what a build makes, before anything is written.
type Result struct {
	File     string // the spec, as given
	Spec     *spec.Spec
	Plan     *ir.Plan
	Dir      string
	Package  string
	Files    map[string][]byte // by name, without the manifest
	SpecHash string            // SHA-256 of the spec's text
	Clang    string            // version
	Lines    []diag.Pos        // of each line of the C, its place in the spec if it has one
	Warnings *diag.List        // about the spec
	Current  bool              // the folder has these files already (see Options.Reuse)

	text   []byte // of the spec
	source string // hash of what clang is given
}

// Object returns the compiled object.
func (r *Result) Object() []byte { return r.Files[ObjectName] }

// Plan loads and compiles the spec in a file, without clang. Mistakes in the spec are in the list; the error is of the
// machine (the file can't be read).
func Plan(ctx context.Context, path string) (*Result, *diag.List, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	r := &Result{File: path, SpecHash: hash(text), Files: map[string][]byte{}, text: text}
	s, list := spec.LoadWithin(ctx, path, text)
	if list.Len() > 0 {
		return nil, list, nil
	}
	r.Spec = s
	if r.Plan, list = gen.Compile(s); list.Len() > 0 {
		return nil, list, nil
	}
	r.Warnings = list.Warnings()
	return r, list, nil
}

// Spec runs the whole pipeline on the spec in a file, and writes nothing. Mistakes in the spec are in the list; the
// error is of the machine or of the options.
func Spec(ctx context.Context, path string, opt Options) (*Result, *diag.List, error) {
	r, list, err := Plan(ctx, path)
	if err != nil || list.Len() > 0 {
		return nil, list, err
	}
	if err := r.place(opt); err != nil {
		return nil, nil, err
	}
	if err := r.render(); err != nil {
		return nil, Unwritable(r.Plan, err), nil
	}
	if opt.Reuse && r.reuse(ctx) {
		return r, list, nil
	}
	rehearsed := make(chan error, 1)
	wrong := &diag.List{}
	go func() {
		found, err := Rehearse(ctx, r.Spec, r.Plan)
		if found != nil {
			wrong = found
		}
		rehearsed <- err
	}()
	err = r.compile(ctx)
	if failed := <-rehearsed; failed != nil || wrong.Len() > 0 { // says more of a wrong plan than clang does
		return nil, wrong, failed
	}
	if err != nil {
		return nil, nil, err
	}
	return r, list, nil
}

// Source makes the C of a plan, with the lines of the spec's text as comments.
func Source(plan *ir.Plan, file string, text []byte) (*bpf.Source, error) {
	lines := strings.Split(string(text), "\n")
	return bpf.Render(plan, bpf.Options{Quote: func(from string, line int) string {
		if from != file || line < 1 || line > len(lines) {
			return ""
		}
		return strings.TrimSpace(lines[line-1])
	}})
}

// render makes the C and the Go.
func (r *Result) render() error {
	src, err := Source(r.Plan, r.File, r.text)
	if err != nil {
		return err
	}
	for name, content := range src.Files() {
		r.Files[name] = []byte(content)
	}
	r.Lines = src.Lines
	r.source = clang.Digest(string(r.Files[SourceName]), string(r.Files[HelpersName]), clang.Options{Lines: r.Lines})
	r.Files[PackageName], err = glue.Render(r.Plan, glue.RenderOptions{Package: r.Package, Object: ObjectName})
	return err
}

// reuse reports whether the folder has what this build would write, and takes the object from there. That is so if
// the manifest says that the object was made of the same C by the same clang, and every file is what it lists. Without
// a clang on this machine, the one that made the object will do.
func (r *Result) reuse(ctx context.Context) bool {
	old, err := readManifest(r.Dir)
	if err != nil || old.spec != r.SpecHash || old.source != r.source {
		return false
	}
	if tool, err := clang.Find(ctx); err == nil && tool.Version != old.clang || ctx.Err() != nil {
		return false
	}
	object, err := os.ReadFile(filepath.Join(r.Dir, ObjectName))
	if err != nil || hash(object) != old.files[ObjectName] {
		return false
	}
	r.Files[ObjectName], r.Clang = object, old.clang
	d, err := Check(r)
	r.Current = err == nil && d.Same()
	return r.Current
}

// kernel is the oldest kernel that has to take the object.
func (r *Result) kernel() [2]int { return [2]int{r.Plan.Kernel.Major, r.Plan.Kernel.Minor} }

// compile runs clang on the C.
func (r *Result) compile(ctx context.Context) error {
	object, version, err := clang.Compile(ctx, string(r.Files[SourceName]), string(r.Files[HelpersName]),
		clang.Options{Lines: r.Lines, Kernel: r.kernel()})
	var stack *clang.StackError
	if errors.As(err, &stack) {
		d := stack.Diagnostic()
		for _, p := range r.Plan.Programs {
			if p.Name == stack.Program && !d.Pos.IsValid() {
				d.Pos = p.Pos
			}
		}
		return d
	}
	if err != nil {
		return r.Explain(err)
	}
	r.Files[ObjectName], r.Clang = object, version
	return nil
}

var packagePattern = regexp.MustCompile(`^[a-z][a-z0-9]*$`)

func isPackageName(name string) bool {
	return packagePattern.MatchString(name) && !token.IsKeyword(name)
}

// place decides where the output goes and what its package is called.
func (r *Result) place(opt Options) error {
	r.Dir, r.Package = opt.Dir, opt.Package
	if r.Package == "" && r.Dir != "" {
		dir, err := filepath.Abs(r.Dir)
		if err != nil {
			return err
		}
		// No package that is to be imported is called main.
		if name := filepath.Base(dir); isPackageName(name) && name != "main" {
			r.Package = name
		}
	}
	if r.Package == "" {
		r.Package = glue.DefaultPackage(r.Plan.Name)
	}
	if r.Dir == "" {
		r.Dir = filepath.Join(filepath.Dir(r.File), r.Package)
	}
	if !isPackageName(r.Package) {
		return &diag.Diagnostic{Code: codePackage,
			Message: fmt.Sprintf("%q can't be the name of a Go package", r.Package),
			Hint:    "a package name has lower-case letters and digits, and is no word of Go's own"}
	}
	return nil
}

// Refusal is clang's or the kernel's refusal of what was generated: a fault of this tool, or of
// a kernel that is too old.
type Refusal struct {
	Result *Result
	Err    error // has a *clang.Error or an *ebpf.VerifierError in it
}

func (r *Refusal) Error() string { return r.Err.Error() }

func (r *Refusal) Unwrap() error { return r.Err }

// Explain makes a refusal by clang or by the verifier a [*Refusal], and returns any other error as it is.
func (r *Result) Explain(err error) error {
	var compiler *clang.Error
	var verifier *ebpf.VerifierError
	if errors.As(err, &compiler) || errors.As(err, &verifier) {
		return &Refusal{r, err}
	}
	return err
}

// Diagnose says at which line of the spec it happened, and keeps all that a report needs in a new folder in parent.
func (r *Refusal) Diagnose(parent string) *diag.Diagnostic {
	unit := &clang.Unit{
		Source: string(r.Result.Files[SourceName]), Header: string(r.Result.Files[HelpersName]), Lines: r.Result.Lines,
		Object: r.Result.Object(), Plan: planfmt.Text(r.Result.Plan),
	}
	var compiler *clang.Error
	if errors.As(r.Err, &compiler) {
		return unit.Clang(compiler, parent)
	}
	return unit.Verifier(r.Err, parent)
}
