package sim_test

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// The forms of RFC 8285: elements of one byte (§4.2) and of two (§4.3).
var (
	oneByte = ir.ElementForm{IDBits: 4, LenBits: 4, Bias: 1, Pad: 0, Stop: 15}
	twoByte = ir.ElementForm{IDBits: 8, LenBits: 8, Pad: 0, Stop: -1}
)

// find runs a packet that is nothing but a list of elements, and returns what was found.
func find(t *testing.T, list string, id uint64, forms ...ir.ElementForm) string {
	t.Helper()
	data, err := hex.DecodeString(strings.ReplaceAll(list, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	found, length, value := &ir.Var{Name: "found", Type: ir.BoolType}, &ir.Var{Name: "len", Type: ir.UintType(8)},
		&ir.Var{Name: "value", Type: ir.UintType(64)}
	event := &ir.Event{Name: "element", ID: 1, Fields: ir.Struct{Size: 40, Members: []*ir.Member{
		{Name: "found", Type: ir.UintType(64), Off: 16}, {Name: "len", Type: ir.UintType(64), Off: 24},
		{Name: "value", Type: ir.UintType(64), Off: 32},
	}}}
	emit := &ir.Emit{Event: event, Full: -1}
	for i, v := range []*ir.Var{found, length, value} {
		emit.Values = append(emit.Values, ir.MemberValue{Member: event.Fields.Members[i], Value: &ir.VarRef{Var: v}})
	}
	plan := &ir.Plan{Ring: 4096, Events: []*ir.Event{event}, Programs: []*ir.Program{{
		Name: "find", Vars: []*ir.Var{found, length, value}, Reasons: []*ir.Reason{{Name: "dropped", Kind: ir.Dropped},
			{Name: "short", Kind: ir.Punted}},
		Body: []ir.Stmt{
			&ir.NeedBytes{End: at(len(data)), Reason: 1},
			&ir.FindElement{
				Found: found, Len: length, Value: value, Size: num(uint64(len(data))), SizeMax: 255, Forms: forms,
				ID: num(id),
			},
			&ir.Drop{Effects: ir.Effects{Emits: []*ir.Emit{emit}}},
		},
	}}}
	r, err := sim.New(plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.Run("find", sim.Packet{Data: data})
	if err != nil {
		t.Fatal(err)
	}
	word := func(off int) uint64 { return binary.LittleEndian.Uint64(res.Events[0].Record[off:]) }
	if word(16) == 0 && word(24)+word(32) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d %d %016x", word(16), word(24), word(32))
}

func TestFindElement(t *testing.T) {
	never, always := twoByte, oneByte
	never.When, always.When = num(0), num(1)
	for _, c := range []struct {
		name, list string
		id         uint64
		form       ir.ElementForm
		want       string
	}{
		{"the first of two", "50aa 60bb", 5, oneByte, "1 1 aa00000000000000"},
		{"the second of two", "51aabb 60cc", 6, oneByte, "1 1 cc00000000000000"},
		{"the first of its identifier", "50aa 50bb", 5, oneByte, "1 1 aa00000000000000"},
		{"more than eight bytes", "5a 0102030405060708090a0b", 5, oneByte, "1 11 0102030405060708"},
		{"padding between", "60aa 000000 51bbcc", 5, oneByte, "1 2 bbcc000000000000"},
		{"padding has no length", "60aa 02 50bb", 5, oneByte, "1 1 bb00000000000000"},
		{"padding is no element", "00 50aa", 0, oneByte, "none"},
		{"after the end", "f0 50aa", 5, oneByte, "none"},
		{"the end is no element", "f0aa", 15, oneByte, "none"},
		{"another identifier", "60aa", 5, oneByte, "none"},
		{"nothing", "", 5, oneByte, "none"},
		{"only padding", "00000000", 5, oneByte, "none"},
		{"cut off", "51aa", 5, oneByte, "none"},
		{"one in front is cut off", "6faa 50bb", 5, oneByte, "none"},
		{"two bytes", "05 02 aabb", 5, twoByte, "1 2 aabb000000000000"},
		{"two bytes, empty", "05 00 06 01 cc", 5, twoByte, "1 0 0000000000000000"},
		{"two bytes, after an empty one", "06 00 05 01 cc", 5, twoByte, "1 1 cc00000000000000"},
		{"two bytes, padding", "00 00 05 01 cc 00", 5, twoByte, "1 1 cc00000000000000"},
		{"two bytes, 15 is an element", "0f 01 cc", 15, twoByte, "1 1 cc00000000000000"},
		{"two bytes, no length", "06 00 05", 5, twoByte, "none"},
		{"two bytes, cut off", "05 03 aabb", 5, twoByte, "none"},
		{"the 32nd", strings.Repeat("00", 31) + "50aa", 5, oneByte, "1 1 aa00000000000000"},
		{"the 33rd", strings.Repeat("00", 32) + "50aa", 5, oneByte, "none"},
		{"the form doesn't hold", "05 01 aa", 5, never, "none"},
		{"the form holds", "50aa", 5, always, "1 1 aa00000000000000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := find(t, c.list, c.id, c.form); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	if got := find(t, "50aa", 5, never, oneByte, twoByte); got != "1 1 aa00000000000000" {
		t.Errorf("the second of three forms: %s", got)
	}
}

// A list over its bound is a fault of the plan.
func TestFindElementContradiction(t *testing.T) {
	found, n := &ir.Var{Name: "found", Type: ir.BoolType}, &ir.Var{Name: "n", Type: ir.UintType(64)}
	plan := &ir.Plan{Programs: []*ir.Program{{
		Name: "find", Vars: []*ir.Var{found, n}, Reasons: []*ir.Reason{{Name: "up", Kind: ir.Punted}},
		Body: []ir.Stmt{
			&ir.FindElement{Found: found, Len: n, Value: n, Size: num(9), SizeMax: 8, ID: num(1)}, &ir.Punt{},
		},
	}}}
	r, err := sim.New(plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Run("find", sim.Packet{Data: make([]byte, 20)}); err == nil || !strings.Contains(err.Error(),
		"a list of 9 bytes, over its bound of 8") {
		t.Errorf("got %v", err)
	}
}

// A varint keeps the width that it came with, and checksums that cover it follow, at even and odd positions.
func TestVarintCells(t *testing.T) {
	for _, c := range []struct {
		width int
		value uint64
		want  string
	}{
		{1, 0x3f, "3f"}, {1, 5, "05"}, {2, 5, "4005"}, {2, 0x3fff, "7fff"}, {4, 5, "80000005"},
		{4, 0x12345678, "92345678"},
		{8, 5, "c000000000000005"}, {8, 1<<62 - 1, "ffffffffffffffff"},
	} {
		for _, odd := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s odd %t", c.want, odd), func(t *testing.T) {
				fp := newFanPlan()
				off := 46 // after the number
				if odd {
					off++
				}
				value, size := &ir.Var{Name: "value", Type: ir.UintType(62)}, &ir.Var{
					Name: "size", Type: ir.UintType(8), Max: 8,
				}
				fp.program.Vars = append(fp.program.Vars, value, size)
				fp.program.Body = []ir.Stmt{
					&ir.NeedBytes{End: at(off), Reason: fanShort},
					&ir.ReadVarint{Value: value, Size: size, At: at(off), Reason: fanShort},
					fp.fan,
				}
				front := ir.Off{Base: size, Const: off}
				w := fp.copy.Rewrite
				fp.fan.Front, w.OldFront, w.NewFront = front, front, front
				w.Payload = bin(ir.Sub, bin(ir.Sub, &ir.Meta{Kind: ir.FrameLen}, num(uint64(off))), &ir.VarRef{
					Var: size,
				})
				w.Stores = append(w.Stores, ir.Store{Off: at(off), Size: 8, Width: size, Value: num(c.value)})
				udp := w.Sums[1]
				udp.OldTerms = append(udp.OldTerms, ir.Term{
					Value: &ir.Word{X: &ir.VarRef{Var: value}, Width: size}, Size: 8, Odd: odd,
				})
				udp.NewTerms = append(udp.NewTerms, ir.Term{
					Value: &ir.Word{X: num(c.value), Width: size}, Size: 8, Odd: odd,
				})
				r := fp.open(t, anna)

				text := []byte("0123456789abcdefghij")
				came := []byte{0x21, 0x43, 0x65, 0x87, 0xa9, 0xcb, 0xed, 0x0f}[:c.width]
				came[0] = came[0]&0x3f | map[int]byte{1: 0, 2: 0x40, 4: 0x80, 8: 0xc0}[c.width]
				copy(text[off-46:], came)
				in := channelData(text, 0, 0, true)
				in[42] = 0 // level
				in[43] = 0
				sum := uint32(^binary.BigEndian.Uint16(in[40:])) + uint32(^uint16(0x4001))
				binary.BigEndian.PutUint16(in[40:], ^uint16(sum>>16+sum&0xffff))
				checkIndependently(t, in)
				res, err := r.Run("forward", sim.Packet{Data: in})
				if err != nil {
					t.Fatal(err)
				}
				out := res.Copies[0].Packet.Data
				checkIndependently(t, out)
				if got := hex.EncodeToString(out[off : off+c.width]); got != c.want ||
					string(out[off+c.width:]) != string(in[off+c.width:]) {
					t.Errorf("got %s, frame %x", got, out)
				}
			})
		}
	}
}

// Only the side that is chosen is evaluated.
func TestPick(t *testing.T) {
	wrong := bin(ir.Div, num(1), num(0))
	for cond, want := range map[uint64]uint16{0: 16 + 2, 1: 16 + 1} {
		fp := newFanPlan()
		one, two := ir.Expr(num(1)), wrong
		if cond == 0 {
			one, two = wrong, bin(ir.Add, num(1), num(1))
		}
		fp.copy.Rewrite.Stores[2].Value = bin(ir.Add, load(44, 16), &ir.Pick{If: num(cond), Then: one, Else: two})
		fp.copy.Rewrite.Sums = nil
		res, _ := fp.run(t, fp.open(t, anna))
		if got := binary.BigEndian.Uint16(res.Copies[0].Packet.Data[44:]); got != want {
			t.Errorf("%d: got %d, want %d", cond, got, want)
		}
	}
}

// A level is one that the member has a value for.
func TestLevelContradictions(t *testing.T) {
	for level, want := range map[ir.Expr]string{
		num(3): "is read for level 3, of 3", nil: "is read, and not for which level", num(2): "",
	} {
		fp := newFanPlan()
		layers := &ir.Member{Name: "layers", Type: ir.Type{Kind: ir.Uint, Bits: 8, Size: 3, Levels: 3}, Off: 40}
		fp.group.Receivers.Value.Members = append(fp.group.Receivers.Value.Members, layers)
		fp.copy.Rewrite.Stores[2].Value = &ir.RowMember{Row: fp.row, Member: layers, Level: level}
		fp.copy.Rewrite.Sums = nil
		_, err := fp.open(t, anna).Run("forward", sim.Packet{Data: fanFrame(1)})
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", level, err)
		}
	}
}

func TestFillContradictions(t *testing.T) {
	for _, c := range []struct {
		fill ir.Filled
		want string
	}{
		{ir.Filled{With: ir.Zeros, At: at(44), Len: num(3), Max: 2, Header: "msg"}, "3 bytes become zeros, at most 2"},
		{ir.Filled{With: ir.Zeros, At: at(2000), Len: num(2), Max: 2, Header: "msg"}, "are written, the front has"},
		{ir.Filled{With: ir.Zeros, At: at(44), Len: num(0), Max: 2, Header: "msg"}, ""},
	} {
		fp := newFanPlan()
		fp.copy.Rewrite.Filled = []ir.Filled{c.fill}
		_, err := fp.open(t, anna).Run("forward", sim.Packet{Data: fanFrame(1)})
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.fill, err)
		}
	}
}

