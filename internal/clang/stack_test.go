package clang_test

import (
	"errors"
	"fmt"
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

func TestStack(t *testing.T) {
	for _, c := range []struct{ main, function, callback, want int }{
		{8, 8, 8, 3 * 16}, {200, 40, 104, 208 + 48 + 112}, {320, 64, 128, 512},
	} {
		object, _, err := clang.Compile(t.Context(), program(c.main, c.function, c.callback), "", clang.Options{})
		if err != nil {
			t.Fatal(err)
		}
		stacks, err := clang.Stacks(object)
		if err != nil || stacks["prog_it"] != c.want {
			t.Errorf("%+v: %v, %v", c, stacks, err)
		}
	}
	var stack *clang.StackError
	_, _, err := clang.Compile(t.Context(), program(328, 64, 128), "", clang.Options{})
	if !errors.As(err, &stack) || stack.Bytes != 528 || stack.Program != "it" || stack.Diagnostic().Code != "FR0904" {
		t.Errorf("got %v", err)
	}
}
