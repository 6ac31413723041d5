package load

import (
	"context"
	"encoding/binary"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A Publisher sends objects at a steady rate, of all tracks by turns, until it is closed.
type Publisher struct {
	*client
	config Config
	tracks []published
	sent   atomic.Uint64
	stop   context.CancelFunc
	ended  chan error
}

// published is a track as its publisher has it.
type published struct {
	wanted  atomic.Bool // the relay subscribes to it
	group   uint64
	object  uint64
	writer  wire.Subgroup
	stream  *quic.SendStream
	largest atomic.Pointer[wire.Location]
}

// Publish connects a publisher. It sends a track as soon as the relay subscribes to it, and everything to one that
// knows no tracks.
func Publish(ctx context.Context, c Config) (_ *Publisher, err error) {
	d, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	p := &Publisher{client: d, config: c, tracks: make([]published, c.Tracks), ended: make(chan error, 1)}
	if c.Draft == 0 {
		err = d.ask(ctx, "publish")
		for i := range p.tracks {
			p.tracks[i].wanted.Store(true)
		}
	} else {
		err = p.announce(ctx)
	}
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.Background())
	p.stop = stop
	go func() { p.ended <- p.run(running) }()
	return p, nil
}

func (p *Publisher) announce(ctx context.Context) error {
	s := &session{client: p.client, draft: p.config.Draft, subscribed: p.subscribed}
	if err := s.begin(ctx); err != nil {
		return err
	}
	_, err := s.request(ctx, func(id uint64) wire.Message {
		return &wire.PublishNamespace{RequestID: id, Namespace: wire.Namespace{namespace}}
	})
	return err
}

// subscribed answers SUBSCRIBE. A track's alias is its number.
func (p *Publisher) subscribed(m *wire.Subscribe) wire.Message {
	number, err := strconv.Atoi(m.Track.Name)
	if err != nil || number < 0 || number >= len(p.tracks) {
		return &wire.RequestError{Code: wire.DoesNotExist}
	}
	ok := &wire.SubscribeOK{TrackAlias: uint64(number)}
	if l := p.tracks[number].largest.Load(); l != nil {
		ok.Parameters.LargestObject = wire.Some(*l)
	}
	p.tracks[number].wanted.Store(true)
	return ok
}

func (p *Publisher) run(ctx context.Context) error {
	period := time.Duration(float64(time.Second) / p.config.Rate / float64(len(p.tracks)))
	payload := make([]byte, p.config.Size)
	next := time.Now()
	for turn := 0; ctx.Err() == nil; turn++ {
		number := turn % len(p.tracks)
		if t := &p.tracks[number]; t.wanted.Load() {
			if err := p.send(ctx, t, uint64(number), payload); ctx.Err() != nil {
				return nil // it was about to open a stream
			} else if err != nil {
				return err
			}
		}
		next = next.Add(period)
		time.Sleep(time.Until(next)) // not a ticker, which would leave out what is late
	}
	return nil
}

// send sends a track's next object.
func (p *Publisher) send(ctx context.Context, t *published, alias uint64, payload []byte) (err error) {
	var b []byte
	if t.object == 0 {
		if t.stream, err = p.OpenUniStreamSync(ctx); err != nil {
			return err
		}
		t.writer = wire.Subgroup{Header: wire.SubgroupHeader{
			TrackAlias: alias, Group: t.group, EndOfGroup: true, FirstObject: true,
		}}
		b = t.writer.Header.Append(b)
	}
	if b, err = t.writer.Append(b, wire.Object{ID: t.object, Length: uint64(len(payload))}); err != nil {
		return err
	}
	binary.BigEndian.PutUint64(payload, uint64(time.Since(processStart)))
	if _, err := t.stream.Write(append(b, payload...)); err != nil {
		return err
	}
	t.largest.Store(&wire.Location{Group: t.group, Object: t.object})
	p.sent.Add(1)
	if t.object++; t.object == uint64(p.config.Group) {
		t.group, t.object = t.group+1, 0
		return t.stream.Close()
	}
	return nil
}

// Sent returns how many objects were sent.
func (p *Publisher) Sent() uint64 { return p.sent.Load() }

// Close ends the publisher. It returns what was wrong with publishing.
func (p *Publisher) Close() error {
	p.stop()
	err := <-p.ended
	p.client.close()
	return err
}
