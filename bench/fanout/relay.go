package fanout

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	sfurelay "github.com/fastrelay/fastrelay-gen/examples/sfu/relay"
	"github.com/fastrelay/fastrelay-gen/internal/testnet"
)

// relay is the SFU example's relay with one stream, whose receivers get everything, and a reader of its events.
type relay struct {
	kernel *sfurelay.Relay
	stop   context.CancelFunc
	ended  chan struct{}
	events atomic.Uint64 // that were read
}

// No stream reaches this rate (bytes a second) or burst: what is measured is that each copy is admitted, not that one is refused.
const unlimited, unlimitedBurst = 1 << 40, 1 << 32

// loadRelay loads a relay for the host that it is called on (testnet.Host.Do): what comes from a publisher goes to n receivers, at
// ports from the first one's on.
func loadRelay(publisher, server, first netip.AddrPort, n int) (_ *relay, err error) {
	kernel, err := sfurelay.Load(sfurelay.Options{})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &relay{kernel: kernel, stop: stop, ended: make(chan struct{})}
	go r.read(ctx)
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	// What comes first has the number behind this one.
	err = kernel.Streams.Put(sfurelay.StreamsKey{Publisher: publisher, Server: server, SSRC: ssrc}, sfurelay.StreamsRow{})
	if err != nil {
		return nil, err
	}
	group, err := kernel.Subscribers.Open(sfurelay.SubscribersKey{Publisher: publisher, Server: server, SSRC: ssrc})
	if err != nil {
		return nil, err
	}
	return r, group.Change(func(c *sfurelay.SubscribersChange) error {
		for i := range n {
			v, err := c.Add(sfurelay.SubscribersRow{
				Local: server, Remote: netip.AddrPortFrom(first.Addr(), first.Port()+uint16(i)),
				SSRC: 1000 + uint32(i), PayloadType: 97, First: uint16(i), Timestamp: uint32(i), Layer: 3, Before: 3,
			})
			if err != nil {
				return err
			}
			v.Rate.SetRate(unlimited, unlimitedBurst)
		}
		return nil
	})
}

// read reads the events, as a server has to that wants to know what was sent.
func (r *relay) read(ctx context.Context) {
	defer close(r.ended)
	for range r.kernel.Events(ctx) {
		r.events.Add(1)
	}
}

func (r *relay) program() *ebpf.Program { return r.kernel.Video.Kernel() }

// told waits until so many events have been read in all, of which none may be lost.
func (r *relay) told(events uint64) error {
	return testnet.Until(time.Second, fmt.Sprintf("%d events read (%d were lost)", events, r.kernel.Lost().Sent), func() bool {
		return r.events.Load() >= events
	})
}

func (r *relay) close() {
	r.stop()
	_ = r.kernel.Close()
	<-r.ended
}

// relayMain is the process of the generated relay. It says "ready", and reads what the relay leaves to user space, packets and
// events, until it is killed.
func relayMain(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("relay", flag.ContinueOnError)
	listen := flags.String("listen", "", "")
	to := flags.String("to", "", "")
	from := flags.String("publisher", "", "")
	device := flags.String("device", "", "")
	n := flags.Int("receivers", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var addrs [3]netip.AddrPort
	for i, text := range []string{*from, *listen, *to} {
		var err error
		if addrs[i], err = netip.ParseAddrPort(text); err != nil {
			return err
		}
	}
	fd, err := listenUDP(addrs[1], fetchBuffer)
	if err != nil {
		return err
	}
	r, err := loadRelay(addrs[0], addrs[1], addrs[2], *n)
	if err != nil {
		return err
	}
	defer r.close()
	if err := errors.Join(r.kernel.Video.Attach(*device), r.kernel.Audio.Attach(*device)); err != nil {
		return err
	}
	fmt.Fprintln(stdout, ready)
	// The packets themselves come to user space for what the kernel leaves to it, such as answering who missed one. Nobody
	// waits for them, so they are fetched now and then: being woken for each would cost more than all its copies.
	reader := newReader(fd)
	for {
		n, err := reader.read(unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) || err == nil && n < readBatch {
			time.Sleep(fetchPause)
		} else if err != nil {
			return err
		}
	}
}

const (
	fetchPause  = 4 * time.Millisecond
	fetchBuffer = 8 << 20 // bytes of the socket's buffer, for what comes in a pause
)

// reader reads datagrams from a socket, with one system call all that are there.
type reader struct {
	fd      int
	batch   [readBatch]mmsghdr
	iov     [readBatch]unix.Iovec
	buffers [readBatch][2048]byte
}

const readBatch = 64

func newReader(fd int) *reader {
	r := &reader{fd: fd}
	for i := range r.batch {
		r.iov[i].Base = &r.buffers[i][0]
		r.iov[i].SetLen(len(r.buffers[i]))
		r.batch[i].hdr.Iov = &r.iov[i]
		r.batch[i].hdr.SetIovlen(1)
	}
	return r
}

// read returns how many datagrams came, of which packet has each. With MSG_WAITFORONE it waits for the first, with MSG_DONTWAIT
// for none (recvmmsg(2)).
func (r *reader) read(flags uintptr) (int, error) {
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(r.fd), uintptr(unsafe.Pointer(&r.batch[0])), readBatch, flags, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

func (r *reader) packet(i int) []byte { return r.buffers[i][:r.batch[i].len] }
