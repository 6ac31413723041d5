package restart

import (
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// The filter of a successor sends packets to the socket of their generation: 0 is the first process's.
func TestFilter(t *testing.T) {
	for tag := range byte(2) {
		g := &Generation{tag: tag}
		var raw []bpf.RawInstruction
		for _, i := range g.filter() {
			raw = append(raw, bpf.RawInstruction{Op: i.Code, Jt: i.Jt, Jf: i.Jf, K: i.K})
		}
		program, ok := bpf.Disassemble(raw)
		if !ok {
			t.Fatal("it isn't a program")
		}
		vm, err := bpf.NewVM(program)
		if err != nil {
			t.Fatal(err)
		}
		id := func(tag byte) []byte {
			own := Generation{tag: tag}
			c, err := own.GenerateConnectionID()
			if err != nil || c.Len() != own.ConnectionIDLen() {
				t.Fatal(c, err)
			}
			return c.Bytes()
		}
		short := func(id []byte) []byte { return slices.Concat([]byte{0x43}, id, make([]byte, 40)) }
		long := func(id []byte) []byte {
			return slices.Concat([]byte{0xc3, 0, 0, 0, 1, byte(len(id))}, id, make([]byte, 40))
		}
		random := []byte{0xfa, 0x57, 2, 1, 2, 3, 4, 5}
		for name, c := range map[string]struct {
			packet []byte
			want   int
		}{
			"short, own": {short(id(tag)), 1}, "short, the other's": {short(id(1 - tag)), 0},
			"long, own": {long(id(tag)), 1}, "long, the other's": {long(id(1 - tag)), 0},
			"long, of none": {long(random), 1}, "short, of none": {short(random), 0},
			"long, another beginning": {long([]byte{1, 2, tag, 4, 5, 6, 7, 8}), 1},
			"a byte":                  {[]byte{0x43}, 0}, "a long byte": {[]byte{0xc3}, 0},
		} {
			if got, err := vm.Run(c.packet); got != c.want || err != nil {
				t.Errorf("tag %d, %s: socket %d, %v; want %d", tag, name, got, err, c.want)
			}
		}
	}
}

// Two processes at a time have places, of different tags.
func TestTake(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	a, err := Take(file)
	if err != nil || !a.first {
		t.Fatal(err)
	}
	if _, err := Take(file); err == nil {
		t.Error("there is a place while the first process begins")
	}
	if err := a.fcntl(lockSuccessor, unix.F_UNLCK); err != nil { // as Join does
		t.Fatal(err)
	}
	b, err := Take(file)
	if err != nil || b.first || b.tag == a.tag {
		t.Fatal(b, err)
	}
	if _, err := Take(file); err == nil {
		t.Error("a third process has a place")
	}
	for _, g := range []*Generation{a, b} {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
	if c, err := Take(file); err != nil || !c.first || c.Close() != nil {
		t.Error(err)
	}
}
