package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quic/acks"
	"github.com/fastrelay/fastrelay-gen/examples/quic/server"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// A Variant is a relay, and how its clients' packets are protected.
type Variant string

// All speak the protocol of package server, and send the same streams.
const (
	Kernel    Variant = "kernel"
	UserSpace Variant = "user space"
	Stock     Variant = "stock" // package server without the kernel's part
	Quinn     Variant = "quinn"
	// It sends in segments.
	StockSegments Variant = "stock segments"
	// What its publisher sends waits for longer.
	StockWaiting Variant = "stock waiting"
	// These ask their subscribers for fewer ACKs, and the others for none.
	KernelThinned Variant = "kernel thinned"
	StockThinned  Variant = "stock thinned"
	QuinnThinned  Variant = "quinn thinned"
)

var variants = []Variant{
	UserSpace, Kernel, KernelThinned, Stock, StockThinned, StockSegments, StockWaiting, Quinn, QuinnThinned,
}

// null reports whether 1-RTT packets have null protection. Otherwise they are encrypted, as any QUIC client's.
func (v Variant) null() bool { return v == UserSpace || v.kernel() }

// kernel reports whether the kernel sends.
func (v Variant) kernel() bool { return v == Kernel || v == KernelThinned }

// thinned reports whether subscribers are asked for fewer ACKs.
func (v Variant) thinned() bool { return v == KernelThinned || v == StockThinned || v == QuinnThinned }

// quinn reports whether the relay is the one in Rust.
func (v Variant) quinn() bool { return v == Quinn || v == QuinnThinned }

// variantsOf returns those that a text names, separated by commas.
func variantsOf(text string) (list []Variant, err error) {
	for name := range strings.SplitSeq(text, ",") {
		v := Variant(strings.TrimSpace(name))
		if !slices.Contains(variants, v) {
			return nil, fmt.Errorf("%q is not a variant; there are %q", name, variants)
		}
		if slices.Contains(list, v) {
			return nil, fmt.Errorf("%q is named twice", v)
		}
		list = append(list, v)
	}
	return list, nil
}

// quinnRelay makes the relay with quinn and returns its path. That takes a minute the first time.
var quinnRelay = sync.OnceValues(func() (program string, err error) {
	_, file, _, _ := runtime.Caller(0)
	build := exec.Command(filepath.Join(filepath.Dir(file), "quinn", "build"))
	build.Stderr = os.Stderr
	out, err := build.Output()
	if err != nil {
		return "", fmt.Errorf("%s (tools/ensure quic installs what it needs): %w", build.Path, err)
	}
	return strings.TrimSpace(string(out)), nil
})

// role is the environment variable that tells a copy of the running program to be a relay.
const role = "FASTRELAY_QUICBENCH"

// What a relay's process is asked for, and answers with one line each.
const (
	ready = "ready"
	share = "share" // of the bytes, in percent: those that the kernel has sent
)

