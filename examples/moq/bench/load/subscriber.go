package load

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// An Audience is subscribers. Each has a connection, and subscribes to all tracks.
type Audience struct {
	objects  atomic.Uint64 // that were read
	watching atomic.Bool

	mu      sync.Mutex
	clients []*client
	delays  []time.Duration // of objects that were read while they were watched
}

// Join adds a subscriber. It returns when the relay has accepted its subscriptions.
func (a *Audience) Join(ctx context.Context, c Config) error {
	_, err := a.join(ctx, c, nil)
	return err
}

// First adds a subscriber, and returns how long its first object took from SUBSCRIBE on, and the path's shortest round
// trip meanwhile.
func (a *Audience) First(ctx context.Context, c Config) (took, roundTrip time.Duration, err error) {
	first := make(chan time.Time, 1)
	d, err := a.join(ctx, c, first)
	if err != nil {
		return 0, 0, err
	}
	select {
	case at := <-first:
		return at.Sub(d.asked), d.ConnectionStats().MinRTT, nil
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
}

// A subscriber is one that has joined.
type subscriber struct {
	*client
	asked time.Time
}

func (a *Audience) join(ctx context.Context, c Config, first chan<- time.Time) (*subscriber, error) {
	d, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	a.clients = append(a.clients, d)
	a.mu.Unlock()
	go func() {
		for {
			in, err := d.AcceptUniStream(d.Context())
			if err != nil {
				return
			}
			go a.read(in, first)
		}
	}()
	if c.Draft == 0 {
		asked := time.Now()
		return &subscriber{d, asked}, d.ask(ctx, "subscribe")
	}
	s := &session{client: d, draft: c.Draft}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	asked := time.Now()
	for number := range c.Tracks {
		if _, err := s.request(ctx, func(id uint64) wire.Message {
			return &wire.Subscribe{RequestID: id, Track: track(number)}
		}); err != nil {
			return nil, err
		}
	}
	return &subscriber{d, asked}, nil
}

// read reads a stream to its end: of a subgroup, or the relay's control stream.
func (a *Audience) read(in *quic.ReceiveStream, first chan<- time.Time) {
	r := bufio.NewReaderSize(in, 1<<14)
	kind, err := parse(r, func(b []byte) (wire.StreamKind, int, error) {
		kind, err := wire.ParseStreamType(b)
		return kind, 0, err
	})
	if err != nil || kind != wire.StreamSubgroup {
		_, _ = io.Copy(io.Discard, r)
		return
	}
	header, err := parse(r, wire.ParseSubgroupHeader)
	objects := wire.Subgroup{Header: header}
	var stamp [stampSize]byte
	for err == nil {
		var o wire.Object
		if o, err = parse(r, objects.Next); err != nil || o.Length < stampSize {
			continue
		}
		if _, err = io.ReadFull(r, stamp[:]); err == nil {
			_, err = r.Discard(int(o.Length) - stampSize)
		}
		if err == nil {
			a.arrived(time.Duration(binary.BigEndian.Uint64(stamp[:])), first)
		}
	}
}

// arrived notes that an object was read to its end.
func (a *Audience) arrived(written time.Duration, first chan<- time.Time) {
	a.objects.Add(1)
	now := time.Now()
	select {
	case first <- now:
	default:
	}
	if a.watching.Load() {
		a.mu.Lock()
		a.delays = append(a.delays, now.Sub(processStart)-written)
		a.mu.Unlock()
	}
}

// Objects returns how many objects were read, of all subscribers.
func (a *Audience) Objects() uint64 { return a.objects.Load() }

// Watch returns, sorted, the delays of the objects that are read within d: from when they were given to the
// publisher's connection until they were read to their ends.
func (a *Audience) Watch(ctx context.Context, d time.Duration) ([]time.Duration, error) {
	a.watching.Store(true)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(d):
	}
	a.watching.Store(false)
	a.mu.Lock()
	defer a.mu.Unlock()
	delays := a.delays
	a.delays = nil
	slices.Sort(delays)
	if len(delays) == 0 {
		return nil, errors.New("no subscriber has read an object")
	}
	return delays, nil
}

// Close ends the subscribers.
func (a *Audience) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range a.clients {
		d.close()
	}
}
