package capsule

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

// Every size of an integer (RFC 9000 appendix A.1), and what comes back.
func TestVarint(t *testing.T) {
	for v, want := range map[uint64]string{
		37: "\x25", 15293: "\x7b\xbd", 494878333: "\x9d\x7f\x3e\x7d",
		151288809941952652: "\xc2\x19\x7c\x5e\xff\x14\xe8\x8c",
	} {
		b := AppendVarint(nil, v)
		if string(b) != want {
			t.Errorf("%d is written as %x, want %x", v, b, want)
		}
		if got, err := Integer(b); got != v || err != nil {
			t.Errorf("%x is read as %d, %v; want %d", b, got, err, v)
		}
	}
}

func TestCapsules(t *testing.T) {
	id, virtual := []byte{1, 2, 3, 4}, []byte{5, 6, 7, 8, 9, 10, 11, 12}
	b := Append(nil, Datagram, []byte{0}, []byte("payload"))
	b = AppendFields(b, AckClientCID, id, virtual)
	b = Append(b, RegisterClientCID)
	r := bufio.NewReader(bytes.NewReader(b))
	if kind, content, err := Read(r); kind != Datagram || string(content) != "\x00payload" || err != nil {
		t.Errorf("the datagram: %#x %q %v", kind, content, err)
	}
	kind, content, err := Read(r)
	fields, fieldErr := Fields(content, 2)
	if kind != AckClientCID || err != nil || fieldErr != nil || !bytes.Equal(fields[0], id) ||
		!bytes.Equal(fields[1], virtual) {
		t.Errorf("the acknowledgement: %#x %x %v %v", kind, fields, err, fieldErr)
	}
	if kind, content, err := Read(r); kind != RegisterClientCID || len(content) != 0 || err != nil {
		t.Errorf("the empty ID: %#x %q %v", kind, content, err)
	}
	if _, _, err := Read(r); err != io.EOF {
		t.Errorf("the end: %v", err)
	}
}

// What ends too early, or is longer than anything that belongs here, is an error and no panic.
func TestWrongCapsules(t *testing.T) {
	whole := AppendFields(nil, AckClientCID, []byte{1, 2, 3, 4}, []byte{5, 6, 7, 8})
	for n := 1; n < len(whole); n++ {
		if _, _, err := Read(bufio.NewReader(bytes.NewReader(whole[:n]))); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes of a capsule: %v", n, err)
		}
	}
	long := AppendVarint(AppendVarint(nil, 0), longest+1)
	_, _, err := Read(bufio.NewReader(bytes.NewReader(long)))
	if err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("a long capsule: %v", err)
	}
	for name, content := range map[string]string{
		"nothing": "", "one field": "\x01a", "a short field": "\x01a\x02b", "bytes after it": "\x01a\x01bc",
		"a long field": "\x01a\x15" + strings.Repeat("b", 21),
	} {
		if f, err := Fields([]byte(content), 2); err == nil {
			t.Errorf("%s: read as %q", name, f)
		}
	}
	for name, content := range map[string]string{"nothing": "", "half": "\x40", "bytes after it": "\x01\x02"} {
		if v, err := Integer([]byte(content)); err == nil {
			t.Errorf("%s: read as %d", name, v)
		}
	}
	if _, err := ID(make([]byte, 21)); err == nil {
		t.Error("an ID of 21 bytes is accepted")
	}
}
