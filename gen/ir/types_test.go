package ir

import (
	"bytes"
	"testing"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// TestKinds wants a whole row for each kind, so that a type that is added can't lack a fact.
func TestKinds(t *testing.T) {
	words := map[abi.Kind]string{}
	for k := range Kinds {
		row := kinds[k]
		typ := KindType(k)
		switch k {
		case Uint:
			typ = UintType(19)
		case Bytes:
			typ.Size = 5
		}
		name := typ.Word()
		if got, _, ok := WordType(name, 0); row.in != 0 && (!ok || got != typ) {
			t.Errorf("%s: its word stands for %+v, not %+v", name, got, typ)
		}
		if row.in == 0 != (k == Hop) {
			t.Errorf("%s: declared in %b; only hops are hidden", name, row.in)
		}
		if typ.Size == 0 || typ.Align() == 0 || typ.Align() > 8 || typ.What() == "" || k != Hop && typ.Go() == "" {
			t.Errorf("%s: size %d, alignment %d, %q, in Go %q", name, typ.Size, typ.Align(), typ.What(), typ.Go())
		}
		if other, taken := words[k.ABI()]; taken || k.ABI() == 0 {
			t.Errorf("%s: the runtime calls it %v, like %s", name, k.ABI(), other)
		}
		words[k.ABI()] = name
		if typ.IsBytes() == k.IsIndex() && k != Uint && k != Bool {
			t.Errorf("%s is bytes or an index", name)
		}
		if zero := make([]byte, typ.Size); typ.Show(zero) == "" {
			t.Errorf("%s: 0 has no text", name)
		}
		if typ.HasText() != (typ.IsBytes() && k != Hop) {
			t.Errorf("%s: can be parsed: %v", name, typ.HasText())
		}
		if typ.Example() == "" {
			continue
		}
		b, err := typ.Parse(typ.Example())
		if err != nil || len(b) != typ.Size || typ.Show(b) != typ.Example() {
			t.Errorf("%s: %q is %x, %v", name, typ.Example(), b, err)
		}
	}
	if typ, perLevel, ok := WordType("buckets", 4); !ok || !perLevel || typ != (Type{Kind: Bucket, Bits: 4, Size: 4}) ||
		typ.Word() != "buckets" || typ.Go() != "[]*runtime.Bucket" {
		t.Errorf("buckets: %+v", typ)
	}
	for _, wrong := range []string{"", "u", "u0", "u65", "u08", "u+8", "bytes", "bytes0", "bytes65", "hop", "uint8"} {
		if _, _, ok := WordType(wrong, 8); ok {
			t.Errorf("%q is a type", wrong)
		}
	}
	if len(Words()) != 12 {
		t.Errorf("the words are %q", Words())
	}
	if b, err := UintType(12).Uint(0xFFF); err != nil || !bytes.Equal(b, []byte{0xff, 0xf}) {
		t.Errorf("%x, %v", b, err)
	}
	if _, err := UintType(12).Uint(0x1000); err == nil {
		t.Error("13 bits fit into 12")
	}
	if b, err := KindType(Ctr).Uint(70000); err != nil || len(b) != 4 {
		t.Errorf("%x, %v", b, err)
	}
}
