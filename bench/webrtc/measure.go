package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pion/rtp"
	"github.com/pion/srtp/v3"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/segments/lab"
	"github.com/fastrelay/fastrelay-gen/examples/segments/sfu"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const (
	rtpSize    = 1200
	rtpHeader  = 12
	mediaPort  = 5004
	apiPort    = "8080"
	retries    = 3   // of a round in which a packet was lost
	maxWaiting = 32  // packets that a subscriber hasn't got yet: a socket has room for 90
	maxQueued  = 800 // and of all subscribers: the queue of a processor has room for 1,000 (netdev_max_backlog)
)

// cell is what was measured with so many subscribers: medians, in nanoseconds of CPU time.
type cell struct {
	subscribers int
	copies      map[sfu.Sends]float64 // of the SFU, for each packet that a subscriber has got
	seal        float64               // to encrypt one
}

// measureAll measures all ways of sending. Their SFUs are there at the same time, and their rounds alternate.
func measureAll(o options, subscribers int) (c cell, err error) {
	c = cell{subscribers: subscribers, copies: map[sfu.Sends]float64{}}
	var labs []*path
	defer func() {
		for _, p := range labs {
			err = errors.Join(err, p.close())
		}
	}()
	for _, sends := range sfu.AllSends {
		fmt.Fprintf(os.Stderr, "\r%-60s", fmt.Sprintf("%d subscribers connect to %s", subscribers, sends))
		p, err := newPath(o, sends, subscribers)
		if err != nil {
			return c, fmt.Errorf("%s, %d subscribers: %w", sends, subscribers, err)
		}
		labs = append(labs, p)
	}
	all := map[sfu.Sends][]float64{}
	var seals []float64
	for round := range o.rounds {
		for _, p := range labs {
			what := fmt.Sprintf("%d subscribers, round %d: %s", subscribers, round+1, p.sends)
			fmt.Fprintf(os.Stderr, "\r%-60s", what)
			used, err := p.measure(o)
			for range retries {
				if err == nil {
					break
				}
				used, err = p.measure(o)
			}
			if err != nil {
				return c, fmt.Errorf("%s: %w", what, err)
			}
			all[p.sends] = append(all[p.sends], used)
		}
		ns, err := seal()
		if err != nil {
			return c, err
		}
		seals = append(seals, ns)
	}
	for sends, list := range all {
		c.copies[sends] = measure.Median(list)
	}
	c.seal = measure.Median(seals)
	fmt.Fprintf(os.Stderr, "\r%-60s\r", "")
	return c, nil
}

// path is an SFU in a process of its own, a publisher and subscribers.
type path struct {
	sends     sfu.Sends
	net       *testnet.Net
	process   *exec.Cmd
	publisher *lab.Publisher
	peers     []*subscriber
	sent      uint64
}

// subscriber counts what it has got.
type subscriber struct {
	*lab.Subscriber
	got atomic.Uint64
}

func newPath(o options, sends sfu.Sends, subscribers int) (_ *path, err error) {
	p := &path{sends: sends}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.net, err = testnet.New(); err != nil {
		return nil, err
	}
	l, err := p.net.Line()
	if err != nil {
		return nil, err
	}
	// What the SFU's host receives is handled on the SFU's processor, all else on the other one (RPS), or what
	// subscribers receive where it was sent.
	steer := l.PeerDev.SetReceiveCPU
	if !o.steer {
		steer = func(int) error { return nil }
	}
	if err := errors.Join(
		l.RelayIn.SetReceiveCPU(measure.RelayCPU), l.RelayOut.SetReceiveCPU(measure.RelayCPU),
		l.ClientDev.SetReceiveCPU(measure.LoadCPU), steer(measure.LoadCPU),
		offloads.TxChecksum(l.ClientDev, false), offloads.TxChecksum(l.PeerDev, false),
	); err != nil {
		return nil, err
	}
	if err := p.serve(o, l, subscribers); err != nil {
		return nil, err
	}
	site := lab.Site{Host: l.Client, Addr: l.ClientAddr.V4, API: net.JoinHostPort(l.RelayInAddr.V4.String(), apiPort),
		KeepAlive: 10 * time.Second}
	if p.publisher, err = lab.Publish(site, "cam"); err != nil {
		return nil, err
	}
	site.Host, site.Addr = l.Peer, l.PeerAddr.V4
	for range subscribers {
		s := &subscriber{}
		s.Subscriber, err = lab.Subscribe(site, "cam", func(*rtp.Packet) { s.got.Add(1) })
		if err != nil {
			return nil, err
		}
		p.peers = append(p.peers, s)
	}
	return p, testnet.Until(time.Minute, "all get packets", func() bool {
		least, _ := p.least()
		if least == 0 {
			err = p.publisher.Send(0, rtpSize-rtpHeader)
		}
		return least > 0 || err != nil
	})
}

