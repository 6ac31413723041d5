package testkernel

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// wanted are the modules that the guest needs, if nothing loads modules on demand. A kernel may have some built in.
var wanted = []string{
	"veth", "sch_ingress", "cls_bpf",
	// Devices that packets come from and leave through.
	"tun", "dummy", "8021q", "bonding", "bridge", "vrf", "macvlan", "virtio_pci", "virtio_net",
	// Tunnels.
	"ipip", "sit", "ip6_tunnel", "ip_gre", "ip6_gre", "vxlan", "geneve", "fou", "fou6",
	// IPsec, and the cipher that it asks for by name.
	"xfrm_user", "xfrm_interface", "esp4", "esp6", "esp4_offload", "esp6_offload", "ctr", "gcm", "seqiv",
}

// formerly are modules that newer kernels don't have, since others do without them: what the cipher, and the random
// numbers for its keys, ask for by name.
var formerly = []string{"ghash_generic", "aes_generic", "sha512_generic", "jitterentropy_rng", "drbg"}

// Wanted returns the modules that Fetch looks for in a kernel.
func (s Source) Wanted() []string {
	if s.Modules != nil {
		return s.Modules
	}
	return slices.Concat(wanted, formerly)
}

// collectModules copies the wanted modules and those that they need from an unpacked kernel into a folder,
// uncompressed, and returns their names in the order of loading. It fails if a wanted module is neither there nor
// built in.
func collectModules(ctx context.Context, root, out string, names []string) ([]string, error) {
	files, builtIn := map[string]string{}, map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if filepath.Base(path) == "modules.builtin" {
			return readBuiltIn(path, builtIn)
		}
		if name, ok := moduleFile(path); ok {
			files[name] = path
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, name := range names {
		if files[name] == "" && !builtIn[name] && !slices.Contains(formerly, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("it has no modules %s", strings.Join(missing, ", "))
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
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// moduleFile returns the name of the module in a file, which may be compressed.
func moduleFile(path string) (name string, ok bool) {
	base, _, ok := strings.Cut(filepath.Base(path), ".ko")
	return moduleName(base), ok
}

// readBuiltIn adds the modules that a kernel says it has built in, a path a line.
func readBuiltIn(path string, names map[string]bool) error {
	text, err := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if name, ok := moduleFile(strings.TrimSpace(line)); ok {
			names[name] = true
		}
	}
	return err
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
