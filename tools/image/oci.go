package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// user is who the server runs as: no one whom a machine knows.
const user = 65532

// capability is the attribute of a file whose process gets the capabilities that a relay needs, if the container may
// have them (linux/capability.h: struct vfs_cap_data, revision 2, which is little-endian on each processor).
func capability() string {
	const (
		revision, effective       = 0x02000000, 1
		netAdmin, perfmon, capBPF = 12, 38, 39
		permitted                 = uint64(1<<netAdmin | 1<<perfmon | 1<<capBPF)
	)
	b := binary.LittleEndian.AppendUint32(nil, revision|effective)
	b = binary.LittleEndian.AppendUint32(b, uint32(permitted&0xFFFFFFFF))
	b = binary.LittleEndian.AppendUint32(b, 0) // none is inheritable
	b = binary.LittleEndian.AppendUint32(b, uint32(permitted>>32))
	b = binary.LittleEndian.AppendUint32(b, 0)
	return string(b)
}

// xattr begins the names of extended attributes in the headers of archives.
const xattr = "SCHILY.xattr."

// entry is a file of a layer, or a folder: one whose name ends with a slash.
type entry struct {
	name       string
	mode       int64
	owner      int
	content    []byte
	privileged bool // has the capability attribute
}

// layer is an archive of these files. Nothing in it says when it was made.
func layer(entries []entry) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{
			Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner, Size: int64(len(e.content)),
			ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
		}
		if e.privileged {
			h.PAXRecords = map[string]string{xattr + "security.capability": capability()}
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.content); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}

// What follows is the OCI image format, version 1.1 (github.com/opencontainers/image-spec).

const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type index struct {
	Version   int          `json:"schemaVersion"`
	MediaType string       `json:"mediaType"`
	Manifests []descriptor `json:"manifests"`
}

type manifest struct {
	Version   int          `json:"schemaVersion"`
	MediaType string       `json:"mediaType"`
	Config    descriptor   `json:"config"`
	Layers    []descriptor `json:"layers"`
}

type config struct {
	platform
	Config struct {
		User       string            `json:"User"`
		Entrypoint []string          `json:"Entrypoint"`
		WorkingDir string            `json:"WorkingDir"`
		Labels     map[string]string `json:"Labels"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

// archive writes an image of one layer as an OCI layout in an archive.
func archive(out string, im image, layer []byte) (err error) {
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := tar.NewWriter(f)
	file := func(name string, content []byte) {
		e := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(0, 0)})
		if e == nil {
			_, e = w.Write(content)
		}
		err = errors.Join(err, e)
	}
	blob := func(mediaType string, content []byte) descriptor {
		d := descriptor{MediaType: mediaType, Digest: digest(content), Size: len(content)}
		file("blobs/sha256/"+d.Digest[len("sha256:"):], content)
		return d
	}
	object := func(v any) []byte {
		text, e := json.Marshal(v)
		err = errors.Join(err, e)
		return text
	}

	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(layer); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	on := platform{im.processor, "linux"}
	c := config{platform: on}
	c.Config.User = fmt.Sprintf("%d:%d", user, user)
	c.Config.Entrypoint = []string{"/" + im.name()}
	c.Config.WorkingDir = "/"
	c.Config.Labels = map[string]string{
		"org.opencontainers.image.title":    im.name(),
		"org.opencontainers.image.version":  im.version,
		"org.opencontainers.image.licenses": "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)",
		"org.opencontainers.image.source":   "https://github.com/fastrelay/fastrelay-gen",
	}
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{digest(layer)}
	m := blob(typeManifest, object(manifest{
		Version: 2, MediaType: typeManifest,
		Config: blob(typeConfig, object(c)),
		Layers: []descriptor{blob(typeLayer, packed.Bytes())},
	}))
	m.Platform = &on
	m.Annotations = map[string]string{
		"org.opencontainers.image.ref.name": im.version,
		"io.containerd.image.name":          "docker.io/fastrelay/" + im.name() + ":" + im.version,
	}
	file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	file("index.json", object(index{Version: 2, MediaType: typeIndex, Manifests: []descriptor{m}}))
	return errors.Join(err, w.Close())
}
