package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"text/tabwriter"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/bench/baseline"
	"github.com/fastrelay/fastrelay-gen/bench/results"
	"github.com/fastrelay/fastrelay-gen/examples/turn/turnrelay"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const (
	runsPerTry = 4_000
	tries      = 8
)

// subject is a packet whose cost is measured.
type subject struct {
	results.PacketCost
	kernel  *ebpf.Program
	counts  *runtime.AnyProgram // that counts how packets ended; nil: by hand
	verdict uint32              // that a program by hand has to return
	context any                 // of a run
	frame   []byte
	rounds  []float64
}

// measureCost runs the programs on single packets, one a call (BPF_PROG_TEST_RUN), and has the kernel measure each run.
func measureCost(rounds int) (*results.Cost, error) {
	net, err := testnet.New()
	if err != nil {
		return nil, err
	}
	defer net.Close()
	line, err := net.Line()
	if err != nil {
		return nil, err
	}
	for _, family := range []int{4, 6} {
		err := errors.Join(
			line.RelayIn.AddNeighbour(line.ClientAddr.Of(family), line.ClientDev.MAC),
			line.RelayOut.AddNeighbour(line.PeerAddr.Of(family), line.PeerDev.MAC))
		if err != nil {
			return nil, err
		}
	}
	var relay *turnrelay.Relay
	if err := line.Relay.Do(func() (err error) {
		relay, err = turnrelay.Load(turnrelay.Options{})
		return err
	}); err != nil {
		return nil, err
	}
	defer relay.Close()
	subjects, err := makeSubjects(line, relay)
	if err != nil {
		return nil, err
	}
	for _, hook := range baseline.Hooks {
		byHand, err := baseline.Load(hook)
		if err != nil {
			return nil, err
		}
		defer byHand.Close()
		more, err := makeByHand(line, hook, byHand)
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, more...)
	}
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return nil, fmt.Errorf("the kernel's statistics of BPF programs: %w", err)
	}
	defer stats.Close()
	for range rounds {
		for _, s := range subjects {
			var ns float64
			err := line.Relay.Do(func() (err error) { ns, err = s.measure(); return err })
			if err != nil {
				return nil, fmt.Errorf("%s: %s, %s, %d bytes: %w", s.By, s.Program, s.What, s.Size, err)
			}
			s.rounds = append(s.rounds, ns)
		}
	}
	cost := &results.Cost{}
	for _, p := range []*runtime.AnyProgram{relay.ToPeer.AnyProgram, relay.ToClient.AnyProgram} {
		size, err := sizeOf(p)
		if err != nil {
			return nil, err
		}
		cost.Programs = append(cost.Programs, size)
	}
	for _, s := range subjects {
		s.Time = measure.Median(s.rounds)
		cost.Packets = append(cost.Packets, s.PacketCost)
	}
	return cost, nil
}

// makeSubjects opens a channel for each pair of families and builds its packets, and one that belongs to none.
func makeSubjects(line *testnet.Line, relay *turnrelay.Relay) (list []*subject, err error) {
	for i, f := range []struct{ client, peer int }{{4, 4}, {6, 6}, {4, 6}, {6, 4}} {
		ch := turnrelay.Channel{
			Client:  netip.AddrPortFrom(line.ClientAddr.Of(f.client), 40000),
			Server:  netip.AddrPortFrom(line.RelayInAddr.Of(f.client), 3478),
			Number:  turnlab.ChannelNumber + uint16(i),
			Relayed: netip.AddrPortFrom(line.RelayOutAddr.Of(f.peer), 50000+uint16(i)),
			Peer:    netip.AddrPortFrom(line.PeerAddr.Of(f.peer), 7000),
		}
		if _, err := relay.Channel.Open(ch); err != nil {
			return nil, err
		}
		what := fmt.Sprintf("IPv%d to IPv%d", f.client, f.peer)
		for _, size := range []int{120, 1200} {
			payload := turnlab.Payload(size)
			toPeer, err := turnlab.UDPFrame(line.ClientDev.MAC, line.RelayIn.MAC, ch.Client, ch.Server,
				turnlab.ChannelData(ch.Number, payload))
			if err != nil {
				return nil, err
			}
			down, err := turnlab.UDPFrame(line.PeerDev.MAC, line.RelayOut.MAC, ch.Peer, ch.Relayed, payload)
			if err != nil {
				return nil, err
			}
			list = append(list,
				ofRelay(relay.ToPeer.AnyProgram, line.RelayIn, toPeer, what, size, "sent"),
				ofRelay(relay.ToClient.AnyProgram, line.RelayOut, down, "back, "+what, size, "sent"))
		}
	}
	stranger, err := turnlab.UDPFrame(line.ClientDev.MAC, line.RelayIn.MAC,
		netip.AddrPortFrom(line.ClientAddr.V4, 1), netip.AddrPortFrom(line.RelayInAddr.V4, 2),
		turnlab.ChannelData(turnlab.ChannelNumber, turnlab.Payload(120)))
	if err != nil {
		return nil, err
	}
	return append(list,
		ofRelay(relay.ToPeer.AnyProgram, line.RelayIn, stranger, "a stranger's", 120, "no_by_channel"),
		ofRelay(relay.ToClient.AnyProgram, line.RelayIn, stranger, "a stranger's", 120, "no_by_peer"),
	), nil
}

