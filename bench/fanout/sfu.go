package fanout

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/sfu/sfurelay"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// sfu is the SFU example's relay with one stream, whose receivers get everything, and a reader of its events.
type sfu struct {
	kernel *sfurelay.Relay
	events uint64 // that were read
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
	for _, err := range r.kernel.Pending(context.Background()) {
		if err != nil {
			return err
		}
		r.events++
	}
	return nil
}

func (r *sfu) attach(device string) error {
	return errors.Join(r.kernel.Video.Attach(device), r.kernel.Audio.Attach(device))
}

func (r *sfu) program() *ebpf.Program { return r.kernel.Video.Kernel() }

// reported reads events until there have been so many in all, of which none may be lost.
func (r *sfu) reported(events uint64) error {
	err := r.read()
	if err == nil && r.events < events {
		err = fmt.Errorf("%d of %d events were read, and %d were lost", r.events, events, r.kernel.Lost().Sent)
	}
	return err
}

func (r *sfu) close() { _ = r.kernel.Close() }

// serve fetches the packets themselves, which come to user space for what the kernel leaves to it, such as answering
// who missed one. As in the SFU's server, no reader waits for them: they are fetched now and then, and the events with
// them, since being woken for each would cost more than all its copies.
func (r *sfu) serve(packets *reader) error {
	for {
		n, err := packets.read(unix.MSG_DONTWAIT)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			return err
		}
		if n == readBatch {
			continue
		}
		if err := r.read(); err != nil {
			return err
		}
		time.Sleep(fetchPause)
	}
}

// fetchPause is how long packets wait for user space, at most: as in the SFU's server (server.round).
const fetchPause = 4 * time.Millisecond
