package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
	moq "github.com/fastrelay/fastrelay-gen/examples/moq/relay"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// A variant says how a relay in the middle is connected with the relay above it, and with those below.
type variant struct {
	name         string
	null, kernel bool
}

var variants = []variant{{"kernel", true, true}, {"null", true, false}, {"protected", false, false}}

// compareHops measures what a delivered object costs a relay between others: protected, without protection, and in the
// kernel.
func compareHops(ctx context.Context, dir string, program string, s setting, rounds int) error {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return err
	}
	defer stats.Close()
	all := make([][]result, len(variants))
	for range rounds {
		for i, v := range variants {
			r, err := v.measure(ctx, dir, program, s)
			if err != nil {
				return fmt.Errorf("%s: %w", v.name, err)
			}
			all[i] = append(all[i], r)
		}
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "relays below\tobjects of a stream\trelay\tµs an object\tdelivered\t/ protected\t")
	cost := func(i int) float64 { return median(all[i], func(r result) float64 { return r.cost }) }
	for i, v := range variants {
		fmt.Fprintf(out, "%d\t%d\t%s\t%.2f\t%.1f%%\t%.2f\t\n", s.receivers, s.group, v.name, cost(i),
			100*median(all[i], func(r result) float64 { return r.delivered }), cost(i)/cost(len(variants)-1))
	}
	return out.Flush()
}

// addresses of the relays above and in the middle, and of those below.
var (
	above  = netip.MustParseAddrPort("10.1.0.2:4433")
	middle = netip.MustParseAddrPort("10.1.0.1:4433")
)

const private = "10.0.0.0/8"

// measure runs a relay between one above and connections as relays below have them.
func (v *variant) measure(ctx context.Context, dir, program string, s setting) (r result, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hosts, err := testnet.New()
	if err != nil {
		return r, err
	}
	defer hosts.Close()
	top, between, below, err := line(hosts)
	if err != nil {
		return r, err
	}
	root, hash, err := v.above(top)
	if err != nil {
		return r, err
	}
	defer root.Close()
	cmd, err := v.start(ctx, dir, program, between, hash)
	if err != nil {
		return r, err
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // killed
	}()
	for root.Stats().Sessions == 0 {
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return r, err
		}
	}
	var got, sent atomic.Int64 // bytes, objects
	for range s.receivers {
		c, err := connect(ctx, below, middle, v.null)
		if err != nil {
			return r, err
		}
		defer c.close()
		wait := wire.Parameters{RendezvousTimeout: wire.Some(uint64(10_000))}
		if err := c.request(ctx, &wire.Subscribe{Track: track, Parameters: wait}); err != nil {
			return r, err
		}
		go c.count(ctx, &got)
	}
	p, err := connect(ctx, top, above, false)
	if err != nil {
		return r, err
	}
	defer p.close()
	if err := p.request(ctx, &wire.Publish{Track: track}); err != nil {
		return r, err
	}
	failed := make(chan error, 1)
	go func() { failed <- p.publish(ctx, s, &sent) }()
	if err := pause(ctx, 2*time.Second); err != nil {
		return r, err
	}
	pid := cmd.Process.Pid
	before, had, began := cpu(pid)+inKernel(pid), got.Load(), sent.Load()
	select {
	case err := <-failed:
		return r, err
	case <-time.After(s.time):
	}
	used, delivered := cpu(pid)+inKernel(pid)-before, float64(got.Load()-had)/float64(s.size)
	r.cost = used.Seconds() * 1e6 / delivered
	r.delivered = delivered / float64(s.receivers) / float64(sent.Load()-began)
	return r, nil
}

// above starts a relay on a host; hash is its certificate's.
func (v *variant) above(h *testnet.Host) (r *moq.Relay, hash string, err error) {
	pair, err := certificate.Development(above.Addr())
	if err != nil {
		return nil, "", err
	}
	config := moq.Config{
		Address: above, TLS: &tls.Config{Certificates: []tls.Certificate{pair}}, Logger: slog.New(slog.DiscardHandler),
	}
	if v.null {
		config.Null = []netip.Prefix{netip.MustParsePrefix(private)}
	}
	err = h.Do(func() (err error) {
		r, err = moq.Start(config)
		return err
	})
	return r, certificate.Hash(pair), err
}

// start starts the relay that is measured, and waits until it listens.
func (v *variant) start(ctx context.Context, dir, program string, h *testnet.Host, hash string) (*exec.Cmd, error) {
	args := []string{"-address", middle.String(), "-upstream", "moqt://" + above.String(), "-upstream-hash", hash,
		"-stats", "0"}
	if v.null {
		args = append(args, "-null", private)
	}
	if v.kernel {
		args = append(args, "-interfaces", "up,down")
	}
	cmd := h.Command(ctx, program, args...)
	log, err := os.Create(filepath.Join(dir, v.name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stderr = log
	said, err := cmd.StdoutPipe()
	if err == nil {
		err = testnet.StartChild(cmd)
	}
	if err != nil {
		return nil, err
	}
	for lines := bufio.NewScanner(said); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "listening on ") {
			return cmd, nil
		}
	}
	_ = cmd.Wait() // the log says why
	text, _ := os.ReadFile(log.Name())
	return nil, fmt.Errorf("the relay has ended:\n%s", text)
}

