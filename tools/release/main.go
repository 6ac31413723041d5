// Command release builds what a release consists of: static binaries of fastrelay-gen for each system, and for Linux a
// Debian package, a container image of the TURN server, what both consist of (SBOM), shell completions and man pages;
// licenses and checksums. The same tree, version, Go release and SOURCE_DATE_EPOCH give the same bytes, in any folder.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"

	"github.com/fastrelay/fastrelay-gen/tools/binary"
)

var targets = []binary.Target{
	{System: "linux", Processor: "amd64"}, {System: "linux", Processor: "arm64"},
	{System: "darwin", Processor: "amd64"}, {System: "darwin", Processor: "arm64"},
	{System: "windows", Processor: "amd64"},
}

const (
	sumsName   = "SHA256SUMS"
	othersName = "THIRD_PARTY_LICENSES"
	// turn is the server that comes in the package and the image.
	turn = "./examples/turn"
)

func main() {
	version := flag.String("version", "", "the version, such as v0.1.0")
	root := flag.String("root", ".", "the tree")
	out := flag.String("o", "dist", "the folder to write to; it must not hold anything but an earlier release")
	only := flag.String("only", "", "one target alone, such as linux/amd64")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	which := slices.DeleteFunc(slices.Clone(targets), func(t binary.Target) bool {
		return *only != "" && t.System+"/"+t.Processor != *only
	})
	err := fmt.Errorf("there is no target %q", *only)
	if len(which) > 0 {
		err = required(*root, *version)
	}
	if err == nil {
		err = release(ctx, *root, *version, *out, which)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		stop()
		os.Exit(1)
	}
}

// required checks that who installs this version of the compiler gets the same version of the runtime.
func required(root, version string) error {
	const runtime = "github.com/fastrelay/fastrelay-gen/runtime"
	if !semver.IsValid(version) {
		return nil // release refuses it
	}
	name := filepath.Join(root, "go.mod")
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	mod, err := modfile.Parse(name, text, nil)
	if err != nil {
		return err
	}
	for _, r := range mod.Require {
		if r.Mod.Path == runtime && r.Mod.Version != version {
			return fmt.Errorf("%s:%d: requires %s, but this is a release of %s: write that there and into go.work",
				name, r.Syntax.Start.Line, r.Mod, version)
		}
	}
	return nil
}

// release builds all targets from the tree in root.
func release(ctx context.Context, root, version, out string, targets []binary.Target) error {
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return fmt.Errorf("%q is not a version: say for example make release VERSION=v0.1.0", version)
	}
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	at, err := epoch()
	if err != nil {
		return err
	}
	files, err := binary.Own(root)
	if err != nil {
		return err
	}
	if err := empty(out, slices.Collect(maps.Keys(files))); err != nil {
		return err
	}
	var names []string
	for _, t := range targets {
		name := fmt.Sprintf("fastrelay-gen_%s_%s_%s", version, t.System, t.Processor)
		if t.System == "windows" {
			name += ".exe"
		}
		if err := binary.Build(ctx, root, version, filepath.Join(out, name), binary.Command, t); err != nil {
			return err
		}
		names = append(names, name)
	}
	if files[othersName], err = binary.Licenses(ctx, root, targets, binary.Command, turn); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(out, binary.OwnFolder), 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(out, name), text, 0o644); err != nil {
			return err
		}
		names = append(names, name)
	}
	shared, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(shared)
	if err := writeShared(shared, at); err != nil {
		return err
	}
	for _, t := range targets {
		if t.System != "linux" {
			continue
		}
		more, err := writeLinux(ctx, root, out, shared, version, t, at)
		if err != nil {
			return err
		}
		names = append(names, more...)
	}
	return sums(out, names)
}

// writeLinux writes what there is for Linux alone, and returns the names of the files.
func writeLinux(
	ctx context.Context, root, out, shared, version string, t binary.Target, at time.Time,
) (names []string, err error) {
	end := "_" + version + "_linux_" + t.Processor
	tool, server := filepath.Join(out, "fastrelay-gen"+end), filepath.Join(shared, "turn"+end)
	if err := binary.Build(ctx, root, version, server, turn, t); err != nil {
		return nil, err
	}
	file := func(name string) string {
		names = append(names, name)
		return filepath.Join(out, name)
	}
	programs := map[string]string{"fastrelay-gen": tool, "fastrelay-turn": server}
	err = errors.Join(
		writeBOM(file("fastrelay-gen"+end+".cdx.json"), tool, version, at),
		writeBOM(file("turn"+end+".cdx.json"), server, version, at),
		writeDeb(file("fastrelay-gen_"+version[1:]+"_"+t.Processor+".deb"), root, shared, version, t, programs, at),
		writeImage(ctx, file("turn"+end+".tar"), root, version, t))
	return names, err
}

// empty makes the folder, or removes an earlier release from it, with these licenses. Anything else in it is an error.
func empty(dir string, licenses []string) error {
	known := append([]string{".", sumsName, othersName, binary.OwnFolder}, licenses...)
	var found []string // a folder in front of what is in it
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, _ fs.DirEntry, err error) error {
		ours := strings.HasPrefix(name, "fastrelay-gen_") || strings.HasPrefix(name, "turn_v") ||
			slices.Contains(known, name)
		if err == nil && !ours {
			return fmt.Errorf("%s holds %s, which is not part of a release: choose another folder", dir, name)
		}
		found = append(found, name)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return err
	}
	for _, name := range slices.Backward(found[1:]) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// sums writes the checksums of all files, as sha256sum does.
func sums(dir string, names []string) error {
	slices.Sort(names)
	var text []byte
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		text = fmt.Appendf(text, "%x  %s\n", sha256.Sum256(content), name)
	}
	return os.WriteFile(filepath.Join(dir, sumsName), text, 0o644)
}
