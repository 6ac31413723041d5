// Command image makes a container image of a server with its relay, without Docker: an OCI archive with a static binary
// of the server, fastrelay-gen for probes and operators, and their licenses. Nothing else is in it, as `FROM scratch`.
// The server runs as a user without rights, and gets the three capabilities of relays by its file: Kubernetes gives
// users other than root no others. The same tree and Go release give the same bytes.
//
//	go run ./tools/image -server ./examples/turn -o dist/turn.tar
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/fastrelay/fastrelay-gen/tools/binary"
)

func main() {
	var im image
	flag.StringVar(&im.server, "server", "./examples/turn", "the `package` of the server")
	flag.StringVar(&im.version, "version", "v0.0.0", "the version, which fastrelay-gen reports")
	flag.StringVar(&im.processor, "arch", runtime.GOARCH, "the processor: amd64 or arm64")
	out := flag.String("o", "", "the archive; dist/SERVER.tar by default")
	flag.Parse()
	if *out == "" {
		*out = filepath.Join("dist", im.name()+".tar")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := im.write(ctx, ".", *out); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		stop()
		os.Exit(1)
	}
	fmt.Printf("%s: fastrelay/%s:%s for linux/%s\n", *out, im.name(), im.version, im.processor)
}

// image is what is asked for.
type image struct{ server, version, processor string }

// name is that of the server's folder.
func (im image) name() string { return filepath.Base(im.server) }

// write builds the binaries from the tree in root, and writes the archive.
func (im image) write(ctx context.Context, root, out string) error {
	dir, err := os.MkdirTemp("", "image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	target := binary.Target{System: "linux", Processor: im.processor}
	tool, server := filepath.Join(dir, "tool"), filepath.Join(dir, "server")
	for path, pkg := range map[string]string{tool: binary.Command, server: im.server} {
		if err := binary.Build(ctx, root, im.version, path, pkg, target); err != nil {
			return err
		}
	}
	licenses, err := binary.Own(root)
	if err != nil {
		return err
	}
	others, err := binary.Licenses(ctx, root, []binary.Target{target}, binary.Command, im.server)
	if err != nil {
		return err
	}
	content := map[string][]byte{}
	for name, path := range map[string]string{"fastrelay-gen": tool, im.name(): server} {
		if content[name], err = os.ReadFile(path); err != nil {
			return err
		}
	}
	entries := []entry{{name: binary.OwnFolder + "/", mode: 0o755}}
	for _, name := range slices.Sorted(maps.Keys(licenses)) {
		entries = append(entries, entry{name: name, mode: 0o644, content: licenses[name]})
	}
	layer, err := layer(append(entries, []entry{
		{name: "THIRD_PARTY_LICENSES", mode: 0o644, content: others},
		{name: "fastrelay-gen", mode: 0o755, content: content["fastrelay-gen"]},
		{name: im.name(), mode: 0o755, content: content[im.name()], privileged: true},
		{name: "run/", mode: 0o755},
		{name: "run/fastrelay/", mode: 0o755, owner: user},
	}...))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return archive(out, im, layer)
}
