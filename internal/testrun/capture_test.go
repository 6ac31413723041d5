package testrun

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// cloner sends a copy to each device in turn, its first byte the device's place in the list, and adds up the places
// whose copies were not sent, as bits.
func cloner(t testing.TB, devices []uint32) *ebpf.Program {
	t.Helper()
	code := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Imm(asm.R7, 0)}
	for i, d := range devices {
		label := "ok" + string(rune('a'+i))
		code = append(code,
			asm.StoreImm(asm.RFP, -8, int64(i), asm.Word),
			asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, 0),
			asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -8),
			asm.Mov.Imm(asm.R4, 1), asm.Mov.Imm(asm.R5, 0),
			asm.FnSkbStoreBytes.Call(),
			asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, int32(d)), asm.Mov.Imm(asm.R3, 0),
			asm.FnCloneRedirect.Call(),
			asm.JEq.Imm(asm.R0, 0, label),
			asm.Or.Imm(asm.R7, 1<<i),
			asm.Mov.Imm(asm.R0, 0).WithSymbol(label),
		)
	}
	code = append(code, asm.Mov.Reg(asm.R0, asm.R7), asm.Return())
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: code, License: "GPL"})
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

func enterCapture(t testing.TB) *Net {
	t.Helper()
	unpin, err := Pin()
	if err != nil {
		t.Fatal(err)
	}
	n, err := Enter(&ir.Plan{Groups: []*ir.Group{{}}}, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Leave(); err != nil {
			t.Fatal(err)
		}
		unpin()
	})
	if err := n.Capture(); err != nil {
		t.Fatal(err)
	}
	return n
}

// Every copy is taken as it was when it left, in the order of sending, and those that a device doesn't take fail in the
// program.
func TestCapture(t *testing.T) {
	needs.Root(t)
	n := enterCapture(t)
	devices := []uint32{sim.Wire, sim.Down, sim.OtherWire, sim.Refusing, sim.Wire, 1004, sim.OtherWire}
	prog := cloner(t, devices)
	defer prog.Close()
	for _, size := range []int{14, 60, 1514, sim.MaxFrame} {
		frame := bytes.Repeat([]byte{0xa5}, size)
		frame[12], frame[13] = 0x88, 0xb5
		ctx := make([]byte, ctxSize)
		binary.LittleEndian.PutUint32(ctx[ctxMark:], 7)
		binary.LittleEndian.PutUint32(ctx[ctxPriority:], 9)
		act, err := prog.Run(&ebpf.RunOptions{Data: frame, DataOut: make([]byte, 2*sim.MaxFrame), Context: ctx})
		if err != nil {
			t.Fatal(err)
		}
		if want := uint32(1<<1 | 1<<3 | 1<<5); act != want {
			t.Errorf("%d bytes: failed copies %07b, want %07b", size, act, want)
		}
		var buf []byte
		copies := n.capture.copies(nil, &buf)
		places := []byte{0, 2, 4, 6}
		if len(copies) != len(places) {
			t.Fatalf("%d bytes: %d copies, want %d", size, len(copies), len(places))
		}
		for i, c := range copies {
			frame[0] = places[i]
			if !bytes.Equal(c.Data, frame) || c.Ifindex != devices[places[i]] || c.Mark != 7 || c.Priority != 9 {
				t.Errorf("%d bytes, copy %d: device %d, mark %d, priority %d, bytes %x", size, i, c.Ifindex, c.Mark,
					c.Priority, c.Data)
			}
		}
		if again := n.capture.copies(nil, &buf); len(again) > 0 {
			t.Errorf("%d copies came twice", len(again))
		}
	}
}

func BenchmarkCapture(b *testing.B) {
	n := enterCapture(b)
	prog := cloner(b, []uint32{sim.Wire, sim.OtherWire, sim.Wire, sim.OtherWire})
	defer prog.Close()
	frame, out := make([]byte, 100), make([]byte, 2*sim.MaxFrame)
	var buf []byte
	var copies []Copy
	for b.Loop() {
		if _, err := prog.Run(&ebpf.RunOptions{Data: frame, DataOut: out}); err != nil {
			b.Fatal(err)
		}
		if copies = n.capture.copies(copies[:0], &buf); len(copies) != 4 {
			b.Fatalf("%d copies", len(copies))
		}
	}
}
