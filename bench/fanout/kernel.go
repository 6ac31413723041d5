package fanout

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Copy is what a copy costs in the kernel, to a device whose peer drops it.
type Copy struct {
	Receivers int                 `json:"receivers"`
	Size      int                 `json:"size"` // bytes of a datagram's payload
	Times     map[Variant]float64 `json:"ns"`
}

const (
	kernelTries  = 6
	copiesPerTry = 16_384
	runsPerLook  = 256 // packets whose records the ring of events has room for
	checksumAt   = 14 + 20 + 6
	sequenceAt   = 14 + 20 + 8 + 2
)

// A Subject is a program whose copies are measured.
type Subject struct {
	Variant Variant
	Program *ebpf.Program
	Next    func(frame []byte)     // changes the frame before it comes again
	After   func(copies int) error // what has to happen after so many more copies, outside of what is measured

	rounds []float64
}

// MeasureKernel runs the programs on single packets, one a call (BPF_PROG_TEST_RUN), and has the kernel measure each
// run (BPF_STATS_RUN_TIME).
func MeasureKernel(o Options) (copies []Copy, err error) {
	undo, err := PrepareMachine()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, undo()) }()
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return nil, fmt.Errorf("the kernel's statistics of BPF programs: %w", err)
	}
	defer stats.Close()
	for _, n := range o.Receivers {
		for _, size := range o.Sizes {
			c, err := measureCopies(o, n, size)
			if err != nil {
				return copies, fmt.Errorf("%d receivers, %d bytes: %w", n, size, err)
			}
			copies = append(copies, c)
		}
	}
	return copies, nil
}

func measureCopies(o Options, n, size int) (c Copy, err error) {
	net, err := testnet.New()
	if err != nil {
		return c, err
	}
	defer net.Close()
	l, err := net.Line()
	if err != nil {
		return c, err
	}
	publisher, server := netip.AddrPortFrom(l.ClientAddr.V4, publisherPort), netip.AddrPortFrom(l.RelayInAddr.V4,
		relayPort)
	var subjects []*Subject
	for _, v := range []Variant{Relay, SFU} {
		var r generated
		err := l.Relay.Do(func() (err error) {
			r, err = loadGenerated(v, publisher, server, receiversAt(netip.AddrPortFrom(l.PeerAddr.V4, firstPort), n))
			return err
		})
		if err != nil {
			return c, fmt.Errorf("%s: %w", v, err)
		}
		defer r.close()
		reported, sequence := uint64(0), uint16(0)
		subjects = append(subjects, &Subject{
			Variant: v, Program: r.program(),
			Next: func(frame []byte) {
				sequence++ // a packet that came before would be late
				setSequence(frame, sequence)
			},
			After: func(copies int) error {
				reported += uint64(copies)
				return r.reported(reported)
			},
		})
	}
	c = Copy{Receivers: n, Size: size}
	c.Times, err = MeasureCopies(o, l, n, Traffic{publisher, server, packet(size)}, subjects...)
	return c, err
}

// setSequence gives a packet its RTP sequence number, and the UDP checksum that follows (RFC 1624 §3, equation 3). One
// that comes out as 0 is written as 0xFFFF (RFC 768): 0 is none, and the SFU learns by packets whose checksum is right.
func setSequence(frame []byte, sequence uint16) {
	old, field := frame[sequenceAt:sequenceAt+2], frame[checksumAt:checksumAt+2]
	sum := uint32(^binary.BigEndian.Uint16(field)) + uint32(^binary.BigEndian.Uint16(old)) + uint32(sequence)
	sum = sum&0xFFFF + sum>>16
	if sum = ^(sum + sum>>16) & 0xFFFF; sum == 0 {
		sum = 0xFFFF
	}
	binary.BigEndian.PutUint16(old, sequence)
	binary.BigEndian.PutUint16(field, uint16(sum))
}

// Traffic is what relays copy: a payload from a publisher to a server.
type Traffic struct {
	Publisher, Server netip.AddrPort
	Payload           []byte
}

// MeasureCopies returns the nanoseconds that a copy takes in each relay, for n receivers that are the line's peer, and
// as a bare clone. BPF_STATS_RUN_TIME has to be on.
func MeasureCopies(o Options, l *testnet.Line, n int, t Traffic, relays ...*Subject) (map[Variant]float64, error) {
	if err := l.RelayOut.AddNeighbour(l.PeerAddr.V4, l.PeerDev.MAC); err != nil {
		return nil, err
	}
	s, err := newSink(l.PeerDev)
	if err != nil {
		return nil, err
	}
	defer s.close()
	b, err := loadBare(n, t.Server.Port(), l.RelayOut, l.PeerDev.MAC)
	if err != nil {
		return nil, err
	}
	defer b.close()
	frame, err := turnlab.UDPFrame(l.ClientDev.MAC, l.RelayIn.MAC, t.Publisher, t.Server, t.Payload)
	if err != nil {
		return nil, err
	}
	bare := &Subject{
		Variant: Bare, Program: b.program(), Next: func([]byte) {}, After: func(int) error { return nil },
	}
	subjects := append([]*Subject{bare}, relays...)
	for round := range o.Rounds {
		fmt.Fprintf(o.Progress, "\r%-60s", fmt.Sprintf("in the kernel: %d receivers, %d bytes, round %d", n,
			len(t.Payload), round+1))
		for _, subject := range subjects {
			ns := 0.0
			err := l.Relay.Do(func() (err error) {
				ns, err = subject.measure(frame, testrun.OnDevice(l.RelayIn.Index), n, s)
				return err
			})
			if err != nil {
				return nil, err
			}
			subject.rounds = append(subject.rounds, ns)
		}
	}
	times := map[Variant]float64{}
	for _, s := range subjects {
		times[s.Variant] = measure.Median(s.rounds)
	}
	return times, nil
}

// measure returns the nanoseconds of a copy: the mean of many, in the least disturbed of several tries. All copies have
// to arrive.
func (s *Subject) measure(frame, device []byte, n int, sink *sink) (float64, error) {
	out := make([]byte, len(frame)+256)
	least := math.Inf(1)
	for range kernelTries {
		arrived, err := sink.total()
		if err != nil {
			return 0, err
		}
		before, err := s.Program.Stats()
		if err != nil {
			return 0, err
		}
		runs := copiesPerTry / n
		for i := range runs {
			s.Next(frame)
			if _, err := s.Program.Run(&ebpf.RunOptions{Data: frame, DataOut: out, Context: device}); err != nil {
				return 0, err
			}
			if looked := i % runsPerLook; looked == runsPerLook-1 || i == runs-1 {
				if err := s.After((looked + 1) * n); err != nil {
					return 0, err
				}
			}
		}
		after, err := s.Program.Stats()
		if err != nil {
			return 0, err
		}
		want := uint64(runs * n)
		if got, err := sink.drain(arrived, want, quietTime); err != nil || got != want {
			return 0, errors.Join(fmt.Errorf("%v: %d of %d copies arrived", s.Variant, got, want), err)
		}
		least = min(least, float64(after.Runtime-before.Runtime)/float64(want))
	}
	return least, nil
}