// line makes three hosts, the second one between the others.
func line(hosts *testnet.Net) (top, between, below *testnet.Host, err error) {
	var errs [3]error
	top, errs[0] = hosts.Host("top")
	between, errs[1] = hosts.Host("between")
	below, errs[2] = hosts.Host("below")
	if err := errors.Join(errs[:]...); err != nil {
		return nil, nil, nil, err
	}
	for i, l := range []struct {
		name string
		host *testnet.Host
	}{{"up", top}, {"down", below}} {
		a, b, err := hosts.Join(between, l.name, l.host, "eth0")
		if err != nil {
			return nil, nil, nil, err
		}
		near := fmt.Sprintf("10.%d.0.1", i+1)
		if err := errors.Join(a.AddAddr(near+"/24"), b.AddAddr(fmt.Sprintf("10.%d.0.2/24", i+1)),
			b.AddRoute("0.0.0.0/0", near), offloads.Segmentation(b, false), offloads.TxChecksum(b, false)); err != nil {
			return nil, nil, nil, err
		}
	}
	return top, between, below, nil
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

var track = wire.Track{Namespace: wire.Namespace{"bench"}, Name: "track"}

// A client is a connection with a relay: a publisher's, or like that of a relay below.
type client struct {
	conn *quic.Conn
	from *quic.Transport
}

func connect(ctx context.Context, h *testnet.Host, to netip.AddrPort, null bool) (*client, error) {
	var socket *net.UDPConn
	if err := h.Do(func() (err error) {
		socket, err = net.ListenUDP("udp4", nil)
		return err
	}); err != nil {
		return nil, err
	}
	c := &client{from: &quic.Transport{Conn: socket, ConnectionIDLength: 8}}
	hooks := &quic.Hooks{NullProtection: null, SparseMaxStreams: true}
	config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{wire.Draft22.ALPN()}}
	const window = 1 << 22
	var err error
	c.conn, err = c.from.Dial(quic.WithHooks(ctx, hooks), net.UDPAddrFromAddrPort(to), config, &quic.Config{
		EnableDatagrams: true, EnableStreamResetPartialDelivery: true, MaxIncomingUniStreams: 4096,
		InitialStreamReceiveWindow: window, MaxStreamReceiveWindow: window,
		InitialConnectionReceiveWindow: 4 * window, MaxConnectionReceiveWindow: 4 * window,
	})
	if err != nil {
		return nil, err
	}
	control, err := c.conn.OpenUniStream()
	if err == nil {
		err = c.send(control, &wire.Setup{Implementation: "bench"})
	}
	return c, err
}

func (c *client) close() {
	_ = c.conn.CloseWithError(0, "")
	_ = c.from.Close()
	_ = c.from.Conn.Close()
}

func (c *client) send(w io.Writer, m wire.Message) error {
	b, err := wire.Append(nil, wire.Draft22, m)
	if err == nil {
		_, err = w.Write(b)
	}
	return err
}

// request sends a client's only request, and waits for the answer unless it waits for a publisher.
func (c *client) request(ctx context.Context, m wire.Message) error {
	s, err := c.conn.OpenStreamSync(ctx)
	if err == nil {
		err = c.send(s, m)
	}
	if _, is := m.(*wire.Subscribe); is || err != nil {
		return err
	}
	answer, err := wire.NewReader(s, wire.Draft22).Next()
	if refused, is := answer.(*wire.RequestError); is {
		err = errors.New(refused.Reason)
	}
	return err
}

// count counts the bytes of all streams.
func (c *client) count(ctx context.Context, sum *atomic.Int64) {
	for {
		s, err := c.conn.AcceptUniStream(ctx)
		if err != nil {
			return
		}
		go func() {
			b := make([]byte, 16<<10)
			for {
				n, err := s.Read(b)
				sum.Add(int64(n))
				if err != nil {
					return
				}
			}
		}()
	}
}

// publish publishes at the setting's rate.
func (c *client) publish(ctx context.Context, s setting, sent *atomic.Int64) error {
	next, payload := time.Now(), make([]byte, s.size)
	for g := uint64(0); ; g++ {
		out, err := c.conn.OpenUniStreamSync(ctx)
		if err != nil {
			return err
		}
		h := wire.SubgroupHeader{Group: g, FirstObject: true}
		w := wire.Subgroup{Header: h}
		b := h.Append(nil)
		for i := range uint64(s.group) {
			if b, err = w.Append(b, wire.Object{ID: i, Length: uint64(s.size)}); err != nil {
				return err
			}
			if _, err := out.Write(append(b, payload...)); err != nil {
				return err
			}
			b = b[:0]
			sent.Add(1)
			next = next.Add(time.Second * time.Duration(s.receivers) / time.Duration(s.rate))
			if err := pause(ctx, time.Until(next)); err != nil {
				return err
			}
		}
		if err := out.Close(); err != nil {
			return err
		}
	}
}
