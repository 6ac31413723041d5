package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/testkernel"
)

// buildRelays compiles the specs of all examples and golden cases into folders of the same names below out.
func buildRelays(ctx context.Context, root, out string) error {
	var specs []string
	for _, pattern := range []string{"examples/*/spec.cue", "golden/*/spec.cue"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return fmt.Errorf("there is no %s", pattern)
		}
		specs = append(specs, found...)
	}
	for _, file := range specs {
		r, list, err := build.Spec(ctx, file, build.Options{})
		if err == nil {
			err = list.Err()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		name, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		if err := write(filepath.Join(out, name), file, r.Object(), ""); err != nil {
			return err
		}
		if name == filepath.FromSlash(modernBase) {
			if err := buildModern(ctx, r, filepath.Join(out, modernName)); err != nil {
				return err
			}
		}
	}
	return nil
}

// write writes a relay's folder. needs may be empty: the plan says.
func write(dir, spec string, object []byte, needs string) error {
	text, err := os.ReadFile(spec)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files := map[string][]byte{testkernel.SpecName: text, testkernel.ObjectName: object}
	if needs != "" {
		files[testkernel.NeedsName] = []byte(needs)
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// A relay that no plan asks for: one that calls a helper of a later kernel than the oldest tested, bpf_ktime_get_tai_ns of
// Linux 6.1 (include/uapi/linux/bpf.h, number 208). It shows what becomes of a relay on a kernel that is too old.
const (
	modernBase  = "examples/gate"
	modernName  = "planted/needs_6_1"
	modernNeeds = "6.1"

	programLine   = `SEC("tc") int prog_`
	plantedHelper = "static __u64 (*planted_tai)(void) = (void *)208;\n\n"
	plantedCall   = "\t__u64 planted = planted_tai();\n\tasm volatile(\"\" : : \"r\"(planted));\n"
)

// buildModern compiles a relay's C with a call of that helper in its first program.
func buildModern(ctx context.Context, r *build.Result, dir string) error {
	before, program, ok := strings.Cut(string(r.Files[build.SourceName]), programLine)
	head, body, ok2 := strings.Cut(program, "{\n")
	if !ok || !ok2 {
		return fmt.Errorf("%s: its C holds no program", modernBase)
	}
	source := before + plantedHelper + programLine + head + "{\n" + plantedCall + body
	object, _, err := clang.Compile(ctx, source, string(r.Files[build.HelpersName]), clang.Options{})
	if err != nil {
		return fmt.Errorf("%s: %w", modernName, err)
	}
	return write(dir, r.File, object, modernNeeds)
}
