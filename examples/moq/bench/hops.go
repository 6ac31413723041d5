package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/moq/bench/load"
	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
	"github.com/fastrelay/fastrelay-gen/examples/moq/others"
	moq "github.com/fastrelay/fastrelay-gen/examples/moq/relay"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quic/bench/line"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// A hop says how our relay is connected with the relay above it, and with those below.
type hop struct {
	name         string
	null, kernel bool
}

var hops = []hop{{"kernel", true, true}, {"null", true, false}, {"protected", false, false}}

// hops measures what a delivered object costs a relay between others: protected, without protection, and in the
// kernel.
func (b *bench) hops(ctx context.Context, receivers []int, rate int) error {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return err
	}
	defer stats.Close()
	ours, err := others.Relays(ctx, b.dir, "ours")
	if err != nil {
		return err
	}
	show("media", "relays below", "tracks", "hop", "µs/object", "/ protected", "p50 ms", "p99 ms", "delivered %")
	for _, m := range medias {
		for _, n := range receivers {
			c := m.config(rate, n)
			all := make([][]cost, len(hops))
			for range b.rounds {
				for i, h := range hops {
					one, err := h.measure(ctx, b.dir, ours[0], c, n, b.time)
					if err != nil {
						return fmt.Errorf("%s: %w", h.name, err)
					}
					all[i] = append(all[i], one)
				}
			}
			last := costs(all[len(all)-1]).cpu
			for i, h := range hops {
				r := costs(all[i])
				show(m.name, n, c.Tracks, h.name, r.cpu, fmt.Sprintf("%.2f", r.cpu/last), r.p50, r.p99, r.delivered)
			}
		}
	}
	return nil
}

// measure runs the relay between one above, which is in this process, and connections as relays below have them.
func (h *hop) measure(
	ctx context.Context, dir string, ours others.Relay, c load.Config, receivers int, d time.Duration,
) (result cost, err error) {
	s := &stage{config: c}
	defer func() { err = errors.Join(err, s.close()) }()
	var l *testnet.Line
	if s.hosts, l, err = line.New(); err != nil {
		return result, err
	}
	above, at := netip.AddrPortFrom(l.ClientAddr.V4, port), netip.AddrPortFrom(l.RelayInAddr.V4, port)
	top, hash, err := h.above(l.Client, above)
	if err != nil {
		return result, err
	}
	s.top = top
	ours.Run = placed(l.Relay)
	if s.process, err = ours.Start(ctx, at, dir, "22", h.args(l, above, hash)...); err != nil {
		return result, err
	}
	joining, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s.config.Draft, s.config.Relay, s.config.Listen = wire.Draft22, above, listen(l.Client)
	if s.publisher, err = load.Publish(joining, s.config); err != nil {
		return result, err
	}
	for top.Stats().Sessions < 2 { // the publisher's, and that of the relay
		if err := pause(joining, 10*time.Millisecond); err != nil {
			return result, err
		}
	}
	s.config.Relay, s.config.Listen, s.config.Null = at, listen(l.Peer), h.null
	return s.cost(ctx, receivers, d)
}

// above starts a relay on a host; hash is its certificate's.
func (h *hop) above(on *testnet.Host, at netip.AddrPort) (r *moq.Relay, hash string, err error) {
	pair, err := certificate.Development(at.Addr())
	if err != nil {
		return nil, "", err
	}
	config := moq.Config{
		Address: at, TLS: &tls.Config{Certificates: []tls.Certificate{pair}}, Logger: slog.New(slog.DiscardHandler),
	}
	if h.null {
		config.Null = []netip.Prefix{network(at.Addr())}
	}
	err = on.Do(func() (err error) {
		r, err = moq.Start(config)
		return err
	})
	return r, certificate.Hash(pair), err
}

func network(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, 24).Masked() }

// args are arguments of the relay that is measured.
func (h *hop) args(l *testnet.Line, above netip.AddrPort, hash string) []string {
	args := []string{"-upstream", "moqt://" + above.String(), "-upstream-hash", hash}
	if h.null {
		for _, a := range []netip.Addr{l.ClientAddr.V4, l.PeerAddr.V4} {
			args = append(args, "-null", network(a).String())
		}
	}
	if h.kernel {
		args = append(args, "-interfaces", l.RelayIn.Name+","+l.RelayOut.Name)
	}
	return args
}

// inKernel is how long programs of a process have run in the kernel.
func inKernel(pid int) (sum time.Duration) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		_, rest, is := strings.Cut(string(text), "prog_id:\t")
		if !is || strings.Contains(string(text), "link_type") {
			continue
		}
		line, _, _ := strings.Cut(rest, "\n")
		id, err := strconv.ParseUint(line, 10, 32)
		if err != nil {
			continue
		}
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
		if err != nil {
			continue
		}
		if stats, err := p.Stats(); err == nil {
			sum += stats.Runtime
		}
		_ = p.Close()
	}
	return sum
}
