package congestion

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/experiment/trial"
	"github.com/fastrelay/fastrelay-gen/internal/test/testlink"
	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
)

// The link between sender and receiver; its queue has room for what it carries in a round trip.
const (
	rate  = 40_000_000 // bits a second
	delay = 10 * time.Millisecond
	queue = 100_000 // bytes

	linkAddr  = "192.0.2.2"
	cableAddr = "198.51.100.2"
)

// lab is a sender and a receiver, joined by the link and by a cable.
type lab struct {
	net              *testnet.Net
	sender, receiver *testnet.Host
	link             *testlink.Link
	linkIn, cableIn  *testnet.Dev // of the receiver
}

func newLab() (_ *lab, err error) {
	l := &lab{}
	if l.net, err = testnet.New(); err != nil {
		return nil, err
	}
	if err := l.build(); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *lab) build() (err error) {
	if l.sender, err = l.net.Host("sender"); err != nil {
		return err
	}
	if l.receiver, err = l.net.Host("receiver"); err != nil {
		return err
	}
	l.link, err = testlink.Join(l.net, l.sender, "link", l.receiver, "link", testlink.Config{
		FromA: testlink.Direction{Delay: delay, Rate: rate, Queue: queue}, FromB: testlink.Direction{Delay: delay},
	})
	if err != nil {
		return err
	}
	near, far, err := l.net.Join(l.sender, "cable", l.receiver, "cable")
	if err != nil {
		return err
	}
	l.linkIn, l.cableIn = l.link.B, far
	// What a device receives is handled on the processor of its host, whoever has sent it.
	for _, d := range []*testnet.Dev{l.link.A, near} {
		err = errors.Join(err, d.SetReceiveCPU(senderCPU))
	}
	for _, d := range []*testnet.Dev{l.link.B, far} {
		err = errors.Join(err, d.SetReceiveCPU(otherCPU))
	}
	return errors.Join(err, l.link.A.AddAddr("192.0.2.1/24"), l.link.B.AddAddr(linkAddr+"/24"),
		near.AddAddr("198.51.100.1/24"), far.AddAddr(cableAddr+"/24"))
}

func (l *lab) close() error {
	var err error
	if l.link != nil {
		err = l.link.Close()
	}
	return errors.Join(err, l.net.Close())
}

// measure makes the transfers of a variant, on a network of its own.
func measure(ctx context.Context, v variant, controller string) (r trial.Result, err error) {
	l, err := newLab()
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	loop, err := startLoop()
	if err != nil {
		return r, err
	}
	defer loop.close()
	algorithm := v.kernel
	if v.user != "" {
		algorithm = "fr_" + v.user
		stop, err := start(ctx, controller, v.user, algorithm)
		if err != nil {
			return r, err
		}
		defer stop()
	}
	const moment = 500 * time.Millisecond
	alone, err := loop.count(moment)
	if err != nil {
		return r, err
	}
	speed := alone / moment.Seconds()
	overLink, left, err := l.transfer(ctx, linkAddr, l.linkIn, algorithm, loop)
	if err != nil {
		return r, fmt.Errorf("over the link: %w", err)
	}
	r = overLink.result()
	r.Figures[leftLink] = 100 * left / speed
	overCable, left, err := l.transfer(ctx, cableAddr, l.cableIn, algorithm, loop)
	if err != nil {
		return r, fmt.Errorf("over the cable: %w", err)
	}
	r.Figures[leftCable], r.Figures[fast] = 100*left/speed, overCable.result().Figures[bitrate]/1000
	return r, nil
}

// start starts a congestion control in user space, beside the sender.
func start(ctx context.Context, controller, algorithm, name string) (stop func(), err error) {
	c := exec.CommandContext(ctx, "taskset", "-c", strconv.Itoa(senderCPU), controller,
		"-algorithm", algorithm, "-name", name, "-interval", interval.String())
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := testnet.StartChild(c); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if !strings.HasPrefix(line, "registered") {
		return nil, errors.Join(fmt.Errorf("the congestion control says %q", line), err, c.Wait())
	}
	return func() {
		_ = c.Process.Signal(unix.SIGTERM)
		_ = c.Wait()
	}, nil
}

const port = 5201

