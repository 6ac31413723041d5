//go:build linux

package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
)

// Frame is a frame to send.
type Frame struct {
	Device int    // of the relay: where the frame arrives, or leaves
	Leaves bool   // the relay itself sends it through the device, for programs at tc/egress
	Data   []byte // from the link-layer header on
	// A checksum that is left to a device: the first byte that it covers and its field, as offsets in Data. Zeros:
	// there is none.
	SumStart, SumField int
}

// sender sends frames in turn.
type sender struct {
	frames  []Frame
	sockets []int // by frame
	opened  []int
	stop    func()
	stopped chan struct{}
	done    sync.WaitGroup
	refused atomic.Uint64
	first   atomic.Pointer[error] // the first refusal
}

// step is how often the sender wakes up.
const step = 5 * time.Millisecond

// Send sends the frames in turn, so many a second in all, until Close. It may be called once.
func (n *Network) Send(frames []Frame, rate int) error {
	s := &sender{frames: frames, stopped: make(chan struct{})}
	s.stop = sync.OnceFunc(func() { close(s.stopped) })
	n.sender = s
	for _, f := range frames {
		host, index := n.far[f.Device].ns, n.ends[f.Device]
		if f.Leaves {
			host, index = n.relay.ns, n.index[f.Device]
		}
		fd, err := s.socket(host, index)
		if err != nil {
			return fmt.Errorf("open a packet socket: %w", err)
		}
		s.sockets = append(s.sockets, fd)
	}
	s.done.Add(1)
	go s.run(rate)
	return nil
}

func (s *sender) socket(host netns.NsHandle, index int) (int, error) {
	fd, err := namespace.PacketSocket(host, index, 0, namespace.Option(unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
	if err == nil {
		s.opened = append(s.opened, fd)
	}
	return fd, err
}

func (s *sender) run(rate int) {
	defer s.done.Done()
	tick := time.NewTicker(step)
	defer tick.Stop()
	begun, sent := time.Now(), 0
	for {
		select {
		case <-s.stopped:
			return
		case now := <-tick.C:
			// What a machine that was busy elsewhere has missed is made up for, but not more than a tenth of a second
			// of it.
			due := int(now.Sub(begun).Seconds() * float64(rate))
			if most := max(rate/10, 1); due-sent > most {
				begun, sent, due = now, 0, most
			}
			for ; sent < due; sent++ {
				s.send(sent % len(s.frames))
			}
		}
	}
}

// Stop ends the traffic, and returns when all packets that have arrived are counted.
func (n *Network) Stop() {
	if n.sender == nil {
		return
	}
	n.sender.stop()
	n.sender.done.Wait()
	for _, r := range n.receivers {
		r.drain()
	}
}

// send sends one frame. What a program at tc/egress drops comes back as ENOBUFS.
func (s *sender) send(i int) {
	f := &s.frames[i]
	var head [10]byte // struct virtio_net_hdr
	if f.SumField != 0 {
		head[0] = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
		binary.NativeEndian.PutUint16(head[6:], uint16(f.SumStart))
		binary.NativeEndian.PutUint16(head[8:], uint16(f.SumField-f.SumStart))
	}
	if _, err := unix.SendmsgBuffers(s.sockets[i], [][]byte{head[:], f.Data}, nil, nil,
		0); err != nil && !(f.Leaves && errors.Is(err, unix.ENOBUFS)) {
		s.refused.Add(1)
		s.first.CompareAndSwap(nil, &err)
	}
}

// Refused returns how many frames the kernel didn't take, and why it didn't take the first one.
func (n *Network) Refused() (uint64, error) {
	if n.sender == nil || n.sender.refused.Load() == 0 {
		return 0, nil
	}
	return n.sender.refused.Load(), *n.sender.first.Load()
}

func (s *sender) close() error {
	s.stop()
	s.done.Wait()
	var errs []error
	for _, fd := range s.opened {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}