// relayMain lets the program be started again as a relay, and doesn't return then. The relay runs until its input ends.
func relayMain() {
	v := Variant(os.Getenv(role))
	if v == "" {
		return
	}
	if err := serve(v, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(v Variant, args []string) (err error) {
	flags := flag.NewFlagSet("relay", flag.ContinueOnError)
	listen := flags.String("listen", "", "")
	devices := flags.String("devices", "", "")
	profile := flags.String("profile", "", "")
	policy := flags.String("acks", "0", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	address, err := netip.ParseAddrPort(*listen)
	if err != nil {
		return err
	}
	kernelShare := func() float64 { return 0 }
	if v != UserSpace {
		config := server.Config{Address: address, TLS: secrets(), Segments: v == StockSegments}
		if v == StockWaiting {
			config.Wait = 3 * time.Millisecond
		}
		if config.ACKs, err = acks.Parse(*policy); err != nil {
			return err
		}
		if v.kernel() {
			config.Interfaces = strings.Split(*devices, ",")
		}
		s, err := server.Start(config)
		if err != nil {
			return err
		}
		defer s.Close()
		kernelShare = func() float64 {
			var kernel, user uint64
			for _, f := range s.Stats() {
				sum := f.Sum()
				kernel, user = kernel+sum.KernelBytes, user+sum.UserBytes
			}
			return 100 * float64(kernel) / float64(max(1, kernel+user))
		}
	} else {
		r, err := listenUserSpace(address)
		if err != nil {
			return err
		}
		defer r.close()
	}
	fmt.Println(ready)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if *profile != "" { // from the first question on
			f, err := os.Create(*profile)
			if err == nil {
				err = pprof.StartCPUProfile(f)
			}
			if err != nil {
				return err
			}
			*profile = ""
			defer func() { pprof.StopCPUProfile(); err = errors.Join(err, f.Close()) }()
		}
		fmt.Println(kernelShare())
	}
	return in.Err()
}

// A process is a relay's.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// settings are what else a relay is told.
type settings struct {
	profile string // file of Go's profile; none if it is empty
	acks    string // what is asked for: packets, and milliseconds, after which a subscriber acknowledges
}

// command returns the program of a variant's relay, with its arguments.
func (s *settings) command(l *testnet.Line, v Variant) (program string, args []string, err error) {
	args = []string{"--listen", serverAt(l).String()}
	if v.thinned() {
		args = append(args, "--acks", s.acks)
	}
	if v.quinn() {
		program, err = quinnRelay()
		return program, args, err
	}
	program, err = os.Executable()
	return program, append(args, "--devices", l.RelayIn.Name+","+l.RelayOut.Name, "--profile", s.profile), err
}

// start starts a relay on the line's middle host and on the relay's processor, and waits until it listens.
func start(l *testnet.Line, v Variant, s settings) (*process, error) {
	program, args, err := s.command(l, v)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: l.Relay.Command(context.Background(), program, args...)}
	p.cmd.Env = append(os.Environ(), role+"="+string(v), "GOMAXPROCS=1") // it has one processor
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if err := testnet.StartChild(p.cmd); err != nil {
		return nil, err
	}
	if line, err := p.out.ReadString('\n'); line != ready+"\n" {
		return nil, errors.Join(fmt.Errorf("%s: the relay's process ended", v), err, p.stop())
	}
	err = errors.Join(measure.Prefer(p.cmd.Process.Pid, measure.RelayCPU),
		measure.SetRealTime(p.cmd.Process.Pid, relayPriority))
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// relayPriority is above the priority of what measures (measure.Busy).
const relayPriority = 2

// share asks for the kernel's share of what was sent.
func (p *process) share() (percent float64, err error) {
	if _, err := fmt.Fprintln(p.in, share); err != nil {
		return 0, err
	}
	_, err = fmt.Fscanln(p.out, &percent)
	return percent, err
}

func (p *process) stop() error {
	_ = p.in.Close()
	return p.cmd.Wait()
}

// A userRelay is a relay in user space as one writes it with quic-go: what is read of a stream is written to a stream
// of each subscriber.
type userRelay struct {
	socket    *net.UDPConn
	transport *quic.Transport
	listener  *quic.Listener

	mu          sync.Mutex
	subscribers []*quic.Conn
}

func listenUserSpace(at netip.AddrPort) (*userRelay, error) {
	socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	hooks := &quic.Hooks{NullProtection: true, SparseMaxStreams: true}
	withHooks := func(ctx context.Context, _ *quic.ClientInfo) (context.Context, error) {
		return quic.WithHooks(ctx, hooks), nil
	}
	r := &userRelay{
		socket: socket, transport: &quic.Transport{Conn: socket, ConnectionIDLength: 8, ConnContext: withHooks},
	}
	if r.listener, err = r.transport.Listen(secrets(), wide()); err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	go func() {
		for {
			c, err := r.listener.Accept(context.Background())
			if err != nil {
				return
			}
			go r.serve(c)
		}
	}()
	return r, nil
}

func (r *userRelay) close() {
	_ = r.listener.Close()
	_ = r.transport.Close()
	_ = r.socket.Close()
}

// serve does what a client asks for (package server).
func (r *userRelay) serve(c *quic.Conn) {
	control, err := c.AcceptStream(c.Context())
	if err != nil {
		return
	}
	line, err := bufio.NewReader(control).ReadString('\n')
	if err != nil {
		return
	}
	publishes := strings.HasPrefix(line, "publish ")
	if !publishes {
		r.mu.Lock()
		r.subscribers = append(r.subscribers, c)
		r.mu.Unlock()
	}
	if _, err := control.Write([]byte("ok\n")); err != nil || control.Close() != nil || !publishes {
		return
	}
	for {
		in, err := c.AcceptUniStream(c.Context())
		if err != nil {
			return
		}
		go r.copy(in)
	}
}

// copy copies a stream to all subscribers.
func (r *userRelay) copy(in *quic.ReceiveStream) {
	r.mu.Lock()
	subscribers := r.subscribers
	r.mu.Unlock()
	out := make([]*quic.SendStream, 0, len(subscribers))
	for _, c := range subscribers {
		if s, err := c.OpenUniStream(); err == nil {
			out = append(out, s)
		}
	}
	buffer := make([]byte, 16<<10)
	for {
		n, err := in.Read(buffer)
		for _, s := range out {
			if n > 0 {
				_, _ = s.Write(buffer[:n]) // of a subscriber that is gone
			}
			if errors.Is(err, io.EOF) {
				_ = s.Close()
			} else if err != nil {
				s.CancelWrite(0)
			}
		}
		if err != nil {
			return
		}
	}
}
