package templates_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/templates"
)

// The structures in the C templates are those of the table: sizes, and the offset of every member.
func TestStructsInC(t *testing.T) {
	var header, source strings.Builder
	for _, name := range []string{"fastrelay.h", "fanout.h"} {
		text, err := templates.FS.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		header.Write(text)
	}
	for _, define := range []string{
		"FR_REASONS 1", "FR_NEEDS_SLOTS 1", "FR_USAGES 1", "FR_NEEDS_SHARED 1", "FR_NEEDS_NAMED 1",
		"FR_NEEDS_RECEIVERS 1", "FR_NEEDS_CREDITS 1",
		"FR_LEVELS 1", "FR_NEEDS_TRANSLATIONS 1", "FR_NEEDS_RING 4096", "FR_EVENTS 1",
	} {
		fmt.Fprintln(&source, "#define", define)
	}
	fmt.Fprintln(&source, `#include "fastrelay.h"`)
	asserts := 0
	assert := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		fmt.Fprintf(&source, "_Static_assert(%s, %q);\n", text, text)
		asserts++
	}
	for _, s := range abi.Structs() {
		assert("sizeof(struct %s) == %d", s.Name, s.Size)
		for _, m := range s.Members {
			assert("__builtin_offsetof(struct %s, %s) == %d", s.Name, m.Name, m.Off)
		}
	}
	for state := range abi.HopState(abi.HopStates) {
		assert("FR_HOP_%s == %d", strings.ToUpper(state.String()), state)
	}
	if _, _, err := clang.Compile(context.Background(), source.String(), header.String(), clang.Options{}); err != nil {
		t.Fatal(err)
	}
	if asserts < 60 {
		t.Errorf("%d assertions only", asserts)
	}
}
