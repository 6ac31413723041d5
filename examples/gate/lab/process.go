package lab

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/fastrelay/fastrelay-gen/examples/gate/gate"
)

// role is the environment variable that gives a copy of the running program another role, with a job in JSON.
const role = "FASTRELAY_GATELAB"

// Watcher is the variant of a process that is only a gate, in front of another server.
const Watcher Variant = "watch"

// job is what a process does.
type job struct {
	Variant Variant
	Gate    gate.Config
}

// Process is a server, or a gate alone, in a process of its own.
type Process struct {
	cmd      *exec.Cmd
	commands io.WriteCloser
	replies  *bufio.Reader
}

// Main lets the program that calls it first of all be started again as a Process. Then it doesn't return.
func Main() {
	text := os.Getenv(role)
	if text == "" {
		return
	}
	if err := processMain(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// processMain does its job until its input ends. For each line, it prints the number of packets that were refused.
func processMain(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	dropped, end := (func() (uint64, error))(nil), (func() error)(nil)
	if j.Variant == Watcher {
		g, err := gate.Start(j.Gate)
		if err != nil {
			return err
		}
		dropped, end = g.Dropped, g.Close
	} else {
		s, err := Serve(j.Variant, j.Gate)
		if err != nil {
			return err
		}
		dropped, end = s.Dropped, s.Close
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		n, err := dropped()
		if err != nil {
			return errors.Join(err, end())
		}
		fmt.Println(n)
	}
	return errors.Join(in.Err(), end())
}

// Start starts a server, or a gate alone, on the server's host.
func (l *Lab) Start(v Variant, c gate.Config) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(job{v, c})
	if err != nil {
		return nil, err
	}
	p := &Process{cmd: exec.Command(self)}
	p.cmd.Env = append(os.Environ(), role+"="+string(text))
	p.cmd.Stderr = os.Stderr
	if p.commands, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.replies = bufio.NewReader(out)
	// It is in the host's namespace, and sees the BPF file system of all. Its input ends when this process does.
	if err := l.Server.Do(p.cmd.Start); err != nil {
		return nil, err
	}
	if line, err := p.replies.ReadString('\n'); strings.TrimSpace(line) != "ready" {
		p.Kill()
		return nil, fmt.Errorf("the %s process didn't start: %w", v, errors.Join(err, errors.New(line)))
	}
	return p, nil
}

// Pid is the number of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Dropped returns the number of packets that were refused.
func (p *Process) Dropped() (n uint64, err error) {
	if _, err := fmt.Fprintln(p.commands); err != nil {
		return 0, err
	}
	_, err = fmt.Fscanln(p.replies, &n)
	return n, err
}

// Stop ends the process.
func (p *Process) Stop() error {
	return errors.Join(p.commands.Close(), p.cmd.Wait())
}

// Kill ends the process without notice.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}
