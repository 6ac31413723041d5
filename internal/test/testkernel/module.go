package testkernel

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// wanted are the modules that the guest needs, where nothing loads modules on demand. A kernel may have some built in.
var wanted = []string{"veth", "sch_ingress", "cls_bpf"}

// collectModules copies the wanted modules and those that they need from an unpacked kernel into a folder,
// uncompressed, and returns their names in the order of loading.
func collectModules(ctx context.Context, root, out string) ([]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if name, _, ok := strings.Cut(filepath.Base(path), ".ko"); ok && err == nil {
			files[moduleName(name)] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		return nil, err
	}
	var order []string
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		path, ok := files[name]
		if !ok || seen[name] { // a module that isn't there is built in
			return nil
		}
		seen[name] = true
		module, err := readModule(ctx, path)
		if err != nil {
			return err
		}
		needs, err := moduleNeeds(module)
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(path), err)
		}
		for _, n := range needs {
			if err := add(moduleName(n)); err != nil {
				return err
			}
		}
		order = append(order, name+".ko")
		return os.WriteFile(filepath.Join(out, name+".ko"), module, 0o644)
	}
	for _, name := range wanted {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// moduleName is a module's name as the kernel knows it.
func moduleName(name string) string { return strings.ReplaceAll(name, "-", "_") }

func readModule(ctx context.Context, path string) ([]byte, error) {
	if filepath.Ext(path) == ".xz" {
		out, err := command(ctx, "", "xz", "--decompress", "--stdout", path)
		return []byte(out), err
	}
	return os.ReadFile(path)
}

// moduleNeeds returns the names of the modules that a module says it depends on, in its section .modinfo.
func moduleNeeds(module []byte) ([]string, error) {
	file, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for entry := range strings.SplitSeq(string(info), "\x00") {
		if list, ok := strings.CutPrefix(entry, "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
