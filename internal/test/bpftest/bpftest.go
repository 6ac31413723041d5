// Package bpftest compiles and runs small BPF programs that are written by hand, for tests. All they need besides clang
// is in bpf.h.
package bpftest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/fastrelay/fastrelay-gen/internal/clang"
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
	object, _, err := clang.Compile(context.Background(), source.String(), "", clang.Options{Warn: true})
	var refused *clang.Error
	if errors.As(err, &refused) {
		return nil, fmt.Errorf("%s: %w\n%s", name, err, refused.Log)
	}
	return object, err
}
