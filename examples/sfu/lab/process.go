package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/sfu/server"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// role is the environment variable that makes a copy of the running program the server.
const role = "FASTRELAY_SFULAB"

// Main lets the program that calls it first of all be started again as an SFU by Serve. Then it doesn't return.
func Main() {
	if os.Getenv(role) == "server" {
		os.Exit(server.Command(os.Args[1:], os.Stdout, os.Stderr))
	}
}

// Process is an SFU in a process of its own.
type Process struct {
	cmd    *exec.Cmd
	host   *testnet.Host
	client *http.Client
	ended  chan struct{}
	err    error

	mu  sync.Mutex
	log bytes.Buffer
}

const api = "127.0.0.1:8080"

// Serve starts the SFU on a host, with the flags of the sfu command, and waits until it is ready. The caller stops or
// kills it; it doesn't outlive this process.
func Serve(host *testnet.Host, flags ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &Process{host: host, ended: make(chan struct{})}
	p.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: p.dial}}
	p.cmd = host.Command(context.Background(), self, append([]string{"--api", api}, flags...)...)
	p.cmd.Env = append(os.Environ(), role+"=server")
	log, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := testnet.StartChild(p.cmd); err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	go func() {
		p.readLog(log, ready)
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	select {
	case <-ready:
		return p, nil
	case <-p.ended:
		return nil, fmt.Errorf("the SFU ended at once: %s", p.Log())
	case <-time.After(30 * time.Second):
		p.Kill()
		return nil, fmt.Errorf("the SFU is not ready: %s", p.Log())
	}
}

func (p *Process) readLog(r io.Reader, ready chan<- struct{}) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		p.mu.Lock()
		p.log.Write(append(lines.Bytes(), '\n'))
		p.mu.Unlock()
		if ready != nil && strings.Contains(lines.Text(), "msg=ready") {
			close(ready)
			ready = nil
		}
	}
}

// dial connects from the server's host.
func (p *Process) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = p.host.Do(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// Log returns what the server has logged so far.
func (p *Process) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// Kill ends the server without a chance to clean up.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// Stop asks the server to end, and waits for it.
func (p *Process) Stop() error {
	p.client.CloseIdleConnections()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.ended:
		return p.err
	case <-time.After(10 * time.Second):
		return errors.New("the SFU doesn't end: " + p.Log())
	}
}

// Call calls the API. An answer with an error is an error.
func (p *Process) Call(method, path string, body, into any) error {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	r, err := http.NewRequest(method, "http://"+api+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	answer, err := p.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode >= 300 {
		said, _ := io.ReadAll(answer.Body)
		return fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, bytes.TrimSpace(said))
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// Publish adds a publisher.
func (p *Process) Publish(r server.Publish) (st server.PublisherStats, err error) {
	return st, p.Call("POST", "/publishers", r, &st)
}

// Subscribe adds a subscriber.
func (p *Process) Subscribe(r server.Subscribe) (st server.SubscriberStats, err error) {
	return st, p.Call("POST", "/subscribers", r, &st)
}

// Change changes what a subscriber gets.
func (p *Process) Change(r server.Subscribe) error {
	return p.Call("PATCH", "/subscribers/"+r.Name, r, nil)
}

// Stats returns the counters.
func (p *Process) Stats() (st server.Stats, err error) { return st, p.Call("GET", "/stats", nil, &st) }

// Subscriber returns the counters of one subscriber.
func (p *Process) Subscriber(name string) (server.SubscriberStats, error) {
	st, err := p.Stats()
	if err != nil {
		return server.SubscriberStats{}, err
	}
	for _, u := range st.Subscribers {
		if u.Name == name {
			return u, nil
		}
	}
	return server.SubscriberStats{}, fmt.Errorf("no subscriber %s", name)
}
