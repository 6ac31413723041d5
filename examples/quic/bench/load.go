package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quic/client"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/internal/test/selfsigned"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Objects are so many bytes long, and so many are delivered a second, to all subscribers together.
const (
	objectSize = 1000
	deliveries = 8000
	most       = 512 // subscribers
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
}

// dialled is a client with its socket.
type dialled struct {
	*client.Conn
	socket *net.UDPConn
}

func dial(h *testnet.Host, l *testnet.Line, as func(context.Context, string, client.Config) (*client.Conn, error),
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
		Server: serverAt(l), TLS: secrets(), Socket: d.socket, Fast: true, QUIC: wide(),
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
func subscribe(l *testnet.Line, n int) (*audience, error) {
	a := &audience{}
	for range n {
		d, err := dial(l.Peer, l, client.Subscribe)
		if err != nil {
			a.close()
			return nil, err
		}
		a.clients = append(a.clients, d)
		go a.watch(d)
	}
	return a, nil
}

func (a *audience) watch(d *dialled) {
	for {
		in, err := d.AcceptUniStream(context.Background())
		if err != nil {
			return
		}
		go func() {
			buffer := make([]byte, 4096)
			for {
				n, err := in.Read(buffer)
				a.bytes.Add(int64(n))
				if err == nil {
					continue
				}
				a.streams.Add(1)
				return
			}
		}()
	}
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
	stop  context.CancelFunc
	ended chan error
	sent  atomic.Uint64
}

func publish(l *testnet.Line, rate float64, objects int) (*publisher, error) {
	d, err := dial(l.Client, l, client.Publish)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &publisher{dialled: d, stop: stop, ended: make(chan error, 1)}
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
			if _, err := out.Write(object(p.sent.Load())); err != nil {
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
