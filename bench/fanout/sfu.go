package fanout

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/examples/sfu/sfurelay"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// sfu is the SFU example's relay with one stream, whose receivers get everything, and a reader of its events.
type sfu struct {
	kernel *sfurelay.Relay
	copies uint64 // that were reported
	packet []byte // the last one
}

// No stream reaches this rate (bytes a second) or burst: what is measured is that each copy is admitted, not that one
// is refused.
const unlimited, unlimitedBurst = 1 << 40, 1 << 32

func loadSFU(publisher, server netip.AddrPort, receivers []receiver) (_ *sfu, err error) {
	kernel, err := sfurelay.Load(sfurelay.Options{})
	if err != nil {
		return nil, err
	}
	r := &sfu{kernel: kernel}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	// What comes first has the number after this one.
	err = kernel.Streams.Put(sfurelay.StreamsKey{Publisher: publisher, Server: server, SSRC: ssrc},
		sfurelay.StreamsRow{})
	if err != nil {
		return nil, err
	}
	group, err := kernel.Subscribers.Open(context.Background(), sfurelay.SubscribersKey{
		Publisher: publisher, Server: server, SSRC: ssrc,
	})
	if err != nil {
		return nil, err
	}
	return r, group.Change(context.Background(), func(c *sfurelay.SubscribersChange) error {
		for _, to := range receivers {
			v, err := c.Add(sfurelay.SubscribersRow{
				Local: server, Remote: to.addr, SSRC: to.ssrc, PayloadType: to.payloadType,
				First: to.sequence, Timestamp: to.timestamp, Layer: 3, Before: 3,
			})
			if err != nil {
				return err
			}
			v.State.Rate.SetRate(runtime.Rate{PerSecond: unlimited, Burst: unlimitedBurst})
		}
		return nil
	})
}

// read reads the events, as a server has to that wants to know what was sent.
func (r *sfu) read() error {
	for e, err := range r.kernel.Pending(context.Background()) {
		if err != nil {
			return err
		}
		switch e := e.(type) {
		case sfurelay.PacketEvent:
			r.packet = append(r.packet[:0], e.Content...) // a server keeps it
		case sfurelay.SentEvent:
			r.copies += uint64(len(e.Copies))
		}
	}
	return nil
}

func (r *sfu) attach(device string) error {
	return errors.Join(r.kernel.Video.Attach(device), r.kernel.Audio.Attach(device))
}

func (r *sfu) program() *ebpf.Program { return r.kernel.Video.Kernel() }

// reported reads events until so many copies have been reported in all, of which none may be lost.
func (r *sfu) reported(copies uint64) error {
	err := r.read()
	if err == nil && r.copies < copies {
		err = fmt.Errorf("%d of %d copies were reported, and %d records were lost", r.copies, copies,
			r.kernel.Lost().Sent)
	}
	return err
}

func (r *sfu) close() { _ = r.kernel.Close() }

// serve reads the events, which have the packets as well, for what the kernel leaves to user space, such as answering
// who missed one. As in the SFU's server, no reader waits for them: they are read now and then, since being woken for
// each would cost more than all its copies. Packets that come to the socket are not relayed.
func (r *sfu) serve(*reader) error {
	pace := time.NewTicker(readPause)
	defer pace.Stop()
	for {
		waiting, size := r.kernel.Runtime().EventsWaiting()
		if err := r.read(); err != nil {
			return err
		}
		if waiting < size/4 {
			<-pace.C
		}
	}
}

// readPause is how long events wait for user space, at most: as in the SFU's server (server.round).
const readPause = 4 * time.Millisecond
