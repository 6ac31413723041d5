package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/bench/load"
	"github.com/fastrelay/fastrelay-gen/examples/moq/bench/relays"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// warm is how long objects are delivered before anything is measured.
const warm = 3 * time.Second

// patience is how long a client may take to connect.
const patience = 10 * time.Second

// A stage is a relay with a publisher and subscribers.
type stage struct {
	b         *bench
	config    load.Config
	process   *exec.Cmd
	publisher *load.Publisher
	audience  load.Audience
}

// open starts a relay, and a publisher.
func (b *bench) open(ctx context.Context, r *relays.Relay, draft wire.Draft, c load.Config) (s *stage, err error) {
	s = &stage{b: b, config: c}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	s.process, err = r.Start(ctx, func(ctx context.Context, name string, args ...string) *exec.Cmd {
		return b.host.Command(ctx, "taskset", append([]string{"-c", strconv.Itoa(relayCPU), name}, args...)...)
	}, strconv.Itoa(int(draft)), at)
	if err != nil {
		return s, err
	}
	s.config.Relay, s.config.Draft = at, draft
	s.config.Listen = func() (conn *net.UDPConn, err error) {
		err = b.host.Do(func() (err error) {
			conn, err = net.ListenUDP("udp4", nil)
			return err
		})
		return conn, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s.publisher, err = load.Publish(ctx, s.config)
	return s, err
}

func (s *stage) close() (err error) {
	s.audience.Close()
	if s.publisher != nil {
		err = s.publisher.Close()
	}
	relays.End(s.process)
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

// cost measures the CPU time of a delivered object, and its delay.
func (b *bench) cost(
	ctx context.Context, r *relays.Relay, draft wire.Draft, c load.Config, receivers int,
) (result cost, err error) {
	s, err := b.open(ctx, r, draft, c)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.join(ctx, receivers); err != nil {
		return result, err
	}
	if err := pause(ctx, warm); err != nil {
		return result, err
	}
	used, sent, read := cpu(s.process.Process.Pid), s.publisher.Sent(), s.audience.Objects()
	delays, err := s.audience.Watch(ctx, b.time)
	if err != nil {
		return result, err
	}
	used, sent, read = cpu(s.process.Process.Pid)-used, s.publisher.Sent()-sent, s.audience.Objects()-read
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

// join measures what the first object takes while a group is being sent.
func (b *bench) join(ctx context.Context, r *relays.Relay, draft wire.Draft) (result join, err error) {
	if err := b.host.Run("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", delay.String()); err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, b.host.Run("tc", "qdisc", "del", "dev", "lo", "root")) }()
	s, err := b.open(ctx, r, draft, load.Config{Tracks: 1, Rate: 60, Size: 4000, Group: 60})
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

// capacity adds subscribers of 1 Mbit/s until too many objects are late, or missing.
func (b *bench) capacity(ctx context.Context, r *relays.Relay, draft wire.Draft) (result capacity, err error) {
	s, err := b.open(ctx, r, draft, load.Config{Tracks: 1, Rate: 125, Size: 1000, Group: 125})
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
