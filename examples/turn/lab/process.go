package lab

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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/turn/server"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// role is the environment variable that makes a copy of the running program a TURN server.
const role = "FASTRELAY_TURN_SERVER"

// Main lets the program that calls it first of all be started again as a TURN server by Serve, or as what measure.Main
// says. In these cases it doesn't return.
func Main() {
	measure.Main()
	if os.Getenv(role) != "" {
		os.Exit(server.Command(os.Args[1:], os.Stdout, os.Stderr))
	}
}

// Coturn returns the arguments of coturn's turnserver on the relay of a line, with the user of this package, UDP alone,
// and its files in a folder. It says CoturnReady when all its sockets are open.
func Coturn(l *testnet.Line, dir string, more ...string) []string {
	return append([]string{"-n", "--no-cli", "--no-tls", "--no-dtls", "--no-tcp-relay",
		"--lt-cred-mech", "--user", turnlab.User + ":" + turnlab.Password, "--realm", turnlab.Realm,
		"--listening-ip", l.RelayInAddr.V4.String(), "--listening-ip", l.RelayInAddr.V6.String(),
		"--relay-ip", l.RelayOutAddr.V4.String(), "--relay-ip", l.RelayOutAddr.V6.String(),
		"--db", filepath.Join(dir, "turndb"), "--pidfile", filepath.Join(dir, "pid"), "--log-file", "stdout"}, more...)
}

// CoturnReady is what coturn says when it is ready.
const CoturnReady = "Total General servers"

// Process is a TURN server in a process of its own.
type Process struct {
	cmd   *exec.Cmd
	stats chan []byte
	ended chan struct{}

	mu  sync.Mutex
	log bytes.Buffer
}

// Serve starts the TURN server on a host, with the flags of the turn command and the user of this package, and waits
// until it listens. The caller stops or kills it; it doesn't outlive this process.
func Serve(host *testnet.Host, flags ...string) (*Process, error) {
	return serve(host, nil, flags)
}

// ServeWithoutRights is Serve for a server that has no capabilities, as one that isn't root's.
func ServeWithoutRights(host *testnet.Host, flags ...string) (*Process, error) {
	return serve(host, []string{"setpriv", "--bounding-set", "-all", "--inh-caps", "-all"}, flags)
}

func serve(host *testnet.Host, wrapper, flags []string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := append(wrapper, self, "--user", turnlab.User+"="+turnlab.Password, "--realm", turnlab.Realm, "--json")
	args = append(args, flags...)
	p := &Process{
		cmd:   host.Command(context.Background(), args[0], args[1:]...),
		stats: make(chan []byte, 1),
		ended: make(chan struct{}),
	}
	p.cmd.Env = append(os.Environ(), role+"=1")
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	log, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := testnet.StartChild(p.cmd); err != nil {
		return nil, err
	}
	listens := make(chan struct{})
	var readers sync.WaitGroup
	readers.Go(func() { p.readStats(out) })
	readers.Go(func() { p.readLog(log, listens) })
	go func() {
		readers.Wait()
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	select {
	case <-listens:
		return p, nil
	case <-p.ended:
		return nil, fmt.Errorf("the TURN server ended at once: %s", p.Log())
	case <-time.After(20 * time.Second):
		p.Kill()
		return nil, fmt.Errorf("the TURN server does not listen: %s", p.Log())
	}
}

func (p *Process) readStats(r io.Reader) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		p.stats <- bytes.Clone(lines.Bytes())
	}
}

func (p *Process) readLog(r io.Reader, listens chan<- struct{}) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		p.mu.Lock()
		p.log.Write(append(lines.Bytes(), '\n'))
		p.mu.Unlock()
		if listens != nil && strings.Contains(lines.Text(), "msg=listening") {
			close(listens)
			listens = nil
		}
	}
}

// Log returns what the server has logged so far.
func (p *Process) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// Stats asks the server for its counters.
func (p *Process) Stats() (server.Stats, error) {
	var s server.Stats
	if err := p.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		return s, err
	}
	select {
	case line := <-p.stats:
		return s, json.Unmarshal(line, &s)
	case <-p.ended:
		return s, errors.New("the TURN server has ended: " + p.Log())
	case <-time.After(10 * time.Second):
		return s, errors.New("the TURN server does not answer: " + p.Log())
	}
}

// Stop asks the server to end and waits for it.
func (p *Process) Stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		p.Kill()
		return errors.New("the TURN server does not end: " + p.Log())
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("the TURN server ended with status %d: %s", code, p.Log())
	}
	return nil
}

// Kill ends the server without a warning and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// CPUTime returns the CPU time that the server's threads have used, interrupts that came meanwhile included.
func (p *Process) CPUTime() (time.Duration, error) { return measure.CPUTime(p.cmd.Process.Pid) }
