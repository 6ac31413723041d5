package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// built are the archives of images of examples.
var built = map[string]func() ([]byte, error){"turn": once("turn"), "gate": once("gate")}

func once(server string) func() ([]byte, error) {
	return sync.OnceValues(func() ([]byte, error) {
		dir, err := os.MkdirTemp("", "image-test")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		return build(server, filepath.Join(dir, server+".tar"))
	})
}

func build(server, out string) ([]byte, error) {
	tree, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	im := image{server: "./examples/" + server, version: "v0.9.0", processor: runtime.GOARCH}
	ctx, stop := contextWithTimeout()
	defer stop()
	if err := im.write(ctx, tree, out); err != nil {
		return nil, err
	}
	return os.ReadFile(out)
}

// files reads an archive.
func files(text []byte) (map[string]*tar.Header, map[string][]byte, error) {
	headers, content := map[string]*tar.Header{}, map[string][]byte{}
	r := tar.NewReader(bytes.NewReader(text))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return headers, content, nil
		}
		if err != nil {
			return nil, nil, err
		}
		if content[h.Name], err = io.ReadAll(r); err != nil {
			return nil, nil, err
		}
		headers[h.Name] = h
	}
}

// unpacked follows an image from its index to the layer, and returns that with what the configuration says.
func unpacked(t *testing.T, server string) (layer []byte, c config) {
	t.Helper()
	text, err := built[server]()
	if err != nil {
		t.Fatal(err)
	}
	_, content, err := files(text)
	if err != nil {
		t.Fatal(err)
	}
	blob := func(d descriptor) []byte {
		t.Helper()
		b := content["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
		if len(b) != d.Size || digest(b) != d.Digest {
			t.Fatalf("%s has %d bytes and digest %s, not %d and %s", d.MediaType, len(b), digest(b), d.Size, d.Digest)
		}
		return b
	}
	var in index
	var m manifest
	for _, step := range []struct {
		text func() []byte
		out  any
	}{
		{func() []byte { return content["index.json"] }, &in},
		{func() []byte { return blob(in.Manifests[0]) }, &m},
		{func() []byte { return blob(m.Config) }, &c},
	} {
		if err := json.Unmarshal(step.text(), step.out); err != nil {
			t.Fatal(err)
		}
	}
	z, err := gzip.NewReader(bytes.NewReader(blob(m.Layers[0])))
	if err != nil {
		t.Fatal(err)
	}
	if layer, err = io.ReadAll(z); err != nil {
		t.Fatal(err)
	}
	if got := digest(layer); got != c.RootFS.DiffIDs[0] {
		t.Errorf("the layer's digest is %s, not %s", got, c.RootFS.DiffIDs[0])
	}
	return layer, c
}

// The image has two static binaries and their licenses, nothing else, and runs as a user without a name.
func TestImage(t *testing.T) {
	layer, c := unpacked(t, "turn")
	if c.Config.User != "65532:65532" || strings.Join(c.Config.Entrypoint, " ") != "/turn" ||
		c.Architecture != runtime.GOARCH || c.OS != "linux" {
		t.Errorf("configuration %+v", c)
	}
	headers, content, err := files(layer)
	if err != nil {
		t.Fatal(err)
	}
	for name, h := range headers {
		privileged := h.PAXRecords[xattr+"security.capability"] != ""
		if privileged != (name == "turn") || h.Uid != map[bool]int{true: user}[name == "run/fastrelay/"] {
			t.Errorf("%s: user %d, %v", name, h.Uid, h.PAXRecords)
		}
	}
	if len(headers) != 10 || !bytes.Contains(content["THIRD_PARTY_LICENSES"], []byte("github.com/pion/turn/v5")) {
		t.Errorf("the image has %d files", len(headers))
	}
	for _, name := range []string{"LICENSE", "LICENSES/BSD-2-Clause.txt", "LICENSES/GPL-2.0-only.txt"} {
		if want, err := os.ReadFile("../../" + name); err != nil || !bytes.Equal(content[name], want) {
			t.Errorf("%s isn't in the image as it is in the tree: %v", name, err)
		}
	}
}

// The same tree gives the same bytes.
func TestReproducible(t *testing.T) {
	first, err := built["turn"]()
	if err != nil {
		t.Fatal(err)
	}
	second, err := build("turn", filepath.Join(t.TempDir(), "again.tar"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Error("two images of the same tree differ")
	}
}

// The Dockerfile makes the same image if there is Docker.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile("../../deploy/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"setcap cap_net_admin,cap_perfmon,cap_bpf+ep ", "\nFROM scratch\n", "\nUSER 65532:65532\n", "CGO_ENABLED=0",
		"\nENTRYPOINT [\"/server\"]\n", "/run/fastrelay", "/LICENSE ", "/LICENSES ",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the Dockerfile has no %q", want)
		}
	}
}
