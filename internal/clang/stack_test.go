package clang_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/clang"
)

// program is a program with a function and a callback, each with an array of so many bytes on the stack.
func program(main, function, callback int) string {
	return strings.NewReplacer("MAIN", fmt.Sprint(main), "FUNCTION", fmt.Sprint(function), "CALLBACK",
		fmt.Sprint(callback)).Replace(`
static long (*const read)(void *to, unsigned size, const void *from) = (void *)4;
static long (*const loop)(unsigned n, void *f, void *ctx, unsigned long long flags) = (void *)181;
static __attribute__((noinline)) int function(void *p)
{
	char b[FUNCTION];

	return read(b, sizeof(b), p) + b[3];
}
static long callback(unsigned i, void *p)
{
	char b[CALLBACK];

	return function(p) + read(b, sizeof(b), p) + b[1];
}
__attribute__((section("tc"), used)) int prog_it(void *p)
{
	char b[MAIN];

	return loop(3, callback, p, 0) + read(b, sizeof(b), p) + b[2];
}
char _license[] __attribute__((section("license"))) = "GPL";
`)
}

// A program that needs more stack than there is is refused, and the error says what of it is for which function: all
// together, or one alone, of which clang makes no object by itself.
func TestStack(t *testing.T) {
	old, finer := [2]int{5, 17}, [2]int{6, 9}
	compile := func(tool *clang.Tool, main, function, callback int, kernel [2]int) ([]byte, error) {
		object, _, err := clang.Compile(t.Context(), program(main, function, callback), "",
			clang.Options{Tool: tool, Kernel: kernel})
		return object, err
	}
	for _, c := range []struct{ main, function, callback, older, newer int }{
		{8, 8, 8, 3 * 32, 3 * 16}, {200, 40, 104, 224 + 64 + 128, 208 + 48 + 112}, {320, 64, 128, 512, 512},
	} {
		object, err := compile(nil, c.main, c.function, c.callback, old)
		if err != nil {
			t.Fatal(err)
		}
		for kernel, want := range map[[2]int]int{
			old: c.older, {}: c.older, {6, 8}: c.older, finer: c.newer, {7, 0}: c.newer,
		} {
			if stacks, err := clang.Stacks(object, kernel); err != nil || stacks["prog_it"] != want {
				t.Errorf("%+v on %v: %v, %v", c, kernel, stacks, err)
			}
		}
	}
	if _, err := compile(nil, 328, 56, 112, finer); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		main, function, callback, newer int
		kernel                          [2]int
	}{
		{328, 56, 112, 336 + 64 + 112, old}, {328, 64, 128, 0, old}, {328, 64, 128, 0, finer}, {8, 1200, 8, 0, old},
	} {
		_, err := compile(nil, c.main, c.function, c.callback, c.kernel)
		var stack *clang.StackError
		if !errors.As(err, &stack) || stack.Program != "it" || stack.Newer != c.newer || stack.Bytes() <= 512 ||
			len(stack.Frames) != 3 || stack.Frames[0].Bytes < c.main || stack.Frames[2].Bytes < c.function {
			t.Errorf("%+v: %+v", c, err)
			continue
		}
		if d := stack.Diagnostic(); d.Code != "FR0904" || !strings.Contains(d.Hint, "the helper callback") ||
			strings.Contains(d.Hint, "6.9") != (c.newer > 0) {
			t.Errorf("%+v", d)
		}
	}
}

// A clang that can't be asked for more than the stack there is leaves the numbers out; what it wrote isn't shown.
func TestStackWithoutNumbers(t *testing.T) {
	tool, err := clang.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	older := *tool
	older.Clang = filepath.Join(t.TempDir(), "clang")
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *-bpf-stack-size*) exit 1;; esac\nexec %s \"$@\"\n", tool.Clang)
	if err := os.WriteFile(older.Clang, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	_, _, err = clang.Compile(t.Context(), program(8, 1200, 8), "", clang.Options{Tool: &older})
	var stack *clang.StackError
	if !errors.As(err, &stack) ||
		stack.Error() != "a program needs more than the 512 bytes of stack that the kernel has" {
		t.Errorf("got %v", err)
	}
}
