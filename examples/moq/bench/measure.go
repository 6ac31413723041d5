package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/bench/load"
	"github.com/fastrelay/fastrelay-gen/examples/moq/others"
	moq "github.com/fastrelay/fastrelay-gen/examples/moq/relay"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quic/bench/line"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/testlink"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// warm is how long objects are delivered before anything is measured.
const warm = 3 * time.Second

// patience is how long a client may take to connect.
const patience = 10 * time.Second

// A stage is a relay with a publisher and subscribers, in network namespaces of their own.
type stage struct {
	hosts     *testnet.Net
	relay     *testnet.Host
	players   *testnet.Host // of the subscribers
	source    *testnet.Host // of the publisher
	link      *testlink.Link
	top       *moq.Relay // above the relay; nil: there is none
	config    load.Config
	process   *exec.Cmd
	publisher *load.Publisher
	audience  load.Audience
}

// open starts a relay, and a publisher, whose packets take a while to the relay and back.
func open(
	ctx context.Context, dir string, r *others.Relay, draft wire.Draft, c load.Config, delay time.Duration,
) (s *stage, err error) {
	s = &stage{config: c}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := s.connect(delay); err != nil {
		return s, err
	}
	here := *r
	here.Run = placed(s.relay)
	s.process, err = here.Start(ctx, s.config.Relay, dir, strconv.Itoa(int(draft)))
	if err != nil {
		return s, err
	}
	s.config.Draft = draft
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s.config.Listen = listen(s.source)
	if s.publisher, err = load.Publish(ctx, s.config); err != nil {
		return s, err
	}
	s.config.Listen = listen(s.players)
	return s, nil
}

// placed prepares programs on a host, and on the relay's processor.
func placed(h *testnet.Host) func(ctx context.Context, name string, args ...string) *exec.Cmd {
	return func(ctx context.Context, name string, args ...string) *exec.Cmd {
		return h.Command(ctx, "taskset", append([]string{"-c", strconv.Itoa(measure.RelayCPU), name}, args...)...)
	}
}

func listen(h *testnet.Host) func() (*net.UDPConn, error) {
	return func() (conn *net.UDPConn, err error) {
		err = h.Do(func() (err error) {
			conn, err = net.ListenUDP("udp4", nil)
			return err
		})
		return conn, err
	}
}

// connect makes the hosts: without a delay, those of the bench of examples/quic.
func (s *stage) connect(delay time.Duration) (err error) {
	if delay == 0 {
		var l *testnet.Line
		if s.hosts, l, err = line.New(); err != nil {
			return err
		}
		s.relay, s.source, s.players = l.Relay, l.Client, l.Peer
		s.config.Relay = netip.AddrPortFrom(l.RelayInAddr.V4, port)
		return nil
	}
	if s.hosts, err = testnet.New(); err != nil {
		return err
	}
	if s.relay, err = s.hosts.Host("relay"); err != nil {
		return err
	}
	if s.players, err = s.hosts.Host("clients"); err != nil {
		return err
	}
	late := testlink.Direction{Delay: delay}
	s.link, err = testlink.Join(s.hosts, s.relay, "eth0", s.players, "eth0", testlink.Config{FromA: late, FromB: late})
	if err != nil {
		return err
	}
	s.source = s.players
	s.config.Relay = netip.MustParseAddrPort(fmt.Sprintf("192.0.2.1:%d", port))
	return errors.Join(s.link.A.AddAddr("192.0.2.1/24"), s.link.B.AddAddr("192.0.2.2/24"))
}

// port is where relays listen.
const port = 4433

func (s *stage) close() (err error) {
	s.audience.Close()
	if s.publisher != nil {
		err = s.publisher.Close()
	}
	others.End(s.process)
	if s.top != nil {
		err = errors.Join(err, s.top.Close())
	}
	if s.link != nil {
		err = errors.Join(err, s.link.Close())
	}
	if s.hosts != nil {
		err = errors.Join(err, s.hosts.Close())
	}
	return err
}

// join adds subscribers.
func (s *stage) join(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for range n {
		if err := s.audience.Join(ctx, s.config); err != nil {
			return fmt.Errorf("a subscriber: %w", err)
		}
	}
	return nil
}

// A cost is what one run gave.
type cost struct {
	cpu       float64 // µs for a delivered object
	p50, p99  float64 // ms from the publisher's Write until a subscriber has read the object
	delivered float64 // percent of what was published
}

// measureCost measures the CPU time of a delivered object, and its delay.
func measureCost(
	ctx context.Context, dir string, r *others.Relay, draft wire.Draft, c load.Config, receivers int, d time.Duration,
) (result cost, err error) {
	s, err := open(ctx, dir, r, draft, c, 0)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	return s.cost(ctx, receivers, d)
}

