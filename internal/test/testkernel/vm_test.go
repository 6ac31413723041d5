package testkernel_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/testkernel"
)

// fakeMachine replaces an emulator by a shell script, in which $console and $report are the files of the serial ports.
func fakeMachine(t *testing.T, emulator, script string) {
	t.Helper()
	dir := t.TempDir()
	const ports = `#!/bin/sh
for arg; do
	case $arg in file:*console.log) console=${arg#file:} ;; file:*report.jsonl) report=${arg#file:} ;; esac
done
`
	if err := os.WriteFile(filepath.Join(dir, emulator), []byte(ports+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func source(t *testing.T, name string) testkernel.Source {
	t.Helper()
	i := slices.IndexFunc(testkernel.Sources, func(s testkernel.Source) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("there is no kernel %q", name)
	}
	return testkernel.Sources[i]
}

func TestBoot(t *testing.T) {
	const whole = `printf '{"kernel":"6.1.0"}\r\n{"spec":"a","check":"load"}\r\n{"done":true}\r\n' >$report; `
	timeUp := errors.New("its time is over")
	amd64, arm64 := source(t, "bookworm"), source(t, "arm64")
	for _, test := range []struct {
		name, script string
		want         error
		text         string
	}{
		{"all is well", `echo booting >$console; ` + whole, nil, ""},
		{"arm64", `echo booting >$console; ` + whole, nil, ""},
		{"the kernel panics", `echo '{"kernel":"6.1.0"}' >$report; echo 'Kernel panic - not syncing' >$console`,
			testkernel.ErrPanic, "Kernel panic - not syncing"},
		{"init gives up", `echo 'guest: init: mount' >$console; : >$report`, testkernel.ErrCut, "guest: init: mount"},
		{"it hangs", `echo last words >$console; exec sleep 600`, timeUp, "last words"},
		{"the emulator fails", `echo no such processor >&2; exit 1`, nil, "no such processor"},
	} {
		t.Run(test.name, func(t *testing.T) {
			source, emulator := amd64, "qemu-system-x86_64"
			if test.name == "arm64" {
				source, emulator = arm64, "qemu-system-aarch64"
			}
			fakeMachine(t, emulator, test.script)
			limit := time.Minute
			if test.want == timeUp {
				limit = 2 * time.Second
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), limit, timeUp)
			defer cancel()
			dir := t.TempDir()
			k := &testkernel.Kernel{Source: source, Release: "6.1.0-50-cloud-amd64", Dir: dir}
			report, err := testkernel.Boot(ctx, k, testkernel.Image{"init": {Mode: 0o755}}, dir)
			if test.want == nil && test.text == "" {
				if err != nil || report.Failed() {
					t.Errorf("%+v, %v", report, err)
				}
				return
			}
			if err == nil || test.want != nil && !errors.Is(err, test.want) {
				t.Fatalf("%v is not %v", err, test.want)
			}
			if !strings.Contains(err.Error(), test.text) || !strings.Contains(err.Error(), k.Release) {
				t.Errorf("the error doesn't say %q: %v", test.text, err)
			}
		})
	}
}

// The mirror is used only if the cache has no kernel, or an old one.
func TestFetchFromCache(t *testing.T) {
	cache := t.TempDir()
	dir := filepath.Join(cache, "kernels", "bookworm")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	record, err := json.Marshal(testkernel.Kernel{
		Release: "6.1.0-50-cloud-amd64", Version: "6.1.176-1", Wanted: source(t, "bookworm").Wanted(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kernel.json"), record, 0o644); err != nil {
		t.Fatal(err)
	}
	source := source(t, "bookworm")
	k, err := testkernel.Fetch(t.Context(), source, cache, func(text string) { t.Errorf("it says %q", text) })
	if err != nil || k.Release != "6.1.0-50-cloud-amd64" || k.Image() != filepath.Join(dir, "vmlinuz") {
		t.Fatalf("%+v, %v", k, err)
	}
	// If the mirror can't be reached, an old kernel is used, and its age is noted.
	long := time.Now().Add(-30 * 24 * time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "kernel.json"), long, long); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir())
	var said []string
	k, err = testkernel.Fetch(t.Context(), source, cache, func(text string) { said = append(said, text) })
	if err != nil || k.Release != "6.1.0-50-cloud-amd64" || !strings.Contains(strings.Join(said, "\n"), "30 days old") {
		t.Errorf("%+v, %v, %q", k, err, said)
	}
	// Without any there is nothing to boot.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	_, err = testkernel.Fetch(t.Context(), source, cache, func(string) {})
	if err == nil || !strings.Contains(err.Error(), "Debian bookworm") {
		t.Errorf("%v", err)
	}
}
