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
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/experiment/trial"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// The link is between a router and the receiver. Most of its round-trip time comes from its queue.
const (
	rate  = 40_000_000 // bits a second
	queue = 200_000    // bytes: 40 ms

	linkAddr  = "203.0.113.2"
	cableAddr = "198.51.100.2"
)

// lab is a sender and a receiver, joined by the link, through the router, and by a cable.
type lab struct {
	net                      *testnet.Net
	sender, router, receiver *testnet.Host
	linkIn, cableIn          *testnet.Dev // of the receiver
}

func newLab() (_ *lab, err error) {
	l := &lab{}
	if l.net, err = testnet.New(); err != nil {
		return nil, err
	}
	if err := l.build(); err != nil {
		return nil, errors.Join(err, l.net.Close())
	}
	return l, nil
}

func (l *lab) build() (err error) {
	for _, h := range []struct {
		name string
		host **testnet.Host
	}{{"sender", &l.sender}, {"router", &l.router}, {"receiver", &l.receiver}} {
		if *h.host, err = l.net.Host(h.name); err != nil {
			return err
		}
	}
	// What a device receives is handled on the processor of its host, whoever has sent it.
	join := func(a, b *testnet.Host, name, addrA, addrB string) (_, _ *testnet.Dev, err error) {
		left, right, err := l.net.Join(a, name, b, name)
		if err != nil {
			return nil, nil, err
		}
		cpu := otherCPU
		if a == l.sender {
			cpu = senderCPU
		}
		return left, right, errors.Join(left.SetReceiveCPU(cpu), right.SetReceiveCPU(otherCPU),
			left.AddAddr(addrA+"/24"), right.AddAddr(addrB+"/24"))
	}
	out, _, err1 := join(l.sender, l.router, "link", "192.0.2.1", "192.0.2.254")
	far, in, err2 := join(l.router, l.receiver, "far", "203.0.113.254", linkAddr)
	_, cable, err3 := join(l.sender, l.receiver, "cable", "198.51.100.1", cableAddr)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	l.linkIn, l.cableIn = in, cable
	return errors.Join(l.router.SetForwarding(true), out.AddRoute("203.0.113.0/24", "192.0.2.254"),
		in.AddRoute("192.0.2.0/24", "203.0.113.254"), offloads.Segmentation(out, false), far.SetRate(rate, queue))
}

// measure makes the transfers of a variant, on a network of its own. Other work of the machine takes time from the
// sender, the control and the loop alike, so what is left is a share of the time that these three have together.
func measure(ctx context.Context, v variant, controller string) (r trial.Result, err error) {
	l, err := newLab()
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.net.Close()) }()
	loop, err := startLoop()
	if err != nil {
		return r, err
	}
	defer loop.close()
	algorithm, pid := v.kernel, 0
	if v.user != "" {
		algorithm = "fr_" + v.user
		c, err := start(ctx, controller, v.user, algorithm)
		if err != nil {
			return r, err
		}
		defer func() {
			_ = c.Process.Signal(unix.SIGTERM)
			_ = c.Wait()
		}()
		pid = c.Process.Pid
	}
	overLink, err := l.transfer(ctx, linkAddr, l.linkIn, algorithm, loop, pid)
	if err != nil {
		return r, fmt.Errorf("over the link: %w", err)
	}
	overCable, err := l.transfer(ctx, cableAddr, l.cableIn, algorithm, loop, pid)
	if err != nil {
		return r, fmt.Errorf("over the cable: %w", err)
	}
	r = overLink.result()
	r.Figures[leftLink], r.Figures[leftCable] = overLink.left, overCable.left
	r.Figures[fast], r.Figures[control] = overCable.result().Figures[bitrate]/1000, overCable.control
	return r, nil
}

// start starts a congestion control in user space, beside the sender.
func start(ctx context.Context, controller, algorithm, name string) (*exec.Cmd, error) {
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
	return c, nil
}

// processorTime is how many seconds of processors a process has used: the sum of its threads.
func processorTime(pid int) (seconds float64) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, file := range files {
		var nanoseconds float64
		text, _ := os.ReadFile(file) // a thread that has ended counts no more
		_, _ = fmt.Sscan(string(text), &nanoseconds)
		seconds += nanoseconds / 1e9
	}
	return seconds
}

const port = 5201 // of iperf3

// transfer has iperf3 send beside the loop, and a congestion control in user space, if there is one (pid).
func (l *lab) transfer(ctx context.Context, addr string, in *testnet.Dev, algorithm string, loop *loop, pid int) (
	*report, error,
) {
	// Alone, the loop counts so far in a second of the processor.
	before := processorTime(loop.cmd.Process.Pid)
	n, err := loop.count(300 * time.Millisecond)
	speed := n / (processorTime(loop.cmd.Process.Pid) - before)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, *length+time.Minute)
	defer cancel()
	server := l.receiver.Command(ctx, "iperf3", "-s", "-1", "-p", strconv.Itoa(port))
	if err := testnet.StartChild(server); err != nil {
		return nil, err
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	listens := func() bool { return l.receiver.Listens(port) }
	if err := testnet.Until(5*time.Second, "iperf3 listens", listens); err != nil {
		return nil, err
	}
	client := l.sender.Command(ctx, "taskset", "-c", strconv.Itoa(senderCPU), "iperf3", "-c", addr,
		"-p", strconv.Itoa(port), "-C", algorithm, "-t", strconv.Itoa(int(length.Seconds())), "-i", "0.1", "-J")
	var out bytes.Buffer
	client.Stdout, client.Stderr = &out, os.Stderr
	received, err := in.Received()
	if err != nil {
		return nil, err
	}
	if err := testnet.StartChild(client); err != nil {
		return nil, err
	}
	arrives := func() bool {
		now, err := in.Received()
		return err == nil && now > received+30
	}
	err = testnet.Until(5*time.Second, "data arrives", arrives)
	used := func() (control, all float64) {
		control = processorTime(pid)
		return control, control + processorTime(loop.cmd.Process.Pid) + processorTime(client.Process.Pid)
	}
	control, all := used()
	if err == nil {
		n, err = loop.count(*length - time.Second)
	}
	control2, all2 := used()
	if err = errors.Join(err, client.Wait()); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out.String())
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return nil, err
	}
	if r.Error != "" || len(r.Intervals) == 0 {
		return nil, fmt.Errorf("iperf3: %d intervals: %s", len(r.Intervals), r.Error)
	}
	r.left, r.control = 100*n/speed/(all2-all), 100*(control2-control)/(all2-all)
	return &r, nil
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

	left, control float64 // % of the CPU time of the sender, the control and the loop together
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
