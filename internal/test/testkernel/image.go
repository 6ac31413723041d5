package testkernel

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Paths in the guest.
const (
	GuestModules = "/modules"
	GuestRoot    = "/specs"
	GuestArgs    = "/args"
)

// Names of the files of a relay in its folder.
const (
	SpecName   = "spec.cue"
	ObjectName = "relay.o"
)

// Relays that are attached to devices as well.
const (
	TurnDir    = "examples/turn"   // has to forward
	TunnelDir  = "examples/tunnel" // its tunnels end at the kernel's own devices
	DevicesDir = "golden/devices"  // sends through devices of every kind, and takes what comes in by them
)

// OnDevices are all of them.
var OnDevices = []string{TurnDir, TunnelDir, DevicesDir}

// BuildGuest builds a guest's package, a folder of this module, for an architecture, without a C library, into a file.
func BuildGuest(ctx context.Context, folder string, arch Arch, out string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, ".")
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+string(arch))
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the guest: %w\n%s", err, text)
	}
	return nil
}

// Pack makes the image of a guest: the binary built by [BuildGuest], the kernel's modules, and the files in root, if it
// isn't empty, which the guest's arguments may name by [GuestRoot].
func Pack(k *Kernel, binary, root string, args ...string) (Image, error) {
	image := Image{strings.TrimPrefix(GuestArgs, "/"): {[]byte(strings.Join(args, " ")), 0o644}}
	add := func(name, path string, mode fs.FileMode) error {
		data, err := os.ReadFile(path)
		image[strings.TrimPrefix(name, "/")] = File{data, mode}
		return err
	}
	if err := add("init", binary, 0o755); err != nil {
		return nil, err
	}
	for i, name := range k.Modules {
		in := fmt.Sprintf("%s/%03d-%s", GuestModules, i, name)
		if err := add(in, filepath.Join(k.Dir, "modules", name), 0o644); err != nil {
			return nil, err
		}
	}
	if root == "" {
		return image, nil
	}
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return add(GuestRoot+"/"+path, filepath.Join(root, path), 0o644)
	})
	return image, err
}

// FindSpecs returns the folders below root that hold a spec, sorted, relative to root.
func FindSpecs(root string) ([]string, error) {
	var found []string
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == SpecName {
			found = append(found, filepath.Dir(path))
		}
		return err
	})
	slices.Sort(found)
	return found, err
}
