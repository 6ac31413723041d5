package control_test

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
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// childPath asks the test's program to be a relay at a path, or another user's client of one.
const (
	childRelay  = "FASTRELAY_TEST_RELAY"
	childClient = "FASTRELAY_TEST_CLIENT"
	childCrowd  = "FASTRELAY_TEST_CROWD"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childCrowd); path != "" {
		fmt.Println(crowd(path))
		os.Exit(0)
	}
	if path := os.Getenv(childClient); path != "" {
		err := api.NewClient(path).Get(context.Background(), "/v1", nil)
		fmt.Println(err)
		os.Exit(0)
	}
	if path := os.Getenv(childRelay); path != "" {
		m.Run() // TestChild
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestChild is a relay in a process of its own, which is killed.
func TestChild(t *testing.T) {
	path := os.Getenv(childRelay)
	if path == "" {
		return // it is part of other tests
	}
	if _, err := load(t, control.Socket(path), runtime.Options{}); err != nil {
		t.Fatal(err)
	}
	fmt.Println("ready")
	select {}
}

// The socket is for its owner, and gone with the relay.
func TestSocketMode(t *testing.T) {
	l := start(t)
	st, err := os.Lstat(l.path)
	if err != nil || st.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the socket is %v: %v", st.Mode(), err)
	}
	if err := l.relay.Close(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Dir(l.path))
	if err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if err := l.Get(t.Context(), "/v1", nil); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a relay that is closed: %v", err)
	}
}

// A path that is in use is refused before anything is loaded, and its relay goes on.
func TestTaken(t *testing.T) {
	l := start(t)
	_, err := load(t, control.Socket(l.path), runtime.Options{})
	if !errors.Is(err, control.ErrTaken) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("a second relay: %v", err)
	}
	get[api.Relay](l, "/v1")
	refused := func(path, why string) {
		t.Helper()
		_, err := load(t, control.Socket(path), runtime.Options{})
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", path, err, why)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(file, "something else")
	if text, err := os.ReadFile(file); err != nil || string(text) != "mine" {
		t.Errorf("the file is %q: %v", text, err)
	}
	strange := filepath.Join(t.TempDir(), "strange")
	other, err := net.Listen("unix", strange)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	refused(strange, "another program")
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 120))
	refused(long, "shorter")
	missing := filepath.Join(t.TempDir(), "no", "x")
	if _, err := load(t, control.Socket(missing), runtime.Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that isn't there: %v", err)
	}
}

