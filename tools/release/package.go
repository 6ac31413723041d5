package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	"github.com/spf13/cobra/doc"

	"github.com/fastrelay/fastrelay-gen/internal/cli"
	"github.com/fastrelay/fastrelay-gen/tools/binary"
)

const (
	home  = "https://github.com/fastrelay/fastrelay-gen"
	about = "A compiler for packet relays: from a page of CUE to packets forwarded in the kernel"
)

// epoch is when the release was made, for all that says so: SOURCE_DATE_EPOCH.
func epoch() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		text = "0"
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// writeBOM writes what a binary consists of, as CycloneDX.
func writeBOM(path, program, version string, at time.Time) (err error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Timestamp: at.Format(time.RFC3339), Component: &cyclonedx.Component{
		BOMRef: "main", Type: cyclonedx.ComponentTypeApplication, Name: info.Path, Version: version,
	}}
	parts := []cyclonedx.Component{{BOMRef: "go", Type: cyclonedx.ComponentTypeLibrary, Name: "std",
		Version: strings.TrimPrefix(info.GoVersion, "go"), PackageURL: "pkg:golang/std@" + info.GoVersion[2:]}}
	refs := []string{"go"}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Version == "(devel)" { // the runtime, which is released with the compiler
			m.Version = version
		}
		url := "pkg:golang/" + m.Path + "@" + m.Version
		parts = append(parts, cyclonedx.Component{BOMRef: url, Type: cyclonedx.ComponentTypeLibrary, Name: m.Path,
			Version: m.Version, PackageURL: url})
		refs = append(refs, url)
	}
	bom.Components = &parts
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: "main", Dependencies: &refs}}
	var b bytes.Buffer
	if err := cyclonedx.NewBOMEncoder(&b, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// shells are those that have completions, and where Debian keeps them.
var shells = map[string]string{
	"bash": "/usr/share/bash-completion/completions/fastrelay-gen",
	"zsh":  "/usr/share/zsh/vendor-completions/_fastrelay-gen",
	"fish": "/usr/share/fish/vendor_completions.d/fastrelay-gen.fish",
}

// writeShared writes what is the same for all processors, completions and man pages, into a folder.
func writeShared(dir string, at time.Time) error {
	for shell := range shells {
		var out, problem bytes.Buffer
		if cli.Do([]string{"completion", shell}, nil, &out, &problem) != 0 {
			return fmt.Errorf("completion %s: %s", shell, problem.String())
		}
		if err := os.WriteFile(filepath.Join(dir, "completion."+shell), out.Bytes(), 0o644); err != nil {
			return err
		}
	}
	man := filepath.Join(dir, "man")
	if err := os.Mkdir(man, 0o755); err != nil {
		return err
	}
	command := cli.Command()
	command.DisableAutoGenTag = true
	return doc.GenManTree(command, &doc.GenManHeader{Section: "1", Date: &at, Source: "fastrelay-gen"}, man)
}

// writeDeb writes a Debian package of the command line and the TURN server, with their units.
func writeDeb(path, root, shared, version string, t binary.Target, programs map[string]string, at time.Time) error {
	units := filepath.Join(root, "deploy", "systemd")
	var all files.Contents
	add := func(from, to, kind string, mode os.FileMode) {
		all = append(all, &files.Content{Source: from, Destination: to, Type: kind,
			FileInfo: &files.ContentFileInfo{Mode: mode, MTime: at, Owner: "root", Group: "root"}})
	}
	for name, from := range programs {
		add(from, "/usr/bin/"+name, files.TypeFile, 0o755)
	}
	for shell, to := range shells {
		add(filepath.Join(shared, "completion."+shell), to, files.TypeFile, 0o644)
	}
	for _, name := range []string{"fastrelay-gen@.service", "fastrelay-turn.service"} {
		add(filepath.Join(units, name), "/lib/systemd/system/"+name, files.TypeFile, 0o644)
	}
	add(filepath.Join(units, "fastrelay-turn.default"), "/etc/default/fastrelay-turn", files.TypeConfigNoReplace,
		0o644)
	add(filepath.Join(units, "logrotate"), "/etc/logrotate.d/fastrelay-gen", files.TypeConfigNoReplace, 0o644)
	add("", "/etc/fastrelay-gen", files.TypeDir, 0o755)
	pages, err := filepath.Glob(filepath.Join(shared, "man", "*.1"))
	if err != nil {
		return err
	}
	for _, page := range pages {
		add(page, "/usr/share/man/man1/"+filepath.Base(page), files.TypeFile, 0o644)
	}
	for _, name := range []string{"LICENSE", othersName, binary.OwnFolder + "/GPL-2.0-only.txt",
		binary.OwnFolder + "/BSD-2-Clause.txt"} {
		from := filepath.Join(filepath.Dir(path), name)
		add(from, "/usr/share/doc/fastrelay-gen/"+filepath.Base(name), files.TypeFile, 0o644)
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "fastrelay-gen", Arch: t.Processor, Platform: "linux", Version: version, Section: "net",
		Priority: "optional", Maintainer: "The fastrelay-gen authors <" + home + ">", Homepage: home, MTime: at,
		Description: about, License: "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)",
		Overridables: nfpm.Overridables{Contents: all, Recommends: []string{"clang-19", "llvm-19"},
			Scripts: nfpm.Scripts{PostInstall: filepath.Join(units, "postinst"),
				PreRemove: filepath.Join(units, "prerm"), PostRemove: filepath.Join(units, "postrm")}},
	})
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return err
	}
	var b bytes.Buffer
	if err := deb.Default.Package(info, &b); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// writeImage has tools/image make the container image.
func writeImage(ctx context.Context, path, root, version string, t binary.Target) error {
	cmd := exec.CommandContext(ctx, "go", "run", "./tools/image", "-server", turn, "-version", version, "-arch",
		t.Processor, "-o", path)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("the image: %w\n%s", err, out)
	}
	return nil
}
