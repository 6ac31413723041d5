//go:build linux

package lua_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/lua"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// What isn't a name doesn't reach the script, wherever it is in the spec: the loader lets no such name through, and
// this package doesn't rely on that.
func TestUntrusted(t *testing.T) {
	const evil = "x\"]] os.execute('id') --"
	file := "../../golden/frames/spec.cue"
	load := func() *spec.Spec {
		s, list := spec.LoadFile(file)
		if list.Len() > 0 {
			t.Fatal(list)
		}
		return s
	}
	own := func(s *spec.Spec) *spec.Header {
		for _, h := range s.Headers {
			if !h.Std && h.Name.Value == "stream" {
				return h
			}
		}
		t.Fatal("no header")
		return nil
	}
	for what, change := range map[string]func(s *spec.Spec){
		"spec":   func(s *spec.Spec) { s.Name.Value = evil },
		"header": func(s *spec.Spec) { own(s).Name.Value = evil },
		"field":  func(s *spec.Spec) { own(s).Fields[0].Name.Value = evil },
		"entry":  func(s *spec.Spec) { s.Programs[0].Stack[4].Var.Value = evil },
		"after":  func(s *spec.Spec) { s.Programs[0].Stack[6].After.Value = evil },
		"count":  func(s *spec.Spec) { own(s).Fields[2].Counts.What = evil },
		"name in an expression": func(s *spec.Spec) {
			own(s).Fields[2].When = &spec.Expr{Op: spec.OpName, Path: []spec.Name{{Value: evil}}}
		},
		"parent": func(s *spec.Spec) {
			own(s).After = []*spec.After{{Parent: spec.Name{Value: evil}}}
		},
	} {
		s := load()
		change(s)
		text, err := lua.Render(s)
		if strings.Contains(text, "os.execute") {
			t.Errorf("%s: it is in the script", what)
		}
		if err == nil && what != "header" {
			t.Errorf("%s: no error", what)
		}
	}
	s := load()
	s.File = "x\nos.execute('id')"
	if text, err := lua.Render(s); err != nil || strings.Contains(text, "os.execute") {
		t.Errorf("the file's name: %v", err)
	}
}

// A header that is only pushed is shown if what is in front says that it follows; a packet whose port no stack names
// is shown by "Decode As", and not without; and one from a port that is a destination in the spec isn't the relay's.
// What is inside is shown by Wireshark, malformed or not.
func TestWhichPackets(t *testing.T) {
	const (
		last   = "\x00\x06\x51\x40" // a label
		more   = "\x00\x01\x00\x40" // one that isn't the last
		front  = "eth:ethertype:ip:udp:fr_labels:"
		inside = "\x45\x00\x00\x1e\x00\x01\x00\x00\x09\x11\x9d\xc8\x0a\x01\x00\x02\x0a\x02\x00\x02" +
			"\x00\x01\x00\x02\x00\x0a\x83\x67hi"
	)
	for _, c := range []struct {
		spec, field string
		src, dst    uint16
		payload     string
		args        []string
		want        string
	}{
		{"no-link", "fr_no_link.shim.id", 9, 7000, "\x00\x00\x00\x07", nil, "7"},
		{"no-link", "fr_no_link.shim.id", 9, 7001, "\x00\x00\x00\x07", nil, ""},
		{"no-link", "fr_no_link.shim.id", 7000, 9, "\x00\x00\x00\x07", nil, ""},
		{
			"no-link", "fr_no_link.shim.id", 9, 7001, "\x00\x00\x00\x07",
			[]string{"-d", "udp.port==7001,fr_no_link"}, "7",
		},
		{"fronts", "fr_fronts.shim.id", 9, 7000, "\x00\x07", nil, "7"},
		{"frames", "fr_frames.stream.id", 9, 4433, "\x00\x08\x05abcdefgh", nil, "5"},
		{"frames", "fr_frames.stream.id", 9, 4433, "\x00\x70\x05abcdefgh", nil, "5"},
		{"frames", "fr_frames._value", 9, 4433, "\x00\x70\x05abcdefgh", nil, "1"},
		{"frames", "fr_frames._length", 9, 4434, "\x00\x0a\x05\x20abcdefgh", nil, "1"},
		{"frames", "fr_frames._truncated", 9, 4434, "\x00\x0a\x05", nil, "1"},
		{"elements", "fr_elements.media.list.id", 9, 9, "\x10", nil, ""},
		{"labels", "frame.protocols", 9, 6635, last + "body", nil, front + "ipv6"}, // which is too short
		{"labels", "frame.protocols", 9, 6635, last + "\x76", nil, front + "data"},
		{"labels", "frame.protocols", 9, 6635, last + inside, nil, front + "ip:udp:data"},
		{
			"labels", "frame.protocols", 9, 6635,
			last + "\x46\x00\x00\x22" + inside[4:20] + "\x01\x01\x01\x00" + inside[20:], nil, front + "ip:udp:data",
		},
		{"labels", "frame.protocols", 9, 6635, more + last + inside, nil, front + "ip:udp:data"},
		{"labels", "fr_labels.mpls.label", 9, 6635, more + last + inside, nil, "16,101"},
		{"labels", "frame.protocols", 9, 6635, more + "x", nil, front + "data"},
		{"labels", "frame.protocols", 9, 6635, more + more + last + "body", nil, front + "data"},
	} {
		s, list := spec.LoadFile(specFile(c.spec))
		if list.Len() > 0 {
			t.Fatal(list)
		}
		text, err := lua.Render(s)
		if err != nil {
			t.Fatal(err)
		}
		script, capture := files(t, text, [][]byte{datagram(c.src, c.dst, c.payload)})
		args := []string{
			"-n", "-r", capture, "-X", "lua_script:" + script,
			"-T", "fields", "-e", c.field, "-e", "_ws.expert.message",
		}
		args = append(args, c.args...)
		var complaints bytes.Buffer
		cmd := exec.Command("tshark", args...)
		cmd.Env, cmd.Stderr = append(os.Environ(), "HOME="+t.TempDir()), &complaints
		out, err := cmd.Output()
		got, mistakes, _ := strings.Cut(strings.TrimSuffix(string(out), "\n"), "\t")
		if strings.Contains(c.field, "._") && got != "" {
			got = "1"
		}
		if err != nil || got != c.want || strings.Contains(mistakes, "Lua Error") {
			t.Errorf("%s, %d to %d, %v: %s is %q, want %q; %s: %v: %s", c.spec, c.src, c.dst, c.args, c.field,
				got, c.want, mistakes, err, &complaints)
		}
	}
}

// datagram is a frame with a UDP datagram over IPv4, without checksums.
func datagram(src, dst uint16, payload string) []byte {
	b := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, byte(28 + len(payload)), 0, 0, 0, 0, 64, 17, 0, 0}
	b = append(b, 192, 0, 2, 1, 192, 0, 2, 2, byte(src>>8), byte(src), byte(dst>>8), byte(dst))
	return append(append(b, 0, byte(8+len(payload)), 0, 0), payload...)
}

// files writes a dissector and a capture.
func files(t *testing.T, text string, packets [][]byte) (script, capture string) {
	t.Helper()
	dir := t.TempDir()
	script, capture = filepath.Join(dir, "dissector.lua"), filepath.Join(dir, "packets.pcap")
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var frames []testnet.Frame
	for _, p := range packets {
		frames = append(frames, testnet.Frame{Data: p})
	}
	file, err := os.Create(capture)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(dissect.WritePcap(file, frames), file.Close()); err != nil {
		t.Fatal(err)
	}
	return script, capture
}
