//go:build linux

package build

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// builder makes the test's binary a build in a process of its own: the spec in the working folder, written beside it.
const builder = "FASTRELAY_BUILD_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(builder) == "" {
		os.Exit(m.Run())
	}
	r, list, err := Spec(context.Background(), os.Getenv(builder), Options{})
	if err == nil {
		err = list.Err()
	}
	if err == nil {
		_, err = Write(r)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// The same spec gives the same bytes in another folder, as another user, at another time, in another environment. That
// that the tree has the same is for make check to find. Becoming another user takes root.
func TestReproducible(t *testing.T) {
	needs.Root(t)
	for _, file := range []string{"../../examples/turn/spec.cue", spread} {
		t.Run(file, func(t *testing.T) { reproducible(t, file) })
	}
}

func reproducible(t *testing.T, file string) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	base, err := os.MkdirTemp("", "reproducible")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(base)
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(base, "build"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	places := []struct {
		dir, spec string
		uid       int
		env       []string
	}{
		{"turn", "spec.cue", os.Geteuid(), nil},
		{"a much longer path/with spaces/and/folders", "./spec.cue", nobody,
			[]string{"TZ=Asia/Kathmandu", "LANG=tr_TR.UTF-8", "LC_ALL=C", "USER=nobody", "SOURCE_DATE_EPOCH=86400"}},
		{"turn2", "", nobody, []string{"TZ=America/Lima"}}, // the spec by its whole path
	}
	for _, p := range places { // one after the other: time passes
		dir := filepath.Join(base, p.dir)
		home := filepath.Join(dir, "home")
		if err := os.MkdirAll(home, 0o755); err != nil {
			t.Fatal(err)
		}
		spec := filepath.Join(dir, "spec.cue")
		if err := os.WriteFile(spec, text, 0o644); err != nil {
			t.Fatal(err)
		}
		for _, d := range []string{dir, home} {
			if err := os.Chown(d, p.uid, p.uid); err != nil {
				t.Fatal(err)
			}
		}
		if p.spec != "" {
			spec = p.spec
		}
		cmd := exec.Command(filepath.Join(base, "build"))
		cmd.Dir = dir
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, builder + "=" + spec},
			p.env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(p.uid), Gid: uint32(p.uid)}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", p.dir, err, out)
		}
	}
	first := files(t, written(t, filepath.Join(base, places[0].dir)))
	for _, p := range places[1:] {
		dir := filepath.Join(base, p.dir)
		other := files(t, written(t, dir))
		if len(other) != len(first) {
			t.Errorf("%s: %d files, want %d", dir, len(other), len(first))
		}
		for name, want := range first {
			if !bytes.Equal(other[name], want) {
				t.Errorf("%s: %s is not the same", dir, name)
			}
		}
	}
	for name, content := range first {
		if strings.Contains(string(content), base) {
			t.Errorf("%s names the folder where it was made", name)
		}
	}
}

// written returns the folder with the generated package in dir.
func written(t *testing.T, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*relay"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s has not one package: %v, %v", dir, found, err)
	}
	return found[0]
}

// files reads all files of a folder.
func files(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, e := range entries {
		if all[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if len(all) < 5 {
		t.Fatalf("%s has only %d files", dir, len(all))
	}
	return all
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
