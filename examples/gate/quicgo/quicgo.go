// Package quicgo connects a gate with a server that uses quic-go, by its public hooks: a generator of connection IDs,
// and a tracer that says which connection has which ID, when handshakes are finished, and when connections end.
package quicgo

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"

	"github.com/fastrelay/fastrelay-gen/examples/gate/gate"
)

const (
	late    = 10 * time.Second // after which packets with a connection ID that has ended are strays
	nothing = time.Minute      // after which an ID that no connection has is taken back, such as that of a Retry
)

// Gate is what learns of connections: a gate.Gate, or what does the same in user space.
type Gate interface {
	NewID() (uint64, error)
	Retire(after time.Duration, ids ...uint64)
	Done(source netip.Addr) error
	Failed(source netip.Addr)
}

// Hooks connects one server with one gate.
type Hooks struct {
	gate Gate
	log  *slog.Logger

	mu    sync.Mutex
	loose map[uint64]time.Time // handed out, and of no connection yet
	swept time.Time
}

// New makes the hooks. Use both: the transport's generator, and the configuration's tracer.
func New(g Gate, log *slog.Logger) *Hooks {
	if log == nil {
		log = slog.Default()
	}
	return &Hooks{gate: g, log: log, loose: map[uint64]time.Time{}, swept: time.Now()}
}

// Install sets a transport up, before it listens.
func (h *Hooks) Install(t *quic.Transport) {
	t.ConnectionIDGenerator = h
	before := t.ConnContext
	t.ConnContext = func(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
		if addr, err := netip.ParseAddrPort(info.RemoteAddr.String()); err == nil {
			ctx = context.WithValue(ctx, remote{}, addr.Addr().Unmap())
		}
		if before != nil {
			return before(ctx, info)
		}
		return ctx, nil
	}
}

// Config returns a configuration whose connections are traced for the gate. It replaces a tracer.
func (h *Hooks) Config(c *quic.Config) *quic.Config {
	if c == nil {
		c = &quic.Config{}
	}
	c = c.Clone()
	c.Tracer = h.trace
	return c
}

type remote struct{}

// GenerateConnectionID implements quic.ConnectionIDGenerator.
func (h *Hooks) GenerateConnectionID() (quic.ConnectionID, error) {
	id, err := h.gate.NewID()
	if err != nil {
		return quic.ConnectionID{}, err
	}
	now := time.Now()
	h.mu.Lock()
	h.loose[id] = now
	var old []uint64
	if now.Sub(h.swept) > nothing {
		h.swept = now
		for id, at := range h.loose {
			if now.Sub(at) > nothing {
				old = append(old, id)
				delete(h.loose, id)
			}
		}
	}
	h.mu.Unlock()
	h.gate.Retire(0, old...)
	var b [gate.IDLength]byte
	binary.BigEndian.PutUint64(b[:], id)
	return quic.ConnectionIDFromBytes(b[:]), nil
}

// ConnectionIDLen implements quic.ConnectionIDGenerator.
func (h *Hooks) ConnectionIDLen() int { return gate.IDLength }

func (h *Hooks) trace(ctx context.Context, isClient bool, _ quic.ConnectionID) qlogwriter.Trace {
	addr, ok := ctx.Value(remote{}).(netip.Addr)
	if isClient || !ok {
		return nil
	}
	return &connection{hooks: h, addr: addr, ids: map[uint64]uint64{}}
}

// connection is the tracer of a connection.
type connection struct {
	hooks *Hooks
	addr  netip.Addr
	ids   map[uint64]uint64 // by sequence number
	began bool
	done  bool
}

// AddProducer implements qlogwriter.Trace. Only QUIC's own events count, not those of HTTP/3.
func (c *connection) AddProducer() qlogwriter.Recorder {
	if c.began {
		return nil
	}
	c.began = true
	return c
}

// RecordEvent implements qlogwriter.Recorder. It is called for each packet.
func (c *connection) RecordEvent(event qlogwriter.Event) {
	switch e := event.(type) {
	case qlog.PacketSent:
		if e.Header.PacketType != qlog.PacketType1RTT {
			if _, known := c.ids[0]; !known {
				c.has(0, e.Header.SrcConnectionID)
			}
		}
		for _, f := range e.Frames {
			if f, ok := f.Frame.(*qlog.NewConnectionIDFrame); ok {
				c.has(f.SequenceNumber, f.ConnectionID)
			}
		}
	case qlog.PacketReceived:
		for _, f := range e.Frames {
			if f, ok := f.Frame.(*qlog.RetireConnectionIDFrame); ok {
				if id, ok := c.ids[f.SequenceNumber]; ok {
					delete(c.ids, f.SequenceNumber)
					c.hooks.gate.Retire(late, id)
				}
			}
		}
	case qlog.ConnectionStateUpdated:
		if e.State == qlog.ConnectionStateHandshakeComplete && !c.done {
			c.done = true
			if err := c.hooks.gate.Done(c.addr); err != nil {
				c.hooks.log.Error("the gate's quotas can't be changed", "error", err)
			}
		}
	}
}

// has notes that the connection has an ID.
func (c *connection) has(sequence uint64, connID quic.ConnectionID) {
	if connID.Len() != gate.IDLength {
		return
	}
	id := binary.BigEndian.Uint64(connID.Bytes())
	c.ids[sequence] = id
	c.hooks.mu.Lock()
	delete(c.hooks.loose, id)
	c.hooks.mu.Unlock()
}

// Close implements qlogwriter.Recorder: the connection has ended.
func (c *connection) Close() error {
	ids := make([]uint64, 0, len(c.ids))
	for _, id := range c.ids {
		ids = append(ids, id)
	}
	c.hooks.gate.Retire(late, ids...)
	if !c.done {
		c.hooks.gate.Failed(c.addr)
	}
	return nil
}
