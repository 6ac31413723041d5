// Package kept keeps what checks have found, by a hash of all that the result depends on: a check whose sources, inputs
// and kernel are those of an earlier one needn't run again. Results lie in a folder that may be missing: then
// everything runs. Without FASTRELAY_KEPT nothing is kept.
package kept

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// dirVar names the folder.
const dirVar = "FASTRELAY_KEPT"

// life is how long a result is kept.
const life = 30 * 24 * time.Hour

// Key is what a result depends on. The zero value is that of nothing.
type Key struct{ h hash.Hash }

// NewKey begins a key for a kind of check, with the versions of Go and of the kernel that runs here.
func NewKey(kind string) (*Key, error) {
	k := &Key{h: sha256.New()}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	k.Add("kind", []byte(kind))
	k.Add("go", []byte(runtime.Version()+" "+runtime.GOARCH))
	k.Add("kernel", release)
	return k, err
}

// Add adds data under a name.
func (k *Key) Add(name string, data []byte) {
	fmt.Fprintf(k.h, "%q %d\n%s", name, len(data), data)
}

// AddFile adds a file under a name.
func (k *Key) AddFile(name, path string) error {
	data, err := os.ReadFile(path)
	k.Add(name, data)
	return err
}

// Copy returns a key that begins like k.
func (k *Key) Copy() (*Key, error) {
	c, ok := k.h.(hash.Cloner)
	if !ok {
		return nil, errors.New("this hash can't be copied")
	}
	h, err := c.Clone()
	return &Key{h}, err
}

// AddTree adds all regular files below a folder of root, but for those that are built or fetched (names beginning with
// a dot, and folders that git ignores here).
func (k *Key) AddTree(root, dir string) error {
	return filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != "." || slices.Contains(built, name)) {
			return fs.SkipDir
		}
		if !d.Type().IsRegular() {
			return nil
		}
		return k.AddFile(filepath.ToSlash(name), path)
	})
}

// built are folders that .gitignore lists.
var built = []string{"bin", "dist", "examples/quicfork/quic-go"}

// AddPackages adds the sources of Go packages and of all that they import from this tree, and the versions of the
// modules that they import others from. Patterns are those of `go list`, in the module at module, a folder of root.
// With tests, their tests and testdata as well. Packages for which without returns true are left out.
func (k *Key) AddPackages(ctx context.Context, root, module string, tests bool, without func(path string) bool,
	patterns ...string) error {
	args := []string{"list", "-deps", "-json=ImportPath,Dir,Standard,GoFiles,CgoFiles,TestGoFiles,XTestGoFiles," +
		"EmbedFiles,TestEmbedFiles,XTestEmbedFiles,OtherFiles"}
	if tests {
		args = append(args, "-test")
	}
	cmd := exec.CommandContext(ctx, "go", append(append(args, "--"), patterns...)...)
	cmd.Dir = filepath.Join(root, module)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list: %w: %s", err, &stderr)
	}
	type listed struct {
		ImportPath, Dir string
		Standard        bool
		GoFiles, CgoFiles, TestGoFiles, XTestGoFiles, EmbedFiles, TestEmbedFiles, XTestEmbedFiles,
		OtherFiles []string
	}
	files := map[string]string{} // by name in the tree
	for in := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := in.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, p.Dir)
		if p.Standard || err != nil || strings.HasPrefix(dir, "..") || without != nil && without(p.ImportPath) {
			continue
		}
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.TestGoFiles, p.XTestGoFiles, p.EmbedFiles,
			p.TestEmbedFiles, p.XTestEmbedFiles, p.OtherFiles) {
			if filepath.IsAbs(name) { // the main of a test, which go makes
				continue
			}
			files[filepath.ToSlash(filepath.Join(dir, name))] = filepath.Join(p.Dir, name)
		}
		if data := filepath.Join(p.Dir, "testdata"); tests {
			if err := filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() {
					name, _ := filepath.Rel(root, path) // path is below root
					files[filepath.ToSlash(name)] = path
				}
				return err
			}); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	if len(files) == 0 {
		return fmt.Errorf("%s: no package of this tree", strings.Join(patterns, " "))
	}
	modules := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}") // of the workspace
	modules.Dir = cmd.Dir
	if out, err = modules.Output(); err != nil {
		return fmt.Errorf("go list -m: %w", err)
	}
	for dir := range strings.FieldsSeq(string(out)) {
		for _, name := range []string{"go.mod", "go.sum"} {
			path := filepath.Join(dir, name)
			if name, err = filepath.Rel(root, path); err != nil {
				return err
			}
			files[filepath.ToSlash(name)] = path
		}
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := k.AddFile(name, files[name]); err != nil {
			return err
		}
	}
	return nil
}

// file is where the result of a key lies; "": nowhere.
func (k *Key) file() string {
	dir := os.Getenv(dirVar)
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, hex.EncodeToString(k.h.Sum(nil)))
}

// Load returns the result that was kept under the key.
func (k *Key) Load() (result []byte, ok bool) {
	file := k.file()
	if file == "" {
		return nil, false
	}
	result, err := os.ReadFile(file)
	return result, err == nil
}

// Save keeps a result, and removes old ones.
func (k *Key) Save(result []byte) error {
	file := k.file()
	if file == "" {
		return nil
	}
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	part, err := os.CreateTemp(dir, ".part-")
	if err != nil {
		return err
	}
	_, err = part.Write(result)
	if err = errors.Join(err, part.Close()); err == nil {
		err = os.Rename(part.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(part.Name()))
	}
	return removeOld(dir)
}

func removeOld(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && time.Since(info.ModTime()) > life {
			err = os.Remove(filepath.Join(dir, e.Name()))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
