package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/bench/relays"
)

// warm is how long clients have to be there before anything is measured.
const warm = 6 * time.Second

// measure runs a relay, a publisher and subscribers.
func measure(ctx context.Context, dir string, r *relays.Relay, s setting) (result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	publish, err := relays.Made("python", "bin", "moq-pub-bench")
	if err != nil {
		return result{}, err
	}
	subscribe, err := relays.Made("python", "bin", "moq-load-sim")
	if err != nil {
		return result{}, err
	}
	address, err := free()
	if err != nil {
		return result{}, err
	}
	process, err := r.Start(ctx, exec.CommandContext, s.draft, address)
	defer relays.End(process)
	if err != nil {
		return result{}, err
	}
	report := filepath.Join(dir, "report.csv")
	if err := os.Remove(report); err != nil && !errors.Is(err, os.ErrNotExist) {
		return result{}, err
	}
	client := func(program string, args ...string) (*exec.Cmd, *bytes.Buffer, error) {
		args = append([]string{"moqt://" + address.String(), "-k", "--draft", s.draft, "-N", "bench", "-T", "track",
			"-s", strconv.Itoa(s.size), "-r", strconv.Itoa(s.rate / s.receivers), "-g", strconv.Itoa(s.group),
			"-t", "600"}, args...)
		cmd, out := exec.CommandContext(ctx, program, args...), &bytes.Buffer{}
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 5 * time.Second
		cmd.Stdout, cmd.Stderr = out, out
		return cmd, out, cmd.Start()
	}
	publisher, _, err := client(publish, "--pub-ns")
	if err != nil {
		return result{}, err
	}
	defer func() { _ = publisher.Wait() }() // it is interrupted
	if err := pause(ctx, 2*time.Second); err != nil {
		return result{}, err
	}
	subscribers, said, err := client(subscribe, "--subs", strconv.Itoa(s.receivers), "--role", "sub",
		"--stagger", "0.02", "-i", "1", "--report", report)
	if err != nil {
		return result{}, err
	}
	res, err := observe(ctx, process.Process.Pid, report, s)
	cancel()
	_ = subscribers.Wait() // it is interrupted
	if err != nil {
		return res, fmt.Errorf("%w\n%s", err, said)
	}
	return res, nil
}

// free returns an address of this host with a port that nothing listens at.
func free() (netip.AddrPort, error) {
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer socket.Close()
	return socket.LocalAddr().(*net.UDPAddr).AddrPort(), nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// observe takes the relay's CPU time, and what subscribers report meanwhile.
func observe(ctx context.Context, pid int, report string, s setting) (r result, err error) {
	if err := pause(ctx, warm+time.Duration(s.receivers)*20*time.Millisecond); err != nil {
		return r, err
	}
	seen, err := rows(report)
	if err != nil {
		return r, err
	}
	before, began := cpu(pid), time.Now()
	if err := pause(ctx, s.time); err != nil {
		return r, err
	}
	used, took := cpu(pid)-before, time.Since(began)
	all, err := rows(report)
	if err != nil {
		return r, err
	}
	all = all[len(seen):]
	if before == 0 || len(all) == 0 {
		return r, errors.New("the relay or the subscribers have ended")
	}
	bits := median(all, func(x row) float64 { return x.bits })
	r.delay = median(all, func(x row) float64 { return x.delay })
	r.delivered = min(1, bits/float64(8*s.rate*s.size))
	r.cost = used.Seconds() * 1e6 / (r.delivered * float64(s.rate) * took.Seconds())
	return r, nil
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

// A row is what subscribers report of a second.
type row struct{ bits, delay float64 }

// rows reads the report of moq-load-sim: t, namespace, track, live, target, rx_mbps, p90_ms and more.
func rows(file string) (all []row, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("the subscribers' report: %w", err)
	}
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("the subscribers' report: %w", err)
	}
	for _, line := range lines[min(1, len(lines)):] {
		rate, err1 := strconv.ParseFloat(line[5], 64)
		delay, err2 := strconv.ParseFloat(line[6], 64)
		if errors.Join(err1, err2) == nil {
			all = append(all, row{1e6 * rate, delay})
		}
	}
	return all, nil
}
