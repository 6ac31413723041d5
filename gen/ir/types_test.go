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
		case Bytes, Data:
			typ.Size = 5
		}
		name := typ.Word()
		if got, ok := WordType(name); row.in != 0 && (!ok || got != typ) {
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
	for _, wrong := range []string{
		"", "u", "u0", "u65", "u08", "u+8", "bytes", "bytes0", "bytes65", "hop", "uint8", "u8[priority]",
	} {
		if _, ok := WordType(wrong); ok {
			t.Errorf("%q is a type", wrong)
		}
	}
	if len(Words()) != 10 {
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

// TestLevels has types with a value for each level of priority.
func TestLevels(t *testing.T) {
	for _, tt := range []struct {
		word, all, golang, shown string
		size                     int
	}{
		{"u16", "u16[priority]", "[3]uint16", "[0, 0, 0]", 6},
		{"bool", "bool[priority]", "[3]bool", "[false, false, false]", 3},
		{"bytes8", "bytes8[priority]", "[3][8]byte", "", 24},
		{"ip", "ip[priority]", "[3]netip.Addr", "[::, ::, ::]", 48},
		{"credit", "credit[priority]", "[3]*runtime.Credit", "0", 4},
		{"bucket", "bucket[priority]", "[3]*runtime.Bucket", "", 4},
		{word: "counter"}, {word: "translation"}, {word: "next_hop"}, {word: "prefix"},
	} {
		one, _ := WordType(tt.word)
		all, ok := one.PerLevel(3)
		if ok != (tt.all != "") {
			t.Errorf("%s for each level: %v", tt.word, ok)
			continue
		}
		if !ok {
			continue
		}
		if all.Word() != tt.all || all.Go() != tt.golang || all.Size != tt.size || all.One() != one ||
			all.Count() != 3 || all.Align() != one.Align() || all.In(InKey) || all.In(InEvent) || !all.In(InValue) {
			t.Errorf("%s: %+v, %s, in Go %s", tt.word, all, all.Word(), all.Go())
		}
		if got := all.Show(make([]byte, all.Size)); tt.shown != "" && got != tt.shown {
			t.Errorf("%s: zeros are %s", tt.all, got)
		}
		if _, twice := all.PerLevel(3); twice {
			t.Errorf("%s has levels twice", tt.all)
		}
	}
}
