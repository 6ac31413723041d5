// Package bpftest compiles and runs small BPF programs that are written by hand, for tests. All they need besides clang
// is in bpf.h.
package bpftest

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

//go:embed bpf.h
var header string

var objects sync.Map // by file and defines

// Compile makes an object of a C file, with what it defines: "SOURCES=8".
func Compile(file string, defines ...string) ([]byte, error) {
	key := fmt.Sprint(file, defines)
	if o, ok := objects.Load(key); ok {
		return o.([]byte), nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	object, err := CompileText(filepath.Base(file), string(text), defines...)
	if err == nil {
		objects.Store(key, object)
	}
	return object, err
}

// CompileText makes an object of C, which messages call by name.
func CompileText(name, text string, defines ...string) ([]byte, error) {
	var source strings.Builder
	fmt.Fprintf(&source, "#line 1 \"bpf.h\"\n%s", header)
	for _, d := range defines {
		name, value, _ := strings.Cut(d, "=")
		fmt.Fprintf(&source, "#define %s %s\n", name, value)
	}
	fmt.Fprintf(&source, "#line 1 %q\n%s", name, text)
	cmd := exec.Command(clang(), "-O2", "-g", "--target=bpfel", "-mcpu=v3", "-std=gnu11", "-nostdinc", "-Wall",
		"-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-sign-compare", "-x", "c", "-c", "-", "-o", "-")
	cmd.Stdin = strings.NewReader(source.String())
	var log strings.Builder
	cmd.Stderr = &log
	object, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", name, err, &log)
	}
	return object, nil
}

// clang is the compiler's name: of the version that the Makefile installs, or of any other.
func clang() string {
	if path, err := exec.LookPath("clang-19"); err == nil {
		return path
	}
	return "clang"
}
