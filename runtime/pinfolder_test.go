package runtime

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

const nobody = 65534

// asNobody runs a program as a user who has no rights.
func asNobody(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	cmd.Dir = "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// Folders that others than root and the caller have a hand in are refused, before anything is read from them or
// written to them.
func TestFoldersOfOthers(t *testing.T) {
	needs.Root(t)
	do := func(t *testing.T, errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name string
		make func(t *testing.T, base string) (pins string)
		want []string // in the error; none: it is taken
	}{
		{"made by nobody", func(t *testing.T, base string) string {
			do(t, os.Chmod(base, 0o777|os.ModeSticky))
			asNobody(t, "mkdir", base+"/turn")
			return base + "/turn"
		}, []string{"/turn belongs to user nobody (65534)", "remove it, or choose another PinPath"}},
		{"made by nobody, and not for others", func(t *testing.T, base string) string {
			do(t, os.Chmod(base, 0o777|os.ModeSticky))
			asNobody(t, "mkdir", "-m", "0700", base+"/turn")
			return base + "/turn"
		}, []string{"/turn belongs to user nobody (65534)"}},
		{"in a folder of nobody's", func(t *testing.T, base string) string {
			do(t, os.Mkdir(base+"/turn", 0o700), os.Chown(base, nobody, nobody))
			return base + "/turn"
		}, []string{"the folder", "_1 belongs to user nobody (65534)"}},
		{"not there yet, in a folder of nobody's", func(t *testing.T, base string) string {
			do(t, os.Chown(base, nobody, nobody))
			return base + "/relays/turn"
		}, []string{"belongs to user nobody (65534)"}},
		{"all may write to it", func(t *testing.T, base string) string {
			do(t, os.Mkdir(base+"/turn", 0o700), os.Chmod(base+"/turn", 0o777))
			return base + "/turn"
		}, []string{"/turn may be written by all users (mode 0777)", "chmod go-w"}},
		{"all may write to it, and it is sticky", func(t *testing.T, base string) string {
			do(t, os.Mkdir(base+"/turn", 0o700), os.Chmod(base+"/turn", 0o777|os.ModeSticky))
			return base + "/turn"
		}, []string{"/turn may be written by all users (mode 0777)"}},
		{"a group may write to it", func(t *testing.T, base string) string {
			do(t, os.Mkdir(base+"/turn", 0o700), os.Chmod(base+"/turn", 0o770), os.Chown(base+"/turn", 0, nobody))
			return base + "/turn"
		}, []string{"/turn may be written by group nogroup (65534) (mode 0770)"}},
		{"all may write to the folder above", func(t *testing.T, base string) string {
			do(t, os.Chmod(base, 0o777), os.Mkdir(base+"/turn", 0o700))
			return base + "/turn"
		}, []string{"may be written by all users (mode 0777)"}},
		{"all may write to the folder above, which is sticky", func(t *testing.T, base string) string {
			do(t, os.Chmod(base, 0o777|os.ModeSticky), os.Mkdir(base+"/turn", 0o700))
			return base + "/turn"
		}, nil},
		{"not there yet, in a sticky folder", func(t *testing.T, base string) string {
			do(t, os.Chmod(base, 0o777|os.ModeSticky))
			return base + "/relays/turn"
		}, nil},
		{"a symbolic link", func(t *testing.T, base string) string {
			do(t, os.Mkdir(base+"/a", 0o700), os.Symlink(base+"/a", base+"/turn"))
			return base + "/turn"
		}, []string{"it is a symbolic link", "give the folder itself"}},
		{"above it a symbolic link of root's", func(t *testing.T, base string) string {
			do(t, os.Mkdir(base+"/a", 0o700), os.Symlink("a", base+"/b"))
			return base + "/b/turn"
		}, nil},
		{"above it a symbolic link of nobody's", func(t *testing.T, base string) string {
			do(t, os.Chmod(base, 0o777|os.ModeSticky), os.Mkdir(base+"/a", 0o700))
			asNobody(t, "ln", "-s", "a", base+"/b")
			return base + "/b/turn"
		}, []string{"the symbolic link", "/b belongs to user nobody (65534)"}},
		{"above it a symbolic link to a folder of nobody's", func(t *testing.T, base string) string {
			do(t, os.Mkdir(base+"/a", 0o700), os.Chown(base+"/a", nobody, nobody), os.Symlink(base+"/a", base+"/b"))
			return base + "/b/turn"
		}, []string{"the folder", "/a belongs to user nobody (65534)"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := "/sys/fs/bpf/" + pinName(t)
			if err := os.Mkdir(base, 0o700); err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(base)
			pins := tt.make(t, base)
			r, err := Load(flowDesc(), build(t), quiet(Options{PinPath: pins, routes: someHop}))
			if err == nil {
				defer r.Close()
			}
			if len(tt.want) == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var fe *FolderError
			if !errors.As(err, &fe) || fe.Path != pins {
				t.Fatalf("error %v", err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(),
					strings.ReplaceAll(want, "_1", filepath.Base(base)[len("fastrelay_test"):])) {
					t.Errorf("error %q doesn't say %q", err, want)
				}
			}
			if there, err := os.ReadDir(pins); err == nil && len(there) > 0 {
				t.Errorf("something was pinned: %v", there)
			}
		})
	}
}

// Another user makes the folder before the relay's first process does, and takes what is pinned there away before the
// second comes.
func TestNobodyRenamesLive(t *testing.T) {
	pins := "/sys/fs/bpf/" + pinName(t)
	r := load(t, Options{PinPath: pins, Linger: 10 * time.Second})
	open(t, r, 1)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(pins, nobody, nobody); err != nil { // a first process that didn't look would have pinned there
		t.Fatal(err)
	}
	asNobody(t, "mv", pins+"/live", pins+"/mine")
	var fe *FolderError
	if _, err := Load(flowDesc(), build(t), quiet(Options{PinPath: pins, routes: someHop})); !errors.As(err, &fe) {
		t.Fatalf("it began anew: %v", err)
	}
	asNobody(t, "mv", pins+"/mine", pins+"/live")
	if err := os.Chown(pins, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(pins+"/live", nobody, nobody); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(flowDesc(), build(t), quiet(Options{PinPath: pins, routes: someHop})); !errors.As(err, &fe) ||
		!strings.Contains(err.Error(), "/live belongs to user nobody") {
		t.Fatalf("adopted: %v", err)
	}
	if err := os.Chown(pins+"/live", 0, 0); err != nil {
		t.Fatal(err)
	}
	next := load(t, Options{PinPath: pins})
	if next.OpenSessions("flow") != 1 {
		t.Error("the session is gone")
	}
}