// serve starts the SFU, and waits until it is ready.
func (p *path) serve(o options, l *testnet.Line, subscribers int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p.process = l.Relay.Command(context.Background(), self, "-sends", string(p.sends), "-api", ":"+apiPort,
		"-address", netip.AddrPortFrom(l.RelayInAddr.V4, mediaPort).String())
	profile := "none"
	if o.profiles != "" {
		profile = filepath.Join(o.profiles, fmt.Sprintf("%d-%s.pprof", subscribers, p.sends))
	}
	p.process.Env = append(os.Environ(), role+"="+profile, "GOMAXPROCS=1")
	log, err := p.process.StderrPipe()
	if err != nil {
		return err
	}
	if err := testnet.StartChild(p.process); err != nil {
		return err
	}
	ready, said := make(chan bool, 1), strings.Builder{}
	go func() {
		lines := bufio.NewScanner(log)
		for lines.Scan() {
			if strings.Contains(lines.Text(), "msg=ready") {
				ready <- true
				break
			}
			said.WriteString(lines.Text() + "\n")
		}
		ready <- false
		for lines.Scan() {
			fmt.Fprintln(os.Stderr, lines.Text())
		}
	}()
	if !<-ready {
		return fmt.Errorf("the SFU ended at once: %s", said.String())
	}
	return measure.Prefer(p.process.Process.Pid, measure.RelayCPU)
}

// close ends all that there is.
func (p *path) close() error {
	var errs []error
	var all sync.WaitGroup
	for _, s := range p.peers {
		all.Go(func() { s.Close() })
	}
	if p.publisher != nil {
		all.Go(func() { p.publisher.Close() })
	}
	all.Wait()
	if p.process != nil && p.process.Process != nil {
		errs = append(errs, p.process.Process.Signal(syscall.SIGTERM), p.process.Wait())
	}
	if p.net != nil {
		errs = append(errs, p.net.Close())
	}
	return errors.Join(errs...)
}

// least returns what the subscriber has got that has the fewest packets, and what all have got together.
func (p *path) least() (least, all uint64) {
	least = p.peers[0].got.Load()
	for _, s := range p.peers {
		n := s.got.Load()
		least, all = min(least, n), all+n
	}
	return least, all
}

// measure has the publisher send a round, and returns the SFU's CPU time for each packet that a subscriber has got.
// That all subscribers have got all of it is what it waits for.
func (p *path) measure(o options) (float64, error) {
	var before []uint64
	for _, s := range p.peers {
		before = append(before, s.got.Load())
	}
	missing := func() (most int) { // of the slowest subscriber, of what was sent
		for i, s := range p.peers {
			most = max(most, int(p.sent)-int(s.got.Load()-before[i]))
		}
		return most
	}
	p.sent = 0
	window := max(1, min(maxWaiting, maxQueued/len(p.peers)))
	lost := func() error { return fmt.Errorf("a subscriber misses %d of %d packets", missing(), p.sent) }
	used, err := measure.CPUTime(p.process.Process.Pid)
	if err != nil {
		return 0, err
	}
	next := time.Now()
	for n := range o.packets {
		if n%o.frame == 0 {
			time.Sleep(time.Until(next))
			next = next.Add(time.Second * time.Duration(o.frame) / time.Duration(o.rate))
		}
		if missing() >= window {
			if testnet.Until(time.Second/2, "", func() bool { return missing() < window }) != nil {
				return 0, lost()
			}
			next = time.Now() // it isn't made up for
		}
		if err := p.publisher.Send(p.sent, rtpSize-rtpHeader); err != nil {
			return 0, err
		}
		p.sent++
	}
	if testnet.Until(time.Second/2, "", func() bool { return missing() <= 0 }) != nil {
		return 0, lost()
	}
	now, err := measure.CPUTime(p.process.Process.Pid)
	return float64(now-used) / float64(o.packets*len(p.peers)), err
}

// seal returns the CPU time that it takes to encrypt a packet, with the cipher that pion's peers agree on.
func seal() (float64, error) {
	const times, profile = 20_000, srtp.ProtectionProfileAeadAes256Gcm
	key, err := profile.KeyLen()
	if err != nil {
		return 0, err
	}
	salt, err := profile.SaltLen()
	if err != nil {
		return 0, err
	}
	ctx, err := srtp.CreateContext(make([]byte, key), make([]byte, salt), profile)
	if err != nil {
		return 0, err
	}
	packet := rtp.Packet{Header: rtp.Header{Version: 2}, Payload: lab.Payload(1, rtpSize-rtpHeader)}
	plain, err := packet.Marshal()
	if err != nil {
		return 0, err
	}
	sealed := make([]byte, 0, 2*rtpSize)
	began, err := threadTime()
	for n := range times {
		packet.SequenceNumber = uint16(n)
		if err := errors.Join(err, encrypt(ctx, &sealed, plain, &packet.Header)); err != nil {
			return 0, err
		}
	}
	now, err2 := threadTime()
	return float64(now-began) / times, cmp.Or(err, err2)
}

func encrypt(ctx *srtp.Context, into *[]byte, plain []byte, header *rtp.Header) (err error) {
	plain[2], plain[3] = byte(header.SequenceNumber>>8), byte(header.SequenceNumber)
	*into, err = ctx.EncryptRTP((*into)[:0], plain, header)
	return err
}

// threadTime is the CPU time of all threads of this process, of which only one does something.
func threadTime() (time.Duration, error) {
	var at unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &at)
	return time.Duration(at.Nano()), err
}
