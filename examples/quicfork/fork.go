package quicfork

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// What the fork is made from.
const (
	UpstreamPath    = "github.com/quic-go/quic-go"
	UpstreamVersion = "v0.65.0"
)

// queue holds the patches, numbered, and the files that are ours alone, in the folders of upstream's tree; and
// sums.txt.
//
//go:embed all:_fork
var queue embed.FS

// A Tree holds a tree's files by their slash-separated names.
type Tree map[string][]byte

// Upstream returns the files of quic-go's module, which the go command fetches and verifies.
func Upstream() (Tree, error) {
	none, err := os.MkdirTemp("", "quicfork")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(none)
	get := exec.Command("go", "mod", "download", "-json", UpstreamPath+"@"+UpstreamVersion)
	get.Dir, get.Env = none, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := get.Output()
	var module struct{ Dir, Error string }
	if bad := json.Unmarshal(out, &module); bad != nil || module.Dir == "" {
		return nil, fmt.Errorf("can't fetch %s %s: %w", UpstreamPath, UpstreamVersion,
			errors.Join(err, errors.New(module.Error)))
	}
	tree, err := read(os.DirFS(module.Dir))
	if err != nil {
		return nil, err
	}
	return tree, check("upstream", tree, "the module cache holds another tree: run go clean -modcache")
}

// Fork returns upstream's tree with the patches and our own files. Import paths are still upstream's.
func Fork(upstream Tree) (Tree, error) {
	tree, err := fork(upstream, "")
	if err != nil {
		return nil, err
	}
	return tree, check("fork", tree, "patches or own files were changed: FASTRELAY_UPDATE=1 go test . in "+
		"examples/quicfork records the new sum")
}

// fork leaves out one patch.
func fork(upstream Tree, without string) (Tree, error) {
	tree := maps.Clone(upstream)
	patches, err := fs.Glob(queue, "_fork/patches/*.patch")
	if err != nil {
		return nil, err
	}
	for _, name := range patches {
		if name == without {
			continue
		}
		text, err := queue.ReadFile(name)
		if err == nil {
			err = tree.Patch(string(text))
		}
		if err != nil {
			return nil, fmt.Errorf("%s doesn't fit %s %s: %w", path.Base(name), UpstreamPath, UpstreamVersion, err)
		}
	}
	files, err := fs.Sub(queue, "_fork/own")
	if err != nil {
		return nil, err
	}
	own, err := read(files)
	if err != nil {
		return nil, err
	}
	for name, text := range own {
		if _, exists := tree[name]; exists {
			return nil, fmt.Errorf("%s %s has a file %s: ours needs another name", UpstreamPath, UpstreamVersion, name)
		}
		tree[name] = text
	}
	return tree, nil
}

// Library returns the tree without tests and what only they use, with import paths that begin with prefix.
func (t Tree) Library(prefix string) (Tree, error) {
	library := Tree{}
	for name, text := range t {
		top, rest, _ := strings.Cut(name, "/")
		second, _, _ := strings.Cut(rest, "/")
		if slices.Contains([]string{"example", "integrationtests", "interop", "testutils"}, top) ||
			top == "internal" && slices.Contains([]string{"mocks", "testdata"}, second) ||
			strings.HasSuffix(name, "_test.go") || name == "mockgen.go" ||
			name != "LICENSE" && !strings.HasSuffix(name, ".go") {
			continue
		}
		if strings.HasSuffix(name, ".go") {
			var err error
			if text, err = rewriteImports(name, text, prefix); err != nil {
				return nil, err
			}
		}
		library[name] = text
	}
	return library, nil
}

// rewriteImports replaces upstream's path at the beginning of import paths, and sorts the imports again.
func rewriteImports(name string, text []byte, prefix string) ([]byte, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	end := 0
	for _, spec := range file.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		rest, ok := strings.CutPrefix(p, UpstreamPath)
		if !ok || rest != "" && rest[0] != '/' {
			continue
		}
		b.Write(text[end:files.Position(spec.Path.Pos()).Offset])
		b.WriteString(strconv.Quote(prefix + rest))
		end = files.Position(spec.Path.End()).Offset
	}
	if end == 0 {
		return text, nil
	}
	b.Write(text[end:])
	return format.Source(b.Bytes())
}

// Write makes the folder hold exactly the tree. A folder that holds anything else than such a tree is refused.
func (t Tree) Write(folder string) error {
	there, err := read(os.DirFS(folder))
	if errors.Is(err, fs.ErrNotExist) {
		there, err = nil, nil
	}
	if err != nil {
		return err
	}
	if _, ok := there[stamp]; !ok && len(there) > 0 {
		return fmt.Errorf("%s isn't empty, and wasn't made by quicfork: choose another folder", folder)
	}
	t = maps.Clone(t)
	t[stamp] = []byte("Made by quicfork from " + UpstreamPath + " " + UpstreamVersion + ". Changes are overwritten.\n")
	for name := range there {
		if _, ok := t[name]; !ok {
			if err := os.Remove(filepath.Join(folder, filepath.FromSlash(name))); err != nil {
				return err
			}
		}
	}
	for name, text := range t {
		if old, ok := there[name]; ok && bytes.Equal(old, text) {
			continue
		}
		file := filepath.Join(folder, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

const stamp = "MADE-BY-QUICFORK"

// Sum returns the hash of a tree, in the manner of go.sum.
func (t Tree) Sum() string {
	all := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(t)) {
		fmt.Fprintf(all, "%x  %s\n", sha256.Sum256(t[name]), name)
	}
	return fmt.Sprintf("%x", all.Sum(nil))
}

// check compares a tree's sum with the one in sums.txt.
func check(which string, tree Tree, remedy string) error {
	sums, err := queue.ReadFile(sumsFile)
	if err != nil {
		return err
	}
	if !slices.Contains(strings.Split(string(sums), "\n"), which+" "+tree.Sum()) {
		return &SumError{Tree: which, Sum: tree.Sum(), Remedy: remedy}
	}
	return nil
}

const sumsFile = "_fork/sums.txt"

// A SumError says that a tree isn't the one that sums.txt names.
type SumError struct{ Tree, Sum, Remedy string }

func (e *SumError) Error() string {
	return fmt.Sprintf("the sum of the tree %q is %s, which isn't the recorded one: %s", e.Tree, e.Sum, e.Remedy)
}

func read(files fs.FS) (Tree, error) {
	tree := Tree{}
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		tree[name], err = fs.ReadFile(files, name)
		return err
	})
	return tree, err
}
