package specgen

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"sync"
)

// GoChecker type-checks generated Go in the process, against what the go command has compiled of the packages that it
// imports: a hundred times faster than building each package.
type GoChecker struct {
	mu      sync.Mutex // importers share packages, and are not for several at once
	fset    *token.FileSet
	imports types.Importer
}

// NewGoChecker prepares for generated packages. It runs the go command once.
func NewGoChecker() (*GoChecker, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export",
		"github.com/fastrelay/fastrelay-gen/runtime", "github.com/fastrelay/fastrelay-gen/runtime/abi", "embed")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	files := map[string]string{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ ImportPath, Export string }
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		files[p.ImportPath] = p.Export
	}
	c := &GoChecker{fset: token.NewFileSet()}
	c.imports = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, fmt.Errorf("the runtime doesn't import %q", path)
		}
		return os.Open(files[path])
	})
	return c, nil
}

// Check type-checks one generated file.
func (c *GoChecker) Check(text []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := parser.ParseFile(c.fset, "relay.go", text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	config := types.Config{Importer: c.imports}
	_, err = config.Check("relay", c.fset, []*ast.File{f}, nil)
	return err
}
