package live

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	goruntime "runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

//go:embed bpf/live.c
var source string

var object = sync.OnceValues(func() ([]byte, error) {
	object, _, err := clang.Compile(context.Background(), source, "", clang.Options{Warn: true})
	var refused *clang.Error
	if errors.As(err, &refused) {
		return nil, fmt.Errorf("%w\n%s", err, refused.Log)
	}
	return object, err
})

// Of bpf/live.c.
const (
	frontSize = 80
	maxKept   = 64
	largest   = 2048
)

// state is that of bpf/live.c.
type state struct {
	Made             uint64
	Mask, Size, Keep uint32
	Kept             uint32

	Interval, Due, First, Last uint64
}

// Ends are the source of live frames, and the far end, which counts and drops them.
type Ends struct {
	collection *ebpf.Collection
	sinks      []link.Link
	made       uint64 // frames so far: each run goes on where the last one ended
}

// NewEnds loads them, with room for so many kinds of frames.
func NewEnds(fronts int) (*Ends, error) {
	object, err := object()
	if err != nil {
		return nil, err
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, err
	}
	spec.Maps["fronts"].MaxEntries = uint32(fronts)
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, err
	}
	return &Ends{collection: c}, nil
}

// Close unloads them.
func (e *Ends) Close() {
	for _, l := range e.sinks {
		_ = l.Close() // or it goes with the device
	}
	e.collection.Close()
}

// Sink makes a device a far end. Only so does a veth take frames that are redirected to its other end.
func (e *Ends) Sink(dev *testnet.Dev) error {
	return dev.Host.Do(func() error {
		l, err := link.AttachXDP(link.XDPOptions{
			Program: e.collection.Programs["sink"], Interface: dev.Index, Flags: link.XDPDriverMode,
		})
		if err == nil {
			e.sinks = append(e.sinks, l)
		}
		return err
	})
}

// Load has the source write the fronts of frames, in turn. Their number is a power of two.
func (e *Ends) Load(frames [][]byte) error {
	keys, values := make([]uint32, len(frames)), make([][frontSize]byte, len(frames))
	for i, f := range frames {
		keys[i] = uint32(i)
		copy(values[i][:], f)
	}
	_, err := e.collection.Maps["fronts"].BatchUpdate(keys, values, nil)
	return err
}

// xdpContext is struct xdp_md.
type xdpContext struct{ Data, DataEnd, DataMeta, Ingress, Queue, Egress uint32 }

// liveFrames runs a program at XDP on n live frames, and returns what the kernel says that one takes: without what it
// takes to prepare and to end such a run, which is 20 ms, and without the time in which other threads have the
// processor. cilium/ebpf doesn't return that. The frames of a batch (0: as many as the kernel likes) leave together.
func liveFrames(p *ebpf.Program, frame []byte, ctx *xdpContext, n, batch int) (time.Duration, error) {
	attr := struct { // of bpf(2), for BPF_PROG_TEST_RUN
		program, retval, sizeIn, sizeOut uint32
		dataIn, dataOut                  uint64
		repeat, duration                 uint32
		contextIn, contextOut            uint32 // sizes
		context, contextTo               uint64
		flags, cpu, batch, _             uint32
	}{
		program: uint32(p.FD()), sizeIn: uint32(len(frame)), dataIn: uint64(uintptr(unsafe.Pointer(&frame[0]))),
		repeat: uint32(n), batch: uint32(batch),
		contextIn: uint32(unsafe.Sizeof(*ctx)), context: uint64(uintptr(unsafe.Pointer(ctx))),
		flags: 1 << 1, // BPF_F_TEST_XDP_LIVE_FRAMES
	}
	// Any signal ends a run, and Go's scheduler sends threads SIGURG.
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	var urgent, before unix.Sigset_t
	urgent.Val[0] = 1 << (unix.SIGURG - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &urgent, &before); err != nil {
		return 0, err
	}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&attr)),
		unsafe.Sizeof(attr))
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); err != nil {
		return 0, err
	}
	goruntime.KeepAlive(frame)
	goruntime.KeepAlive(ctx)
	goruntime.KeepAlive(p)
	if errno != 0 {
		return 0, errno
	}
	return time.Duration(attr.duration), nil
}

// run is what came out of a run.
type run struct {
	first         int // the turn of the first frame; its remainder is the front's
	made, arrived uint64
	took          time.Duration // a frame
}

