// Package api_test compares what packages export with the files in this folder: one line a symbol. A change of the
// surface shows in a review as a change of these files; FASTRELAY_UPDATE=1 writes them anew.
package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/fastrelay/fastrelay-gen/"

// packages are those that others import, and what a generated one looks like.
var packages = map[string]string{
	"runtime.txt": module + "runtime", "abi.txt": module + "runtime/abi", "metrics.txt": module + "runtime/metrics",
	"segments.txt": module + "runtime/segments",
	"control.txt":  module + "runtime/control", "controlapi.txt": module + "runtime/control/api",
	"turnrelay.txt": module + "examples/turn/turnrelay", "sfurelay.txt": module + "examples/sfu/sfurelay",
}

func TestAPI(t *testing.T) {
	load := exported(t)
	for file, path := range packages {
		pkg, err := load(path)
		if err != nil {
			t.Fatal(err)
		}
		got := surface(pkg)
		if os.Getenv("FASTRELAY_UPDATE") != "" {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
			t.Errorf("%s exports something else; if that is meant, FASTRELAY_UPDATE=1 go test ./api. -%s +now:\n%s",
				path, file, diff)
		}
	}
}

// exported returns a function that loads a package from what the compiler wrote about it.
func exported(t *testing.T) func(path string) (*types.Package, error) {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Export"}
	for _, path := range packages {
		args = append(args, path)
	}
	cmd := exec.Command("go", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.Bytes())
	}
	files := map[string]string{}
	for list := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ ImportPath, Export string }
		if err := list.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		files[p.ImportPath] = p.Export
	}
	imports := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, fmt.Errorf("no package %s", path)
		}
		return os.Open(files[path])
	})
	return imports.Import
}

// surface lists what a package exports, sorted.
func surface(pkg *types.Package) string {
	name := func(p *types.Package) string {
		if p == pkg {
			return ""
		}
		return p.Name()
	}
	text := func(t types.Type) string { return types.TypeString(t, name) }
	// signature is a function without the names of parameters, which callers don't see.
	signature := func(f *types.Func) string {
		s := f.Signature()
		strip := func(vars *types.Tuple) *types.Tuple {
			var out []*types.Var
			for v := range vars.Variables() {
				out = append(out, types.NewParam(token.NoPos, pkg, "", v.Type()))
			}
			return types.NewTuple(out...)
		}
		return strings.TrimPrefix(text(types.NewSignatureType(nil, nil, nil, strip(s.Params()), strip(s.Results()),
			s.Variadic())), "func")
	}
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, id := range pkg.Scope().Names() {
		o := pkg.Scope().Lookup(id)
		if !o.Exported() {
			continue
		}
		switch o := o.(type) {
		case *types.Const:
			add("const %s %s = %s", id, text(o.Type()), o.Val())
		case *types.Var:
			add("var %s %s", id, text(o.Type()))
		case *types.Func:
			add("func %s%s", id, signature(o))
		case *types.TypeName:
			if o.IsAlias() {
				add("type %s = %s", id, text(types.Unalias(o.Type())))
				continue
			}
			switch u := o.Type().Underlying().(type) {
			case *types.Struct:
				add("type %s struct", id)
				for i := range u.NumFields() {
					if f := u.Field(i); f.Exported() {
						add("type %s struct, %s %s", id, f.Name(), text(f.Type()))
					}
				}
			case *types.Interface:
				add("type %s interface", id)
				for m := range u.Methods() {
					add("type %s interface, %s%s", id, m.Name(), signature(m))
				}
			default:
				add("type %s %s", id, text(u))
			}
			if types.IsInterface(o.Type()) {
				continue
			}
			methods := types.NewMethodSet(types.NewPointer(o.Type()))
			for i := range methods.Len() {
				if m := methods.At(i); m.Obj().Exported() {
					f := m.Obj().(*types.Func)
					add("method (%s) %s%s", text(f.Signature().Recv().Type())+embedded(len(m.Index()), id), f.Name(),
						signature(f))
				}
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n") + "\n"
}

// embedded says which type has a method of another one.
func embedded(depth int, id string) string {
	if depth == 1 {
		return ""
	}
	return " in " + id
}
