package others

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// patience is how long a program may say nothing: it only ends what would never end.
const patience = 5 * time.Minute

// A command makes a command: exec.CommandContext, or that of a host.
type command func(ctx context.Context, name string, args ...string) *exec.Cmd

// A peer is a publisher or a subscriber of another implementation, in a process of its own: endpoints/peer/src/main.rs
// says what it is told, and what it prints.
type peer struct {
	t     *testing.T
	name  string
	cmd   *exec.Cmd
	input io.WriteCloser
	lines chan string // closed at the end of its output
	said  bytes.Buffer
}

// A client is how a peer connects, and to which program it belongs.
type client struct {
	program, draft string
	http           bool
}

func (c client) String() string {
	transport := "QUIC"
	if c.http {
		transport = "WebTransport"
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", c.program, c.draft, transport))
}

// url is that of a relay at an address.
func (c client) url(at netip.AddrPort) string {
	if c.http {
		return fmt.Sprintf("https://%v/", at)
	}
	return fmt.Sprintf("moqt://%v", at)
}

// start starts a peer of a relay at an address.
func (c client) start(t *testing.T, run command, at netip.AddrPort, args ...string) *peer {
	t.Helper()
	args = append([]string{c.url(at), c.draft}, args...)
	name := must(Path("peer", "release", "moqtap-peer"))
	if c.program == "aiomoqt" {
		name = must(Path("python", "bin", "python"))
		args = append([]string{"../endpoints/aiomoqt_peer.py"}, args...)
	}
	p := &peer{t: t, name: fmt.Sprint(c, " ", args), cmd: run(t.Context(), name, args...)}
	p.lines = make(chan string, 1<<16)
	p.cmd.Stderr = &p.said
	out := must(p.cmd.StdoutPipe())
	p.input = must(p.cmd.StdinPipe())
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-read
		_ = p.cmd.Wait() // killed
		if t.Failed() && p.said.Len() > 0 {
			t.Logf("%s:\n%s", p.name, p.said.Bytes())
		}
	})
	return p
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// next returns the next line.
func (p *peer) next() string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.t.Fatalf("%s has ended", p.name)
		}
		return line
	case <-time.After(patience):
		p.t.Fatalf("%s says nothing", p.name)
	}
	return ""
}

// says expects a line that begins with some text, and returns it.
func (p *peer) says(text string) string {
	p.t.Helper()
	line := p.next()
	if !strings.HasPrefix(line, text) {
		p.t.Fatalf("%s says %q instead of %q", p.name, line, text)
	}
	return line
}

// objects returns the next lines, sorted, which have to be objects.
func (p *peer) objects(count int) []string {
	p.t.Helper()
	all := make([]string, count)
	for i := range all {
		all[i] = p.next()
		if strings.Count(all[i], " ") != 3 || all[i][0] < '0' || all[i][0] > '9' {
			p.t.Fatalf("%s says %q instead of the %d. object of %d", p.name, all[i], i+1, count)
		}
	}
	slices.Sort(all)
	return all
}

// gets expects that the next lines are these objects.
func (p *peer) gets(want []string) {
	p.t.Helper()
	want = slices.Sorted(slices.Values(want))
	if got := p.objects(len(want)); !slices.Equal(got, want) {
		p.t.Errorf("%s got\n%s\ninstead of\n%s", p.name, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// sends has a publisher send groups, one after the other, and returns their objects.
func (p *peer) sends(groups, objects, size int) (all []string) {
	p.t.Helper()
	for range groups {
		p.tell(fmt.Sprint(objects, " ", size))
		all = append(all, p.objects(objects)...)
	}
	return all
}

func (p *peer) tell(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.input, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// publishes starts a publisher of a track called like its namespace, whose first group has a number.
func (c client) publishes(t *testing.T, run command, at netip.AddrPort, track string, first int) *peer {
	t.Helper()
	p := c.start(t, run, at, "publish", track, track, strconv.Itoa(first))
	p.says("ok")
	return p
}

// subscribes starts a subscriber of some objects, which gets PUBLISH_DONE after them.
func (c client) subscribes(
	t *testing.T, run command, at netip.AddrPort, track string, count int, filters ...string,
) *peer {
	t.Helper()
	args := append([]string{"subscribe", track, track, strconv.Itoa(count)}, filters...)
	p := c.start(t, run, at, args...)
	p.says("ok")
	return p
}
