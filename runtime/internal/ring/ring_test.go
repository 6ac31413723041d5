package ring

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/fastrelay/fastrelay-gen/runtime/internal/mapmem"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const recordBytes = 20 // of the program's records, all of them the same number

// ringAndProgram makes a ring, its flag, and a program that writes a record.
func ringAndProgram(t *testing.T) (m *ebpf.Map, awake *mapmem.Array, emit func(number byte)) {
	t.Helper()
	bpftest.Rights(t)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: uint32(os.Getpagesize())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	const mmapable = 1 << 10
	flags, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1, Flags: mmapable})
	if err != nil {
		t.Fatal(err)
	}
	defer flags.Close()
	if awake, err = mapmem.Map(flags); err != nil {
		t.Fatal(err)
	}
	// r2: 24 bytes of the stack, which the packet's first byte fills
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadAbs(0, asm.Byte),
		asm.LoadImm(asm.R1, 0x0101010101010101, asm.DWord),
		asm.Mul.Reg(asm.R1, asm.R0),
		asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord),
		asm.StoreMem(asm.RFP, -16, asm.R1, asm.DWord),
		asm.StoreMem(asm.RFP, -24, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -24),
		asm.Mov.Imm(asm.R3, recordBytes),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
		asm.Return(),
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: ins})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { p.Close() })
	return m, awake, func(number byte) {
		t.Helper()
		data := make([]byte, 64)
		data[0], data[12] = number, 8
		switch verdict, err := bpftest.Run(p, ebpf.RunOptions{Data: data}); {
		case err != nil:
			t.Fatal(err)
		case verdict != 0:
			t.Fatalf("record %d: the program returns %d", number, int32(verdict))
		}
	}
}

// Records come in order and whole, also when the ring begins anew, and their room is used again.
func TestOrder(t *testing.T) {
	m, awake, emit := ringAndProgram(t)
	r, err := Open(m, awake)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.Size() != uint64(os.Getpagesize()) || r.Waiting() != 0 || r.Pos() != r.End() {
		t.Errorf("a new ring of %d bytes has %d that wait, from %d to %d", r.Size(), r.Waiting(), r.Pos(), r.End())
	}
	const batch, each = 50, (headerSize + recordBytes + 7) &^ 7
	for i := range 5 * os.Getpagesize() / each / batch {
		for n := range batch {
			emit(byte(i + n))
		}
		if got := r.End() - r.Pos(); got != batch*each {
			t.Fatalf("%d records take %d bytes, want %d", batch, got, batch*each)
		}
		for n := range batch {
			data, at, ok := r.Next()
			if !ok || at%8 != 0 || !bytes.Equal(data, bytes.Repeat([]byte{byte(i + n)}, recordBytes)) {
				t.Fatalf("record %d of batch %d: %x at %d, %v", n, i, data, at, ok)
			}
		}
		if data, _, ok := r.Next(); ok {
			t.Fatalf("a record that was not written: %x", data)
		}
		r.Release()
		if r.Waiting() != 0 {
			t.Fatalf("%d bytes wait, though all was read", r.Waiting())
		}
	}

	// Another reader begins where this one has released.
	emit(1)
	emit(2)
	r.Next()
	r.Release()
	next, err := Open(m, awake)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if data, _, ok := next.Next(); !ok || data[0] != 2 {
		t.Errorf("the next reader begins with %x, %v", data, ok)
	}
}

// A reader sleeps until a record comes, its context ends, or the ring is closed; it isn't awake meanwhile.
func TestWait(t *testing.T) {
	m, awake, emit := ringAndProgram(t)
	r, err := Open(m, awake)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	wait := func(what string, then func()) error {
		t.Helper()
		slept := r.Sleeps.Load()
		go func() { done <- r.Wait(ctx) }()
		sleeps := func() bool { return r.Sleeps.Load() != slept }
		if err := testnet.Until(2*time.Second, what+": the reader sleeps", sleeps); err != nil {
			t.Fatal(err)
		}
		then()
		select {
		case err := <-done:
			return err
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the reader sleeps for ever", what)
			return nil
		}
	}
	if err := wait("a record", func() {
		if awake.Load64(0, 0) != 0 {
			t.Error("it sleeps, and says that it is awake")
		}
		emit(7)
	}); err != nil || awake.Load64(0, 0) != 1 {
		t.Errorf("a record: %v; the flag is %d", err, awake.Load64(0, 0))
	}
	if data, _, ok := r.Next(); !ok || binary.NativeEndian.Uint32(data) != 0x07070707 {
		t.Errorf("woken by %x, %v", data, ok)
	}
	if err := wait("the context ends", func() { cancel(); r.Wake() }); !errors.Is(err, context.Canceled) {
		t.Errorf("the context ends: %v", err)
	}
	ctx = t.Context()
	if err := wait("the ring is closed", r.Close); err == nil {
		t.Error("the ring is closed: no error")
	}
}

// Of several that sleep, each wakes for its own reasons, and those that give up leave the flag as the others need it.
func TestSleepers(t *testing.T) {
	m, awake, emit := ringAndProgram(t)
	r, err := Open(m, awake)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- r.Await(t.Context()) }()
	sleeps := func() bool { return r.Sleeps.Load() > 0 }
	if err := testnet.Until(2*time.Second, "the first one sleeps", sleeps); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Await(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that is over: %v", err)
	}
	if awake.Load64(0, 0) != 0 {
		t.Error("the first one sleeps, and programs don't wake it")
	}
	wait := func(what string, from <-chan error) error {
		t.Helper()
		select {
		case err := <-from:
			return err
		case <-time.After(10 * time.Second):
			t.Fatalf("%s sleeps for ever", what)
			return nil
		}
	}
	ctx, cancel = context.WithCancel(t.Context())
	defer context.AfterFunc(ctx, r.Wake)()
	go func() { second <- r.Await(ctx) }()
	cancel()
	if err := wait("the second one", second); !errors.Is(err, context.Canceled) {
		t.Errorf("the context ends: %v", err)
	}
	go func() { second <- r.Await(t.Context()) }()
	emit(7)
	if err := errors.Join(wait("the first one", first), wait("the third one", second)); err != nil {
		t.Error(err)
	}
}