// transfer has iperf3 send beside the loop, and returns its report, and how far the loop counted in a second.
func (l *lab) transfer(ctx context.Context, addr string, in *testnet.Dev, algorithm string, loop *loop) (
	*report, float64, error,
) {
	ctx, cancel := context.WithTimeout(ctx, *length+time.Minute)
	defer cancel()
	server := l.receiver.Command(ctx, "iperf3", "-s", "-1", "-p", strconv.Itoa(port))
	if err := testnet.StartChild(server); err != nil {
		return nil, 0, err
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	listens := func() bool { return l.receiver.Listens(port) }
	if err := testnet.Until(5*time.Second, "iperf3 listens", listens); err != nil {
		return nil, 0, err
	}
	client := l.sender.Command(ctx, "taskset", "-c", strconv.Itoa(senderCPU), "iperf3", "-c", addr,
		"-p", strconv.Itoa(port), "-C", algorithm, "-t", strconv.Itoa(int(length.Seconds())), "-i", "0.1", "-J")
	var out bytes.Buffer
	client.Stdout, client.Stderr = &out, os.Stderr
	before, err := in.Received()
	if err != nil {
		return nil, 0, err
	}
	if err := testnet.StartChild(client); err != nil {
		return nil, 0, err
	}
	arrives := func() bool {
		now, err := in.Received()
		return err == nil && now > before+30
	}
	err = testnet.Until(5*time.Second, "data arrives", arrives)
	counting := *length - time.Second
	var n float64
	if err == nil {
		n, err = loop.count(counting)
	}
	if err = errors.Join(err, client.Wait()); err != nil {
		return nil, 0, fmt.Errorf("%w: %s", err, out.String())
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return nil, 0, err
	}
	if r.Error != "" || len(r.Intervals) == 0 {
		return nil, 0, fmt.Errorf("iperf3: %d intervals: %s", len(r.Intervals), r.Error)
	}
	return &r, n / counting.Seconds(), nil
}

// report is what iperf3 says (-J).
type report struct {
	Start struct {
		MSS int `json:"tcp_mss_default"`
	} `json:"start"`
	Intervals []struct {
		Streams []struct {
			Start    float64 `json:"start"`
			Bits     float64 `json:"bits_per_second"`
			Window   float64 `json:"snd_cwnd"` // bytes
			RTT      float64 `json:"rtt"`      // microseconds
			SentMore float64 `json:"retransmits"`
		} `json:"streams"`
	} `json:"intervals"`
	Error string `json:"error"`
}

// result makes figures and curves of a report.
func (p *report) result() trial.Result {
	r := trial.Result{Figures: map[string]float64{}, Curves: map[string]trial.Curve{}}
	n := 0.0
	for _, i := range p.Intervals {
		for _, s := range i.Streams {
			n++
			r.Figures[lost] += s.SentMore
			for name, y := range map[string]float64{
				window: s.Window / float64(max(p.Start.MSS, 1)), bitrate: s.Bits / 1e6, roundTrip: s.RTT / 1000,
			} {
				r.Figures[name] += y
				at := float64(len(r.Curves[name])) / 10 // so that the runs' points are at the same times
				r.Curves[name] = append(r.Curves[name], trial.Point{X: at, Y: y})
			}
		}
	}
	for _, name := range []string{window, bitrate, roundTrip} {
		r.Figures[name] /= n
	}
	return r
}

// loop is a process that counts as fast as it can, on the sender's processor.
type loop struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

const role = "FASTRELAY_COUNT"

func startLoop() (*loop, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	l := &loop{cmd: exec.Command("taskset", "-c", strconv.Itoa(senderCPU), self)}
	l.cmd.Env = append(os.Environ(), role+"=1")
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	l.out = bufio.NewReader(out)
	return l, testnet.StartChild(l.cmd)
}

func (l *loop) close() {
	_ = l.in.Close()
	_ = l.cmd.Wait()
}

// count counts for a time, and returns how far.
func (l *loop) count(d time.Duration) (n float64, err error) {
	if _, err = fmt.Fprintln(l.in, int64(d)); err == nil {
		_, err = fmt.Fscanln(l.out, &n)
	}
	return n, err
}

// Main lets the program that calls it first of all be started again as the loop. In this case it doesn't return.
func Main() {
	if os.Getenv(role) == "" {
		return
	}
	for {
		var nanoseconds int64
		if _, err := fmt.Fscanln(os.Stdin, &nanoseconds); err != nil {
			os.Exit(0)
		}
		fmt.Println(count(time.Duration(nanoseconds)))
	}
}

// count counts for a time.
func count(d time.Duration) uint64 {
	const some = 10_000 // between two looks at the clock
	var n atomic.Uint64 // which the compiler doesn't count by itself
	for begin := time.Now(); time.Since(begin) < d; {
		for range some {
			n.Add(1)
		}
	}
	return n.Load()
}