func TestVarintContradictions(t *testing.T) {
	for _, c := range []struct {
		value, width uint64
	}{{64, 1}, {1 << 14, 2}, {1 << 30, 4}, {1 << 62, 8}, {0, 3}, {0, 0}} {
		fp := newFanPlan()
		width := &ir.Var{Name: "width", Type: ir.UintType(8)}
		fp.program.Vars = append(fp.program.Vars, width)
		fp.copy.Lets = []*ir.Let{{Var: width, Value: num(c.width)}}
		fp.copy.Rewrite.Stores[2] = ir.Store{Off: at(44), Size: 8, Width: width, Value: num(c.value)}
		_, err := fp.open(t, anna).Run("forward", sim.Packet{Data: fanFrame(1)})
		if err == nil || !strings.Contains(err.Error(), "is written as a variable-length integer") {
			t.Errorf("%d in %d bytes: %v", c.value, c.width, err)
		}
	}
}

// An integer of variable size has 0 to 8 bytes, and what is written fits them.
func TestSizedContradictions(t *testing.T) {
	for _, c := range []struct {
		max         int
		width, cell uint64
		want        string
	}{
		{4, 4, 1<<32 - 1, ""}, {8, 8, 1<<64 - 1, ""}, {4, 0, 0, ""}, {4, 1, 0xFF, ""},
		{4, 5, 0, "number: an integer of 5 bytes, over its bound of 4"},
		{2, 2, 0x10000, "65536 doesn't fit into 2 bytes"}, {4, 0, 1, "1 doesn't fit into 0 bytes"},
	} {
		fp := newFanPlan()
		width, value := &ir.Var{Name: "width", Type: ir.UintType(8)}, &ir.Var{Name: "value", Type: ir.UintType(64)}
		fp.program.Vars = append(fp.program.Vars, width, value)
		fp.program.Body = []ir.Stmt{
			&ir.NeedBytes{End: at(52), Reason: fanShort}, &ir.Let{Var: width, Value: num(c.width)},
			&ir.ReadUint{Value: value, Size: width, At: at(44), Max: c.max, Field: "number"}, fp.fan,
		}
		fp.copy.Rewrite.Stores[2] = ir.Store{
			Off: at(44), Size: c.max, Width: width, Plain: true, Value: num(c.cell), Note: "number",
		}
		w := fp.copy.Rewrite
		fp.fan.Front, w.OldFront, w.NewFront, w.Sums = at(52), at(52), at(52), nil
		w.Payload = bin(ir.Sub, &ir.Meta{Kind: ir.FrameLen}, num(52))
		_, err := fp.open(t, anna).Run("forward", sim.Packet{Data: append(fanFrame(1), make([]byte, 8)...)})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
