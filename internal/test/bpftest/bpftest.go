// Package bpftest compiles and runs small BPF programs that are written by hand, for tests. All they need besides clang is in
// bpf.h.
package bpftest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

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

// Run runs a program exactly opts.Repeat times on a packet, in one call, and returns what the last run returned. A signal would
// interrupt the kernel between two runs, and all of them would begin anew; the Go runtime sends signals to preempt goroutines,
// so this thread takes none meanwhile.
func Run(p *ebpf.Program, opts ebpf.RunOptions) (verdict uint32, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return 0, err
	}
	anew := false
	opts.Reset = func() { anew = true }
	verdict, err = p.Run(&opts)
	if back := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); back != nil {
		return 0, back
	}
	if err == nil && anew {
		err = errors.New("the kernel was interrupted: how often the program ran isn't known")
	}
	return verdict, err
}
