package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/bench/fanout"
	"github.com/fastrelay/fastrelay-gen/examples/quic/bench/line"
	"github.com/fastrelay/fastrelay-gen/examples/quic/quicrelay"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// measureCopies measures what a copy of a packet costs in the kernel, beside a bare clone.
func measureCopies(rounds int) (list []fanout.Copy, err error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return nil, fmt.Errorf("the kernel's statistics of BPF programs: %w", err)
	}
	defer stats.Close()
	for _, n := range []int{8, 64, 512} {
		c, err := measureCopiesTo(n, rounds)
		if err != nil {
			return list, fmt.Errorf("%d receivers: %w", n, err)
		}
		list = append(list, c)
	}
	fmt.Fprintf(os.Stderr, "\r%-60s\r", "")
	return list, nil
}

// feed is the group's key, connection the ID of the publisher's.
const feed = 1

var connection = [8]byte{0, 1, 2, 3, 4, 5, 6, 7}

func measureCopiesTo(n, rounds int) (c fanout.Copy, err error) {
	net, l, err := line.New()
	if err != nil {
		return c, err
	}
	defer net.Close()
	t := fanout.Traffic{
		Publisher: netip.AddrPortFrom(l.ClientAddr.V4, 40000), Server: serverAt(l), Payload: packet(),
	}
	var relay *quicrelay.Relay
	if err := l.Relay.Do(func() (err error) {
		relay, err = load(t, l, n)
		return err
	}); err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, relay.Close()) }()
	s := &fanout.Subject{
		Variant: fanout.Relay, Program: relay.Streams.Kernel(), Next: func([]byte) {},
		After: func(copies int) error {
			told := 0
			var failed error
			err := testnet.Until(time.Second, "a record for each copy", func() bool {
				for _, err := range relay.Pending(context.Background()) {
					if err != nil {
						failed = err
						return true
					}
					told++
				}
				return told >= copies
			})
			return errors.Join(failed, err)
		},
	}
	c = fanout.Copy{Receivers: n, Size: len(t.Payload)}
	c.Times, err = fanout.MeasureCopies(fanout.Options{Rounds: rounds, Progress: os.Stderr}, l, n, t, s)
	return c, err
}

// packet is the payload of a datagram: a packet with a STREAM frame, in the middle of a stream.
func packet() []byte {
	b := []byte{0x43}
	b = append(b, connection[:]...)
	b = append(b, 0, 0, 0, 9) // number
	b = append(b, 0x0e)       // with an offset and a length
	b = append(b, 6, 0x44, 0, 0x40|objectSize>>8, objectSize&0xff)
	return append(b, make([]byte, objectSize+16)...) // and the tag
}

// load loads the relay with a group of receivers who get everything.
func load(t fanout.Traffic, l *testnet.Line, n int) (_ *quicrelay.Relay, err error) {
	relay, err := quicrelay.Load(quicrelay.Options{})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, relay.Close())
		}
	}()
	if err := relay.Connections.Put(
		quicrelay.ConnectionsKey{Remote: t.Publisher, Local: t.Server, DCID: connection},
		quicrelay.ConnectionsRow{Feed: feed}); err != nil {
		return nil, err
	}
	group, err := relay.Subscribers.Open(context.Background(), feed)
	if err != nil {
		return nil, err
	}
	const unlimited = 1 << 40
	return relay, group.Change(context.Background(), func(c *quicrelay.SubscribersChange) error {
		for i := range n {
			v, err := c.Add(quicrelay.SubscribersRow{
				Local: t.Server, Remote: netip.AddrPortFrom(l.PeerAddr.V4, uint16(10000+i)), ID: uint32(i + 1),
				Limit: unlimited,
			})
			if err != nil {
				return err
			}
			v.State.Size.Store(1452)
			v.State.NextStream.Store(3)
			v.State.Leased.Store(1 << 30)
			v.State.Data.SetLimit(unlimited)
			v.State.Window.SetLimit(unlimited)
			// The subscriber acknowledges so much that numbers are never too far apart.
			v.State.Next.Store(1 << 20)
			v.State.Acked.Store(1 << 20)
		}
		return nil
	})
}
