//go:build linux

package drive

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/build"
)

// module is this module's path.
const module = "github.com/fastrelay/fastrelay-gen"

// Set is a set of generated packages, in one program.
type Set struct {
	dir     string
	root    string
	job     Job
	overlay map[string]string // by the path that the go command sees
}

// NewSet is an empty set, which is kept in a folder; root is the folder of this module.
func NewSet(dir, root string) *Set { return &Set{dir: dir, root: root, overlay: map[string]string{}} }

// Add adds what was built of a spec, under a name.
func (s *Set) Add(name string, r *build.Result) error {
	desc := glue.Desc(r.Plan)
	api, err := exported(r.Files[build.PackageName])
	if err != nil {
		return err
	}
	p := Package{Name: name, Desc: desc, Settings: desc.Settings, API: api}
	for _, file := range []string{build.PackageName, build.ObjectName} {
		path := filepath.Join(s.dir, fmt.Sprintf("%d-%s", len(s.job.Packages), file))
		if err := os.WriteFile(path, r.Files[file], 0o600); err != nil {
			return err
		}
		s.overlay[filepath.Join(s.root, s.folder(len(s.job.Packages)), file)] = path
		p.Object = path
	}
	s.job.Packages = append(s.job.Packages, p)
	return nil
}

// Len is how many packages there are.
func (s *Set) Len() int { return len(s.job.Packages) }

// folder is where the go command sees a package.
func (s *Set) folder(i int) string { return fmt.Sprintf("internal/test/drive/p%d", i) }

// Build makes the program, in one call of the go command: the files of the packages are given to it under paths in this
// module, and are not written there.
func (s *Set) Build(ctx context.Context) (program string, err error) {
	var b strings.Builder
	fmt.Fprintf(&b, "package main\n\nimport (\n\t%q\n", module+"/internal/test/drive")
	for i := range s.job.Packages {
		fmt.Fprintf(&b, "\tp%d %q\n", i, module+"/"+s.folder(i))
	}
	b.WriteString(")\n\nfunc main() {\n\tdrive.Main(map[string]any{\n")
	for i, p := range s.job.Packages {
		fmt.Fprintf(&b, "\t\t%q: p%d.Load,\n", p.Name, i)
	}
	b.WriteString("\t})\n}\n")
	main := filepath.Join(s.dir, "main.go")
	if err := os.WriteFile(main, []byte(b.String()), 0o600); err != nil {
		return "", err
	}
	s.overlay[filepath.Join(s.root, "internal/test/drive/program/main.go")] = main
	overlay, err := json.Marshal(map[string]any{"Replace": s.overlay})
	if err != nil {
		return "", err
	}
	file := filepath.Join(s.dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return "", err
	}
	program = filepath.Join(s.dir, "program")
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", file, "-o", program, "./internal/test/drive/program")
	cmd.Dir = s.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", cmd, err, out)
	}
	return program, nil
}

// Job writes what the program needs to know: a folder of a BPF file system, and an interface for programs.
func (s *Set) Job(pins, device string) (file string, err error) {
	s.job.Pins, s.job.Device = pins, device
	text, err := json.Marshal(s.job)
	if err != nil {
		return "", err
	}
	file = filepath.Join(s.dir, "job.json")
	return file, os.WriteFile(file, text, 0o600)
}

// exported lists the functions and methods that a package exports.
func exported(source []byte) (out []string, err error) {
	f, err := parser.ParseFile(token.NewFileSet(), build.PackageName, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, d := range f.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || !f.Name.IsExported() {
			continue
		}
		if f.Recv == nil {
			out = append(out, f.Name.Name)
			continue
		}
		typ := f.Recv.List[0].Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		if name := typ.(*ast.Ident).Name; ast.IsExported(name) {
			out = append(out, name+"."+f.Name.Name)
		}
	}
	return out, nil
}