// cost measures what objects cost while some receive them. It counts what the relay's programs take in the kernel, too,
// if their run time is measured.
func (s *stage) cost(ctx context.Context, receivers int, d time.Duration) (result cost, err error) {
	if err := s.join(ctx, receivers); err != nil {
		return result, err
	}
	if err := pause(ctx, warm); err != nil {
		return result, err
	}
	pid := s.process.Process.Pid
	used, sent, read := cpu(pid)+inKernel(pid), s.publisher.Sent(), s.audience.Objects()
	delays, err := s.audience.Watch(ctx, d)
	if err != nil {
		return result, err
	}
	used, sent, read = cpu(pid)+inKernel(pid)-used, s.publisher.Sent()-sent, s.audience.Objects()-read
	if used <= 0 || sent == 0 {
		return result, errors.New("the relay or the publisher has ended")
	}
	return cost{
		cpu: float64(used.Microseconds()) / float64(read), p50: milliseconds(quantile(delays, 0.5)),
		p99:       milliseconds(quantile(delays, 0.99)),
		delivered: min(100, 100*float64(read)/float64(sent*uint64(receivers))),
	}, nil
}

// A join is how a subscriber's first object came, in ms.
type join struct{ took, roundTrip float64 }

// delay is what each packet takes when joining is measured.
const delay = 10 * time.Millisecond

// measureJoin measures what the first object takes while a group is being sent.
func measureJoin(ctx context.Context, dir string, r *others.Relay, draft wire.Draft) (result join, err error) {
	s, err := open(ctx, dir, r, draft, load.Config{Tracks: 1, Rate: 60, Size: 4000, Group: 60}, delay)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.join(ctx, 1); err != nil { // so that the relay has the track
		return result, err
	}
	if err := pause(ctx, warm); err != nil {
		return result, err
	}
	var all []join
	for range 20 {
		ctx, cancel := context.WithTimeout(ctx, patience)
		took, roundTrip, err := s.audience.First(ctx, s.config)
		cancel()
		if err != nil {
			return result, err
		}
		all = append(all, join{milliseconds(took), milliseconds(roundTrip)})
	}
	return join{
		median(all, func(j join) float64 { return j.took }), median(all, func(j join) float64 { return j.roundTrip }),
	}, nil
}

// A capacity is how many subscribers there were before objects were late, and what share of their processors the relay
// and the load had then.
type capacity struct {
	subscribers int
	relay, load float64
}

const (
	step    = 32                     // subscribers at a time
	most    = 2048                   // of them
	late    = 100 * time.Millisecond // an object that takes longer is late
	tooLate = 0.01                   // of the objects: that many are too many
	watched = 4 * time.Second
)

// measureCapacity adds subscribers of 1 Mbit/s until too many objects are late, or missing.
func measureCapacity(ctx context.Context, dir string, r *others.Relay, draft wire.Draft) (result capacity, err error) {
	s, err := open(ctx, dir, r, draft, load.Config{Tracks: 1, Rate: 125, Size: 1000, Group: 125}, 0)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for n := step; n <= most; n += step {
		if s.join(ctx, step) != nil { // it can't even take them
			return result, ctx.Err()
		}
		if err := pause(ctx, time.Second); err != nil {
			return result, err
		}
		pid := s.process.Process.Pid
		used, own, sent, began := cpu(pid), cpu(os.Getpid()), s.publisher.Sent(), time.Now()
		delays, err := s.audience.Watch(ctx, watched)
		if err != nil {
			return result, err
		}
		took := time.Since(began)
		all := int(s.publisher.Sent()-sent) * n
		inTime, _ := slices.BinarySearch(delays, late)
		if float64(inTime) < (1-tooLate)*float64(all) {
			break
		}
		result = capacity{n, share(cpu(pid)-used, took), share(cpu(os.Getpid())-own, took)}
	}
	return result, nil
}

func share(used, of time.Duration) float64 { return used.Seconds() / of.Seconds() }

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// tick is the unit of CPU times in /proc (sysconf(3), _SC_CLK_TCK).
const tick = 10 * time.Millisecond

// cpu is the CPU time of a process, 0 if it has ended.
func cpu(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from the third one on (proc(5))
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if errors.Join(err1, err2) != nil {
		return 0
	}
	return time.Duration(user+system) * tick
}

func milliseconds(d time.Duration) float64 { return float64(d) / 1e6 }

// quantile returns the delay, of sorted ones, that a share of them doesn't exceed.
func quantile(delays []time.Duration, share float64) time.Duration {
	return delays[min(int(share*float64(len(delays))), len(delays)-1)]
}

func median[T any](all []T, of func(T) float64) float64 {
	values := make([]float64, len(all))
	for i, one := range all {
		values[i] = of(one)
	}
	slices.SortFunc(values, cmp.Compare)
	return values[len(values)/2]
}