// run makes n frames that come in by a device: the source is to_xdp, whose frames go to next, or another one. mask + 1
// fronts take turns, and size is that of the frames that arrive. keep frames are kept for kept.
func (e *Ends) run(dev *testnet.Dev, source string, next *ebpf.Program, frame []byte, n, mask, size, keep int) (
	r run, err error) {
	if next != nil {
		if err := e.collection.Maps["next"].Put(uint32(0), next); err != nil {
			return r, fmt.Errorf("the program that gets the frames: %w", err)
		}
	}
	states := e.collection.Maps["states"]
	s := state{Made: e.made, Mask: uint32(mask), Size: uint32(size), Keep: uint32(keep)}
	if err := states.Put(uint32(0), &s); err != nil {
		return r, err
	}
	before, err := e.arrived()
	if err != nil {
		return r, err
	}
	err = dev.Host.Do(func() (err error) {
		context := xdpContext{DataEnd: uint32(len(frame)), Ingress: uint32(dev.Index)}
		r.took, err = liveFrames(e.collection.Programs[source], frame, &context, n, 0)
		return err
	})
	if err != nil {
		return r, fmt.Errorf("run with live frames: %w", err)
	}
	if err := states.Lookup(uint32(0), &s); err != nil {
		return r, err
	}
	e.made, r.first, r.made = s.Made, int(e.made), s.Made-e.made
	most := r.made
	if source == "to_nothing" {
		most = 0
	}
	if r.arrived, err = e.arrivedSince(before, most); err != nil {
		return r, err
	}
	if err := states.Lookup(uint32(0), &s); err != nil {
		return r, err
	}
	if s.Kept != uint32(keep) { // others are of an earlier run
		return r, fmt.Errorf("%d frames kept of %d", s.Kept, keep)
	}
	return r, nil
}

// Offered is what came of frames that were offered to a port.
type Offered struct {
	Made, Arrived uint64
	Rate          float64 // at which they were made, a second
}

// LossFree reports whether what arrived is nearly all.
func (o Offered) LossFree() bool { return float64(o.Arrived) >= measure.LossFree*float64(o.Made) }

const (
	batches  = 50 * time.Microsecond // of frames that leave a port together
	maxBatch = 64
	stopped  = 20 * time.Millisecond // no frame has come for so long: no more come
)

// Offer sends n frames like one by a port, at a rate (0: as fast as it can), and counts those of a size that come to
// the far end. keep of them are kept.
func (e *Ends) Offer(port *testnet.Dev, frame []byte, size, n int, rate float64, keep int) (o Offered, err error) {
	if err := e.Load([][]byte{frame}); err != nil {
		return o, err
	}
	s := state{Size: uint32(size), Keep: uint32(keep)}
	batch := maxBatch
	if rate > 0 {
		s.Interval = uint64(1e9 / rate)
		batch = min(max(int(rate*batches.Seconds()), 1), maxBatch)
	}
	states := e.collection.Maps["states"]
	before, err := e.arrived()
	if err != nil {
		return o, err
	}
	if err := states.Put(uint32(0), &s); err != nil {
		return o, err
	}
	err = port.Host.Do(func() error {
		index := uint32(port.Index)
		if err := e.collection.Maps["port"].Put(uint32(0), index); err != nil {
			return err
		}
		context := xdpContext{DataEnd: uint32(len(frame)), Ingress: index}
		_, err := liveFrames(e.collection.Programs["to_port"], frame, &context, n, batch)
		return err
	})
	if err != nil {
		return o, fmt.Errorf("frames to %s: %w", port.Name, err)
	}
	if err := states.Lookup(uint32(0), &s); err != nil {
		return o, err
	}
	o.Made, o.Rate = s.Made, float64(s.Made-1)*1e9/float64(s.Last-s.First)
	o.Arrived, err = e.arrivedSince(before, o.Made)
	return o, err
}

// arrivedSince is the number of frames that have arrived since it was before, as soon as they are so many, or no more
// come: the kernel may poll the far end in a thread, after the source has ended.
func (e *Ends) arrivedSince(before, most uint64) (n uint64, err error) {
	for last := time.Now(); ; {
		now, err := e.arrived()
		if err != nil {
			return 0, err
		}
		if now-before > n {
			n, last = now-before, time.Now()
		}
		if n >= most || time.Since(last) > stopped {
			return n, nil
		}
	}
}

// arrived is the number of frames at the far ends so far.
func (e *Ends) arrived() (n uint64, err error) {
	b, err := e.collection.Maps["arrived"].LookupBytes(uint32(0))
	for ; len(b) >= 16; b = b[16:] { // of each processor: frames and bytes
		n += binary.NativeEndian.Uint64(b)
	}
	return n, err
}

// Kept returns the first frames of the last run.
func (e *Ends) Kept(n int) (frames [][]byte, err error) {
	for i := range n {
		b, err := e.collection.Maps["kept"].LookupBytes(uint32(i))
		if err != nil {
			return nil, err
		}
		size := binary.NativeEndian.Uint32(b)
		if size > largest {
			return nil, fmt.Errorf("a frame of %d bytes", size)
		}
		frames = append(frames, b[4:4+size])
	}
	return frames, nil
}
