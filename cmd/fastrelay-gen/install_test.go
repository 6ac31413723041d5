package main_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

const (
	path    = "github.com/fastrelay/fastrelay-gen"
	release = "v0.1.0"
)

// A user has no checkout: the command is installed by its version, and a generated package is imported from another
// module, which requires the runtime alone. Both come from a module proxy that is made from this tree, so a file that a
// module zip leaves out is found missing here. Other modules come from this machine's module cache, and what that lacks
// from where the machine gets modules.
func TestInstall(t *testing.T) {
	needs.All(t)
	env := proxy(t)
	bin := t.TempDir()
	run(t, "", append(env, "GOBIN="+bin), "go", "install", path+"/cmd/fastrelay-gen@"+release)
	command := filepath.Join(bin, "fastrelay-gen")
	for _, word := range []string{"version", "--version"} {
		if out := run(t, "", env, command, word); !strings.HasPrefix(out, "fastrelay-gen  "+release+" (") {
			t.Errorf("%s prints %s", word, out)
		}
	}

	work := t.TempDir()
	server := filepath.Join(work, "server")
	if err := os.Mkdir(server, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(server, "main.go"), `package main

import (
	"fmt"

	"example.com/server/myrelay/myrelay"

	"`+path+`/runtime/abi"
	"`+path+`/runtime/control"
)

func main() {
	relay, err := myrelay.Load(myrelay.Options{Control: control.Socket("`+filepath.Join(work, "sock")+`")})
	if err == nil {
		err = relay.Close()
	}
	fmt.Println(abi.Version, err)
}
`)
	run(t, server, env, "go", "mod", "init", "example.com/server")
	run(t, server, env, command, "init", "myrelay")
	run(t, server, env, command, "test", "myrelay/spec.cue")
	run(t, server, env, command, "build", "myrelay/spec.cue")
	run(t, server, env, "go", "get", path+"/runtime@"+release)
	run(t, server, env, "go", "mod", "tidy")
	run(t, server, env, "go", "vet", "./...")
	if out := run(t, server, env, "go", "run", "."); os.Geteuid() == 0 && !strings.HasSuffix(out, " <nil>\n") {
		t.Errorf("the server prints %s", out)
	}
	for module := range strings.FieldsSeq(run(t, server, env, "go", "list", "-m", "-f", "{{.Path}}", "all")) {
		if module == path || strings.HasPrefix(module, "cuelang.org/") || strings.HasPrefix(module, "k8s.io/") {
			t.Errorf("a server requires %s", module)
		}
	}
	// In a workspace of the user's, too.
	run(t, work, append(env, "GOWORK="), "go", "work", "init", "./server")
	run(t, work, append(env, "GOWORK=", "GOFLAGS="), "go", "build", "-o", bin, "./server")
}

// proxy makes a module proxy of this tree, and returns an environment in which the go command uses it.
func proxy(t *testing.T) []string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, m := range []struct{ path, root string }{{path, root}, {path + "/runtime", filepath.Join(root, "runtime")}} {
		version := filepath.Join(dir, filepath.FromSlash(m.path), "@v", release)
		if err := os.MkdirAll(filepath.Dir(version), 0o755); err != nil {
			t.Fatal(err)
		}
		archive, err := os.Create(version + ".zip")
		if err != nil {
			t.Fatal(err)
		}
		if err := zip.Create(archive, module.Version{Path: m.path, Version: release}, tree(t, m.root)); err != nil {
			t.Fatal(err)
		}
		if err := archive.Close(); err != nil {
			t.Fatal(err)
		}
		mod, err := os.ReadFile(filepath.Join(m.root, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		write(t, version+".mod", string(mod))
		write(t, version+".info", fmt.Sprintf(`{"Version": %q}`, release))
		write(t, filepath.Join(filepath.Dir(version), "list"), release+"\n")
	}

	downloads := filepath.Join(strings.TrimSpace(run(t, root, nil, "go", "env", "GOMODCACHE")), "cache", "download")
	cache := strings.TrimSpace(run(t, root, nil, "go", "env", "GOCACHE"))
	others := strings.TrimSpace(run(t, root, nil, "go", "env", "GOPROXY"))
	// With -trimpath and without cgo, packages are found in the build cache, though their module cache is a new one.
	return []string{
		"GOPROXY=file://" + dir + ",file://" + downloads + "," + others,
		"GOSUMDB=off", "GOPRIVATE=", "GONOPROXY=", "GOCACHE=" + cache,
		"GOMODCACHE=" + t.TempDir(), "GOFLAGS=-mod=mod -modcacherw -trimpath", "CGO_ENABLED=0", "GOWORK=off",
		"GOTOOLCHAIN=local",
	}
}

// file is a file of the tree, for a module zip.
type file struct{ root, name string }

func (f file) Path() string                 { return f.name }
func (f file) Lstat() (os.FileInfo, error)  { return os.Lstat(filepath.Join(f.root, f.name)) }
func (f file) Open() (io.ReadCloser, error) { return os.Open(filepath.Join(f.root, f.name)) }

// tree lists the files that a tag would have: those that git knows or would add, or all but what is
// built if there is no git.
func tree(t *testing.T, root string) []zip.File {
	t.Helper()
	var files []zip.File
	if _, err := os.Stat("../../.git"); err == nil {
		out := run(t, root, nil, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
		for name := range strings.SplitSeq(strings.TrimSuffix(out, "\x00"), "\x00") {
			if _, err := os.Lstat(filepath.Join(root, name)); err == nil { // not deleted
				files = append(files, file{root, name})
			}
		}
		return files
	}
	err := filepath.WalkDir(root, func(name string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err = filepath.Rel(root, name)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == "bin" || name == "dist" || name == ".cache"):
			return filepath.SkipDir
		case entry.Type().IsRegular():
			files = append(files, file{root, name})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// run runs a command and returns what it prints.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out)
}