// ofRelay is a packet that comes to a device, for a program of the generated relay.
func ofRelay(p *runtime.AnyProgram, dev *testnet.Dev, frame []byte, what string, size int, outcome string) *subject {
	return &subject{
		PacketCost: results.PacketCost{
			By: results.Generated, Program: p.Name(), What: what, Size: size, Outcome: outcome,
		},
		kernel: p.Kernel(), counts: p, context: testrun.OnDevice(dev.Index), frame: frame,
	}
}

// makeByHand opens the channel of IPv4 to IPv4 and builds its packets, which are those of makeSubjects.
func makeByHand(line *testnet.Line, hook baseline.Hook, relay *baseline.Relay) (list []*subject, err error) {
	ch := baseline.Channel{
		Client:   netip.AddrPortFrom(line.ClientAddr.V4, 40000),
		Server:   netip.AddrPortFrom(line.RelayInAddr.V4, 3478),
		Number:   turnlab.ChannelNumber,
		Relayed:  netip.AddrPortFrom(line.RelayOutAddr.V4, 50000),
		Peer:     netip.AddrPortFrom(line.PeerAddr.V4, 7000),
		ToClient: baseline.Hop{Dev: line.RelayIn, MAC: line.ClientDev.MAC},
		ToPeer:   baseline.Hop{Dev: line.RelayOut, MAC: line.PeerDev.MAC},
	}
	if err := relay.Open(ch); err != nil {
		return nil, err
	}
	for _, size := range []int{120, 1200} {
		payload := turnlab.Payload(size)
		toPeer, err1 := turnlab.UDPFrame(line.ClientDev.MAC, line.RelayIn.MAC, ch.Client, ch.Server,
			turnlab.ChannelData(ch.Number, payload))
		toClient, err2 := turnlab.UDPFrame(line.PeerDev.MAC, line.RelayOut.MAC, ch.Peer, ch.Relayed, payload)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		add := func(name, what string, p *ebpf.Program, dev *testnet.Dev, frame []byte) {
			s := &subject{
				PacketCost: results.PacketCost{
					By: string(hook.Variant()), Program: name, What: what, Size: size, Outcome: "sent",
				},
				kernel: p, verdict: hook.Verdict(), frame: frame,
			}
			if hook == baseline.TC {
				s.context = testrun.OnDevice(dev.Index)
			}
			list = append(list, s)
		}
		add("to_peer", "IPv4 to IPv4", relay.ToPeer, line.RelayIn, toPeer)
		add("to_client", "back, IPv4 to IPv4", relay.ToClient, line.RelayOut, toClient)
	}
	return list, nil
}

// measure returns the nanoseconds of a run: the mean of many, in the least disturbed of several tries. All runs must
// end as expected.
func (s *subject) measure() (float64, error) {
	out := make([]byte, len(s.frame)+256)
	least := math.Inf(1)
	for range tries {
		counted, err := s.count()
		if err != nil {
			return 0, err
		}
		before, err := s.kernel.Stats()
		if err != nil {
			return 0, err
		}
		for range runsPerTry {
			verdict, err := s.kernel.Run(&ebpf.RunOptions{Data: s.frame, DataOut: out, Context: s.context})
			if err != nil {
				return 0, err
			}
			if s.counts == nil && verdict != s.verdict {
				return 0, fmt.Errorf("verdict %d, not %d", verdict, s.verdict)
			}
		}
		after, err := s.kernel.Stats()
		if err != nil {
			return 0, err
		}
		now, err := s.count()
		if err != nil {
			return 0, err
		}
		if n := now - counted; s.counts != nil && n != runsPerTry {
			return 0, fmt.Errorf("%d of %d packets ended as %q: %v", n, runsPerTry, s.Outcome, outcomes(s.counts))
		}
		least = min(least, float64(after.Runtime-before.Runtime)/float64(after.RunCount-before.RunCount))
	}
	return least, nil
}

// count is how many packets have ended as expected; 0 for a program by hand.
func (s *subject) count() (uint64, error) {
	if s.counts == nil {
		return 0, nil
	}
	c, err := s.counts.Count(s.Outcome)
	return c.Packets, err
}

// outcomes lists the reasons that applied, for a message.
func outcomes(p *runtime.AnyProgram) any {
	counts, err := p.Counts()
	if err != nil {
		return err
	}
	m := map[string]uint64{}
	for i, n := range counts {
		if n.Packets > 0 {
			m[p.Desc().Reason(i).Name] += n.Packets
		}
	}
	return m
}

func sizeOf(p *runtime.AnyProgram) (results.ProgramSize, error) {
	info, err := p.Kernel().Info()
	if err != nil {
		return results.ProgramSize{}, err
	}
	bytes, err := info.TranslatedSize()
	if err != nil {
		return results.ProgramSize{}, err
	}
	size := results.ProgramSize{Program: p.Name(), Instructions: bytes / 8}
	size.Verified, _ = info.VerifiedInstructions()
	return size, nil
}

func printCost(w io.Writer, c *results.Cost) {
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "program\tinstructions\tverifier steps")
	for _, p := range c.Programs {
		fmt.Fprintf(t, "%s\t%d\t%d\n", p.Program, p.Instructions, p.Verified)
	}
	fmt.Fprintln(t, "\nby\tpacket\tbytes\toutcome\tns")
	for _, p := range c.Packets {
		fmt.Fprintf(t, "%s\t%s, %s\t%d\t%s\t%.0f\n", p.By, p.Program, p.What, p.Size, p.Outcome, p.Time)
	}
	t.Flush()
}