// A relay whose process was killed leaves a socket behind, which the next one replaces.
func TestKilled(t *testing.T) {
	needs.Root(t)
	path := filepath.Join(t.TempDir(), "lab.sock")
	cmd := exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.v")
	cmd.Env = append(os.Environ(), childRelay+"="+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	for b := make([]byte, 1000); !strings.Contains(said.String(), "ready"); {
		n, err := out.Read(b)
		if said.Write(b[:n]); err != nil {
			t.Fatalf("the child says %q: %v", &said, err)
		}
	}
	c := api.NewClient(path)
	var r api.Relay
	if err := c.Get(t.Context(), "/v1", &r); err != nil || r.PID != cmd.Process.Pid {
		t.Errorf("the child's relay: %+v, %v", r, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := c.Get(t.Context(), "/v1", nil); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a relay that was killed: %v", err)
	}
	relay, err := load(t, control.Socket(path), runtime.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	if err := c.Get(t.Context(), "/v1", &r); err != nil || r.PID != os.Getpid() {
		t.Errorf("its successor: %+v, %v", r, err)
	}
}

// A relay that is restarted has its socket back at once.
func TestRestarted(t *testing.T) {
	l := start(t)
	for range 3 {
		if err := l.relay.Close(); err != nil {
			t.Fatal(err)
		}
		var err error
		if l.relay, err = load(t, control.Socket(l.path), runtime.Options{}); err != nil {
			t.Fatal(err)
		}
		get[api.Relay](l, "/v1")
	}
}

// A load that fails leaves no socket.
func TestFailedLoad(t *testing.T) {
	dir := t.TempDir()
	_, err := load(t, control.Socket(filepath.Join(dir, "lab.sock")),
		runtime.Options{Settings: map[string]any{"port": 70000}})
	var value *runtime.ValueError
	if !errors.As(err, &value) {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// Another user is refused: by the kernel, and by the relay if somebody has changed the socket's mode.
func TestAnotherUser(t *testing.T) {
	l := start(t, func(s *control.Server) { s.Patience = time.Hour })
	const nobody = 65534
	dir, err := os.MkdirTemp("", "control")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	program, link := filepath.Join(dir, "test"), filepath.Join(dir, "sock")
	for _, err := range []error{os.Chmod(dir, 0o755), os.WriteFile(program, self, 0o755), os.Link(l.path, link)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ask := func(as string) string {
		cmd := exec.Command(program)
		cmd.Env = append(os.Environ(), as+"="+link)
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if said := ask(childClient); !strings.Contains(said, "permission denied") {
		t.Errorf("the kernel says %q", said)
	}
	if err := os.Chmod(l.path, 0o666); err != nil {
		t.Fatal(err)
	}
	if said := ask(childClient); !strings.Contains(said, "belongs to user 0, and you are user 65534") {
		t.Errorf("the relay says %q", said)
	}
	if said := ask(childCrowd); said != "4 are told why, 60 are ended\n" {
		t.Errorf("of 64 connections, %s", said)
	}
}

// crowd opens 64 connections, none of which sends its whole request before all others are ended.
func crowd(path string) string {
	var all []net.Conn
	for range 64 {
		c, err := net.Dial("unix", path)
		if err != nil {
			return err.Error()
		}
		_, _ = io.WriteString(c, "GET /v1 HTTP/1.1\r\nHost: relay\r\n") // it may be ended
		all = append(all, c)
	}
	told, ended := 0, 0
	for i := range all {
		c := all[len(all)-1-i] // the first ones have been let in
		_, _ = io.WriteString(c, "\r\n")
		if text, _ := bufio.NewReader(c).ReadString('\n'); strings.Contains(text, "403") {
			told++
		} else {
			ended++
		}
	}
	return fmt.Sprintf("%d are told why, %d are ended", told, ended)
}

// A megabyte of garbage, as a request or as a body, hurts nobody.
func TestGarbage(t *testing.T) {
	l := start(t)
	garbage := bytes.Repeat([]byte("\x00\xff{[\"garbage\r\n"), 1<<20/14+1)
	c, err := net.Dial("unix", l.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Write(garbage) // the relay hangs up in the middle
	_, _ = io.Copy(io.Discard, c)
	dial := func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", l.path) }
	raw := &http.Client{Transport: &http.Transport{DialContext: dial}}
	wants := map[int]int{1 << 20: http.StatusBadRequest, len(garbage): http.StatusRequestEntityTooLarge}
	for size, want := range wants {
		res, err := raw.Post("http://relay/v1/sessions/call", "application/json", bytes.NewReader(garbage[:size]))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		var p api.Problem
		if err != nil || res.StatusCode != want || json.Unmarshal(text, &p) != nil || p.Status != want ||
			res.Header.Get("Content-Type") != api.ProblemType {
			t.Errorf("%d bytes: %s, %.200s, %v", size, res.Status, text, err)
		}
	}
	for _, body := range []string{"", "null x", "[1]", `"x"`, "{", `{"client": {}}`, strings.Repeat("[", 100000)} {
		res, err := raw.Post("http://relay/v1/sessions/call", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode/100 != 4 {
			t.Errorf("%.20q: %s", body, res.Status)
		}
	}
	get[api.Relay](l, "/v1")
}

// Two clients open and close the same sessions at once: one of them has each.
func TestTwoClients(t *testing.T) {
	l := start(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	opened := map[int]int{}
	for range 2 {
		c := checkedClient(t, l.path, l.relay.Desc())
		wg.Go(func() {
			for i := range 100 {
				err := c.Do(t.Context(), "POST", "/v1/sessions/call", call(i), nil)
				var p *api.Problem
				switch {
				case err == nil:
					mu.Lock()
					opened[i]++
					mu.Unlock()
				case !errors.As(err, &p) || p.Code != api.CodeExists:
					t.Errorf("session %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	if len(opened) != 100 || l.relay.OpenSessions("call") != 100 {
		t.Errorf("%d were opened, %d are open", len(opened), l.relay.OpenSessions("call"))
	}
	for i, n := range opened {
		if n != 1 {
			t.Errorf("session %d was opened %d times", i, n)
		}
	}
}

// Who drains gets what is left, and new sessions are refused until the drain ends.
func TestDrain(t *testing.T) {
	l := start(t)
	s := do[api.Session](l, "POST", "/v1/sessions/call", call(1))
	if d := do[api.Drained](l, "POST", "/v1/drain", api.Drain{}); d.Drained || d.Sessions != 1 {
		t.Errorf("drained: %+v", d)
	}
	l.refused("POST", "/v1/sessions/call", call(2), api.CodeDraining, "", "drained")
	l.refused("POST", "/v1/groups/viewers", api.OpenGroup{Key: fields("publisher", "198.51.100.7:1", "stream", 1)},
		api.CodeDraining, "")
	done := make(chan api.Drained, 1)
	go func() { done <- do[api.Drained](l, "POST", "/v1/drain", api.Drain{Limit: 60}) }()
	do[any](l, "DELETE", "/v1/sessions/call/"+s.ID, nil)
	if d := <-done; !d.Drained || d.Sessions != 0 {
		t.Errorf("drained: %+v", d)
	}
	do[any](l, "DELETE", "/v1/drain", nil)
	do[api.Session](l, "POST", "/v1/sessions/call", call(2))
	do[api.Group](l, "POST", "/v1/groups/viewers", api.OpenGroup{
		Key: fields("publisher", "198.51.100.7:1", "stream", 1), Receivers: []api.Object{receiver(1)},
	})
	if d := do[api.Drained](l, "POST", "/v1/drain", api.Drain{Limit: 0.01, Close: true}); !d.Drained || d.Closed != 2 {
		t.Errorf("drained: %+v", d)
	}
	l.refused("POST", "/v1/drain", api.Drain{Limit: -1}, api.CodeValue, "limit_seconds")
}

// The relay's process ends if it offers that.
func TestStop(t *testing.T) {
	l := start(t)
	l.refused("POST", "/v1/stop", nil, api.CodeRefused, "", "stop the server itself")
	stopped := make(chan struct{}, 2)
	path := filepath.Join(t.TempDir(), "stop.sock")
	relay, err := load(t, &control.Server{Path: path, Stop: func() { stopped <- struct{}{} }}, runtime.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	c := checkedClient(t, path, relay.Desc())
	if err := c.Do(t.Context(), "POST", "/v1/stop", nil, nil); err != nil {
		t.Error(err)
	}
	<-stopped
	// The answer is whole before the relay ends, which may close the connection at once.
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST /v1/stop HTTP/1.1\r\nHost: relay\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || answer.StatusCode != http.StatusAccepted || answer.ContentLength != 0 {
		t.Errorf("%+v, %v; want status 202, and a length of 0 in its head", answer, err)
	}
	<-stopped
}

// While a long list is read, others open and close sessions and packets come: each session that is open all the time is
// in the list once. Whether the others wait is measured (BenchmarkRatios).
func TestLongLists(t *testing.T) {
	l := start(t)
	const count = 2500 // in twice as many slots, many more than are looked at under one lock
	var gaps []*runtime.AnySession
	for i := range 2 * count {
		if s := l.open(i); i%2 > 0 {
			gaps = append(gaps, s)
		}
	}
	for _, s := range gaps {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	listed := make(chan error, 1)
	go func() {
		all, err := api.All[api.Session](t.Context(), l.Client, "/v1/sessions/call")
		stayed := map[string]int{}
		for _, s := range all {
			if fmt.Sprint(s.Fields[2].Value) != fmt.Sprint(2*count) {
				stayed[s.ID]++
			}
		}
		for id, n := range stayed {
			if n != 1 {
				err = errors.Join(err, fmt.Errorf("session %s is listed %d times", id, n))
			}
		}
		if len(stayed) != count {
			err = errors.Join(err, fmt.Errorf("%d of %d sessions are listed", len(stayed), count))
		}
		listed <- err
	}()
	for {
		if err := l.open(2 * count).Close(); err != nil {
			t.Fatal(err)
		}
		l.emit(1)
		select {
		case err := <-listed:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}

// Metrics are on the socket, and on a port of their own, which has nothing else. A port that is taken is an error
// before anything is loaded.
func TestMetrics(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	path := filepath.Join(t.TempDir(), "lab.sock")
	taken := &control.Server{Path: path, Metrics: address}
	if _, err := load(t, taken, runtime.Options{}); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a port that is taken: %v", err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	free.Close()
	l := start(t, func(s *control.Server) { s.Metrics = address })
	dial := func(network, address string) *http.Client {
		c := &http.Client{Transport: &http.Transport{
			DialContext: func(context.Context, string, string) (c net.Conn, err error) {
				err = l.host.Do(func() (err error) { c, err = net.Dial(network, address); return err })
				return c, err
			},
		}}
		t.Cleanup(c.CloseIdleConnections)
		return c
	}
	port := dial("tcp", address)
	for name, from := range map[string]*http.Client{"socket": dial("unix", l.path), address: port} {
		res, err := from.Get("http://" + address + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		for _, want := range []string{
			"\nfastrelay_packets_total{", "\nfastrelay_build_info{version=", "\nprocess_cpu_seconds_total ",
			"\nprocess_open_fds ", "\nprocess_max_fds ", "\nprocess_resident_memory_bytes ", "\ngo_goroutines ",
			"\nprocess_start_time_seconds 1",
		} {
			if err != nil || !strings.Contains(string(text), want) {
				t.Errorf("%s: no %q: %v, %s", name, want, err, text)
			}
		}
	}
	for _, path := range []string{"/v1", "/", "/v1/stop"} {
		if res, err := port.Get("http://" + address + path); err != nil || res.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %v, %v", path, res, err)
		}
	}
	if err := l.relay.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := port.Get("http://" + address + "/metrics"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a relay that is closed: %v", err)
	}
}
