package runtime

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childMode makes the test binary play a process of its own, which can be killed.
const childMode = "FASTRELAY_RUNTIME_CHILD"

// child is a process that serves a relay. It says what it has done on its output, a line at a time, and ends when its
// input does.
func child(mode string) int {
	object, err := compileOrGiven()
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	opt := quiet(Options{
		PinPath: os.Getenv("PINS"), routes: func(from, to netip.Addr) Hop {
			return Hop{State: HopNeighbour, Ifindex: 1, MTU: 1500}
		},
	})
	opt.Clsact = os.Getenv("CLSACT") != ""
	if mode == "fan" {
		return changeForever(object, opt)
	}
	if mode == "many" {
		return serveMany(object, opt)
	}
	if mode == "adopt" {
		return adoptForever(object, opt)
	}
	r, err := Load(flowDesc(), object, opt)
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	if dev := os.Getenv("DEV"); dev != "" {
		if err := r.Program("fwd").Attach(dev); err != nil {
			fmt.Println("error:", err)
			return 1
		}
	}
	switch mode {
	case "unprivileged":
		fmt.Println("loaded")
	case "serve":
		for n := range 3 {
			if _, err := r.Open("flow", flow(n)...); err != nil {
				fmt.Println("error:", err)
				return 1
			}
		}
		fmt.Println("ready")
		io.Copy(io.Discard, os.Stdin)
	case "churn":
		// Opens and closes as fast as it can, until it is killed.
		fmt.Println("ready")
		for n := 0; ; n++ {
			s, err := r.Open("flow", flow(n%7)...)
			var collision *CollisionError
			switch {
			case errors.As(err, &collision):
				collision.Other.Close()
			case err != nil:
				fmt.Fprintln(os.Stderr, "error:", err)
				return 1
			case n%3 == 0:
				s.Close()
			}
			r.Table("sources").Put([]any{netip.AddrFrom4([4]byte{10, 0, 0, byte(n % 3)})}, []any{n, nil})
			if n%5 == 0 {
				r.Table("sources").Delete(netip.AddrFrom4([4]byte{10, 0, 0, byte(n % 3)}))
			}
		}
	}
	return 0
}

// changeForever changes a group until it is killed, always so that all receivers have one value.
func changeForever(object []byte, opt Options) int {
	opt.routes = direct
	r, err := Load(groupsDesc(), object, opt)
	if err == nil {
		_, err = r.GroupKind("subs").Open(bg, 7)
	}
	fmt.Println("ready")
	for n := 1; err == nil; n++ {
		g := must(r.GroupKind("subs").Get(7))
		err = g.Change(bg, func(c *AnyChange) error {
			all := g.Receivers()
			if len(all) > 20 {
				c.Remove(all[n%20])
				all = slices.Delete(all, n%20, n%20+1)
			}
			for _, v := range all {
				if err := c.Set(v, subscriber(n, n)...); err != nil {
					return err
				}
			}
			for range 3 {
				v, err := c.Add(subscriber(n, n)...)
				if err != nil {
					return err
				}
				if len(all) > 40 {
					c.Remove(v)
				}
				v.State(0).(*Counter).Store(uint64(v.ID()))
				v.State(1).([]*Credit)[1].SetLimit(uint64(v.ID()))
				if _, _, err := v.State(3).(*Translation).Put(1, uint64(v.ID())); err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil && n%5 == 0 {
			if g, err = r.GroupKind("subs").Open(bg, 8); err == nil {
				err = g.Close(bg)
			}
		}
	}
	fmt.Fprintln(os.Stderr, "error:", err)
	return 1
}

// serveMany loads or adopts a relay with many sessions, and serves it until its input ends; then it closes it.
func serveMany(object []byte, opt Options) int {
	began := time.Now()
	// If none may be lost, a machine that stands still for seconds mustn't let the lease lapse.
	opt.routes, opt.Lease, opt.Linger = nil, time.Minute, time.Minute
	r, err := Load(manyDesc(), object, opt)
	if err == nil {
		err = r.Program("fwd").Attach(os.Getenv("DEV"))
	}
	if err == nil && r.OpenSessions("flow") == 0 {
		for n := 0; err == nil && n < manyFlows; n++ {
			_, err = r.Open("flow", manyFlow(n)...)
		}
	}
	if err == nil && r.OpenSessions("flow") != manyFlows {
		err = fmt.Errorf("%d sessions", r.OpenSessions("flow"))
	}
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	fmt.Println("ready", time.Since(began).Microseconds())
	io.Copy(io.Discard, os.Stdin)
	if err := r.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}

// adoptForever takes the relay over from itself, again and again, until it is killed.
func adoptForever(object []byte, opt Options) int {
	opt.Linger = time.Minute
	for n := 0; ; n++ {
		r, err := Load(flowDesc(), object, opt)
		if err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			return 1
		}
		if err := r.Program("fwd").Attach(os.Getenv("DEV")); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			return 1
		}
		if n == 0 {
			fmt.Println("ready")
		}
		if err := r.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			return 1
		}
	}
}

func compileOrGiven() ([]byte, error) { return os.ReadFile(os.Getenv("OBJECT")) }

func childCommand(t testing.TB, mode string, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := t.TempDir() + "/flow.o"
	object := build(t)
	switch mode {
	case "fan":
		object = buildFile(t, "fan")
	case "many":
		object = build(t, manyDefines...)
	}
	if err := os.WriteFile(file, object, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), childMode+"="+mode, "OBJECT="+file), env...)
	return cmd
}

// runChild runs a child to its end, without any rights, and returns what it said.
func runChild(t *testing.T, mode string) string {
	t.Helper()
	cmd := childCommand(t, mode)
	// The file must be within reach of another user.
	dir, err := os.MkdirTemp("/dev/shm", "flow")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"flow.o": 0o644, "test": 0o755} {
		from := cmd.Path
		if name == "flow.o" {
			from = strings.TrimPrefix(cmd.Env[len(cmd.Env)-1], "OBJECT=")
		}
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/"+name, b, mode); err != nil {
			t.Fatal(err)
		}
	}
	cmd.Path = dir + "/test"
	cmd.Env[len(cmd.Env)-1] = "OBJECT=" + dir + "/flow.o"
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, _ := cmd.CombinedOutput()
	return string(out)
}

// startChild starts a child and waits until it is ready.
func startChild(t testing.TB, mode string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := childCommand(t, mode, env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	said := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		said <- line
	}()
	if line := receive(t, "the child is ready", said); line != "ready\n" {
		t.Fatalf("the child said %q", line)
	}
	return cmd
}

// kill ends a child as a crash would.
func kill(t testing.TB, cmd *exec.Cmd) time.Time {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	return time.Now()
}
