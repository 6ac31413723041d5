package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quic/client"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/selfsigned"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const (
	objectSize = 1000 // bytes
	most       = 512  // subscribers
)

// secrets is a certificate that no client checks.
var secrets = sync.OnceValue(func() *tls.Config {
	config, err := selfsigned.Config("fastrelay")
	if err != nil {
		panic(err)
	}
	return config
})

// wide is a configuration whose limits aren't in the way.
func wide() *quic.Config {
	return &quic.Config{
		MaxIncomingUniStreams: 1 << 14, EnableDatagrams: true,
		InitialStreamReceiveWindow: 1 << 20, MaxStreamReceiveWindow: 1 << 20,
		InitialConnectionReceiveWindow: 1 << 24, MaxConnectionReceiveWindow: 1 << 24,
	}
}

func serverAt(l *testnet.Line) netip.AddrPort { return netip.AddrPortFrom(l.RelayInAddr.V4, 4433) }

// An audience is the subscribers, which read all they get.
type audience struct {
	clients []*dialled
	bytes   atomic.Int64
	streams atomic.Int64 // that ended

	written  writeTimes
	mu       sync.Mutex
	watching bool
	delays   measure.Delays // of objects that were read while delays were watched
}

// writeTimes has, by their numbers, when the last objects were written (nanoseconds since the process began): those of
// several seconds, so none of them is still on its way when its place is taken by another one.
type writeTimes [1 << 17]atomic.Int64

var processStart = time.Now()

func (w *writeTimes) of(number uint64) *atomic.Int64 { return &w[number%uint64(len(w))] }

// dialled is a client with its socket.
type dialled struct {
	*client.Conn
	socket *net.UDPConn
}

// dial connects a client as the variant's clients do.
func dial(v Variant, h *testnet.Host, l *testnet.Line,
	as func(context.Context, string, client.Config) (*client.Conn, error),
) (d *dialled, err error) {
	d = &dialled{}
	if err := h.Do(func() (err error) {
		d.socket, err = net.ListenUDP("udp4", nil)
		return err
	}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	d.Conn, err = as(ctx, "bench", client.Config{
		Server: serverAt(l), TLS: secrets(), Socket: d.socket, Fast: v.null(), QUIC: wide(),
	})
	if err != nil {
		return nil, errors.Join(err, d.socket.Close())
	}
	return d, nil
}

func (d *dialled) close() {
	_ = d.Close()
	_ = d.socket.Close()
}

// subscribe makes so many subscribers.
func subscribe(v Variant, l *testnet.Line, n int) (*audience, error) {
	a := &audience{}
	for range n {
		d, err := dial(v, l.Peer, l, client.Subscribe)
		if err != nil {
			a.close()
			return nil, err
		}
		a.clients = append(a.clients, d)
		go a.accept(d)
	}
	return a, nil
}

func (a *audience) accept(d *dialled) {
	for {
		in, err := d.AcceptUniStream(context.Background())
		if err != nil {
			return
		}
		go a.read(in)
	}
}

// read reads a stream of objects to its end.
func (a *audience) read(in io.Reader) {
	buffer := make([]byte, 4096)
	var objects objectReader
	for {
		n, err := in.Read(buffer)
		if first, count := objects.take(buffer[:n]); count > 0 {
			a.arrived(first, count)
		}
		a.bytes.Add(int64(n))
		if err != nil {
			a.streams.Add(1)
			return
		}
	}
}

// An objectReader finds out which objects a stream has: their numbers are consecutive.
type objectReader struct {
	head []byte // of the first object: the mark and its number
	size int    // bytes that were read
}

// take takes the next bytes. It returns how many objects are complete with them, and the number of the first of these.
func (r *objectReader) take(data []byte) (first uint64, count int) {
	if missing := len(mark) + 8 - len(r.head); missing > 0 {
		r.head = append(r.head, data[:min(missing, len(data))]...)
	}
	before := r.size / objectSize
	r.size += len(data)
	if count = r.size/objectSize - before; count == 0 {
		return 0, 0
	}
	return binary.BigEndian.Uint64(r.head[len(mark):]) + uint64(before), count
}

// arrived notes how long objects took from the publisher's call of Write until they were read to their ends.
func (a *audience) arrived(first uint64, count int) {
	now := time.Since(processStart)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.watching {
		return
	}
	for i := range count {
		a.delays = append(a.delays, now-time.Duration(a.written.of(first+uint64(i)).Load()))
	}
}

// watch returns the delays of the objects that are read while f runs.
func (a *audience) watch(f func() error) (measure.Delays, error) {
	watch := func(on bool) {
		a.mu.Lock()
		a.watching = on
		a.mu.Unlock()
	}
	watch(true)
	err := f()
	watch(false)
	delays := a.delays
	a.delays = nil
	slices.Sort(delays)
	if err == nil && len(delays) == 0 {
		err = errors.New("no subscriber has read an object")
	}
	return delays, err
}

func (a *audience) close() {
	for _, d := range a.clients {
		d.close()
	}
}

// An object is a mark and its number, again and again: wherever it is cut into packets, each larger part has them.
const mark = "FASTRELAY OBJECT"

func object(number uint64) []byte {
	b := make([]byte, 0, objectSize)
	for len(b)+len(mark)+8 <= objectSize {
		b = binary.BigEndian.AppendUint64(append(b, mark...), number)
	}
	return b[:objectSize]
}

// A publisher sends objects at a steady rate until it is stopped.
type publisher struct {
	*dialled
	written *writeTimes
	stop    context.CancelFunc
	ended   chan error
	sent    atomic.Uint64
}

// publish makes a publisher of so many objects a second, which the audience gets.
func publish(v Variant, l *testnet.Line, a *audience, rate float64, objects int) (*publisher, error) {
	d, err := dial(v, l.Client, l, client.Publish)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &publisher{dialled: d, written: &a.written, stop: stop, ended: make(chan error, 1)}
	go func() { p.ended <- p.run(ctx, rate, objects) }()
	return p, nil
}

func (p *publisher) run(ctx context.Context, rate float64, objects int) error {
	period := time.Duration(float64(time.Second) / rate)
	next := time.Now()
	for ctx.Err() == nil {
		out, err := p.OpenUniStreamSync(ctx)
		if err != nil {
			return err
		}
		for i := range objects {
			number := p.sent.Load()
			o := object(number)
			p.written.of(number).Store(int64(time.Since(processStart)))
			if _, err := out.Write(o); err != nil {
				return err
			}
			p.sent.Add(1)
			if i == objects-1 {
				if err := out.Close(); err != nil {
					return err
				}
			}
			next = next.Add(period)
			time.Sleep(time.Until(next)) // not a ticker, which would leave out what is late
		}
	}
	return nil
}

// close ends the publisher after a whole stream.
func (p *publisher) close() error {
	p.stop()
	return <-p.ended
}
