package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image/png"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/browser"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// The page of a relay, in a browser: numbers are those of the kernel's counters, a click on a reason plots it, and
// nothing can be changed.
func TestPage(t *testing.T) {
	needs.All(t)
	needs.Root(t)
	n, err := testnet.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	l, err := n.Line()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	url := runWithPage(ctx, t, l.Relay, "../../examples/turn/spec.cue", "--attach", "to_peer=eth0",
		"--attach", "to_client=eth1", "--session",
		"channel=client=192.0.2.2:40001 server=192.0.2.1:3478 number=0x4001 relayed=203.0.113.1:50000 "+
			"peer=203.0.113.2:7000")
	b, err := browser.Start(ctx, l.Relay, url)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()

	// 7 packets of the session, and 3 of a channel that isn't there.
	for i := range 10 {
		number := byte(1)
		if i >= 7 {
			number = 2
		}
		send(t, l.Client, []byte{0x40, number, 0, 4, 'd', 'a', 't', 'a'})
	}
	eval := func(expression string) (text string) {
		if err := b.Evaluate(expression, &text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	textOf := func(selector string) string {
		return eval(fmt.Sprintf("document.querySelector(%q)?.textContent ?? ''", selector))
	}
	shown := func(reason string) string { return textOf("#counters [data-reason=" + reason + "] td:nth-child(5)") }
	await(t, "the counters", func() bool { return shown("sent") == "7" && shown("no_by_channel") == "3" })
	// Packets of the hosts' own may come at any time: what the page shows is what the kernel counted before, or after.
	before := countedBy(ctx, t, l.Relay, url)
	for _, r := range before {
		number := uint64(0)
		await(t, r.Name+" on the page", func() bool {
			number, _ = strconv.ParseUint(strings.ReplaceAll(shown(r.Name), ",", ""), 10, 64) // 0 isn't shown
			return number >= r.Packets
		})
		after := countedBy(ctx, t, l.Relay, url)
		i := slices.IndexFunc(after, func(a api.Reason) bool { return a.Name == r.Name })
		if number > after[i].Packets {
			t.Errorf("%s: the page shows %d, and the kernel counted %d", r.Name, number, after[i].Packets)
		}
	}
	like := func(selector, pattern string) bool {
		return regexp.MustCompile(pattern).MatchString(textOf(selector))
	}
	await(t, "the session", func() bool {
		return like("#open", `channel: 1 open of at most 4,096.*client 192\.0\.2\.2:40001.*7 \+ 0`)
	})

	// Packets that come all the time have a rate, in the decision as well.
	traffic, end := context.WithCancel(ctx)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for traffic.Err() == nil {
			send(t, l.Client, []byte{0x40, 2, 0, 4, 'd', 'a', 't', 'a'})
			select {
			case <-traffic.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	const decision = ".decision:not([hidden]) "
	const chip = decision + ".exit[data-reason=no_by_channel]"
	await(t, "a rate", func() bool { return like(chip+" .rate", `^\d`) })
	await(t, "the rate of the first step", func() bool { return like(decision+".flow", `^\d+(\.\d)?/s$`) })
	if err := b.Click(chip); err != nil {
		t.Fatal(err)
	}
	if got, want := textOf("#shown"), "to_peer: no_by_channel, packets a second"; got != want {
		t.Errorf("after a click, the plot has %q, want %q", got, want)
	}
	if !like("#legend", `^no_by_channel \d`) {
		t.Errorf("after a click, the legend has %q", textOf("#legend"))
	}
	if err := b.Click(`button[data-program="to_client"]`); err != nil {
		t.Fatal(err)
	}
	if got, want := textOf("#shown"), "to_client, packets a second"; got != want {
		t.Errorf("the other program: the plot has %q, want %q", got, want)
	}
	end()
	<-sent
	shot, err := b.Screenshot(1000, 1400)
	if err != nil {
		t.Fatal(err)
	}
	if img, err := png.Decode(bytes.NewReader(shot)); err != nil || img.Bounds().Dx() != 1000 {
		t.Errorf("%v, %d bytes", err, len(shot))
	}

	// Nothing can be changed, and no other name leads here.
	for _, c := range []struct {
		method, path, host string
		want               int
	}{{"POST", "v1/stop", "", 405}, {"DELETE", "v1/sessions/channel/0-1", "", 405}, {"GET", "v1/events", "", 404},
		{"GET", "v1", "relay.example", 421}} {
		r, err := http.NewRequestWithContext(ctx, c.method, url+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = c.host
		answer := ask(t, l.Relay, r)
		answer.Body.Close()
		if answer.StatusCode != c.want {
			t.Errorf("%s %s: %s", c.method, c.path, answer.Status)
		}
	}
}

// Slow clients of the page, however many, leave the relay the descriptors that it needs for others.
func TestSlowClients(t *testing.T) {
	needs.Root(t)
	host, err := testnet.Start(t).Host("relay")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	socket := filepath.Join(t.TempDir(), "paths.sock")
	url := runWithPage(ctx, t, host, "../../examples/paths/spec.cue", "--attach", "forward=lo", "--control", socket)
	control := func() (relay api.Relay) {
		c := api.NewClient(socket) // with a connection of its own
		defer c.Close()
		if err := c.Get(ctx, "/v1", &relay); err != nil {
			t.Fatal(err)
		}
		return relay
	}
	pid := control().PID
	files := func() int {
		all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := files()
	var slow []net.Conn
	if err := host.Do(func() error {
		for range 400 {
			c, err := net.Dial("tcp", strings.Trim(strings.TrimPrefix(url, "http:"), "/"))
			if err != nil {
				return err
			}
			slow = append(slow, c)
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\nX-A: "); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	const limit, others = 256 / 4, 32
	await(t, "it serves as many as it can", func() bool { return connections(t, pid) >= limit })
	for range 50 {
		if got := control().PID; got != pid {
			t.Fatalf("process %d answers, not %d", got, pid)
		}
		if n := files(); n > before+limit+others {
			t.Fatalf("it has %d descriptors, and had %d", n, before)
		}
	}
	for _, c := range slow {
		c.Close()
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if answer := ask(t, host, r); answer.StatusCode != http.StatusOK {
		t.Errorf("the page answers %s", answer.Status)
	}
}

// connections counts the TCP connections that a process has accepted and not closed.
func connections(t *testing.T, pid int) (n int) {
	t.Helper()
	inodes := map[string]bool{}
	for _, name := range []string{"tcp", "tcp6"} {
		table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(table)) {
			if f := strings.Fields(line); len(f) > 9 && (f[3] == "01" || f[3] == "08") { // ESTABLISHED, CLOSE_WAIT
				inodes["socket:["+f[9]+"]"] = true
			}
		}
	}
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range all {
		if is, err := os.Readlink(dir + fd.Name()); err == nil && inodes[is] { // else it is closed by now
			n++
		}
	}
	return n
}

// runWithPage starts `run` with a page on a host, and returns the page's address.
func runWithPage(ctx context.Context, t *testing.T, host *testnet.Host, args ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The test's own program is the command line if it is called by that name.
	command := append([]string{"-a", "fastrelay-gen", self, "run", "--http", "127.0.0.1:0"}, args...)
	cmd := host.Command(ctx, "bash", append([]string{"-c", `ulimit -n 256; exec "$@"`, "bash"}, command...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	messages, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := testnet.StartChild(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	var said bytes.Buffer
	for lines := bufio.NewScanner(messages); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if m := regexp.MustCompile(`page about it at (\S+)`).FindStringSubmatch(lines.Text()); m != nil {
			go func() { _, _ = io.Copy(io.Discard, messages) }()
			return m[1]
		}
	}
	t.Fatalf("run has ended: %s", &said)
	return ""
}

func send(t *testing.T, host *testnet.Host, payload []byte) {
	if err := host.Do(func() error {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.2:40001")),
			net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:3478")))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(payload)
		return err
	}); err != nil {
		t.Error(err)
	}
}

// ask sends a request from a host.
func ask(t *testing.T, host *testnet.Host, r *http.Request) *http.Response {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network,
		address string) (c net.Conn, err error) {
		return c, host.Do(func() error {
			c, err = new(net.Dialer).DialContext(ctx, network, address)
			return err
		})
	}}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// countedBy returns the counts of a relay's first program.
func countedBy(ctx context.Context, t *testing.T, relay *testnet.Host, url string) []api.Reason {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"v1/programs", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer := ask(t, relay, r)
	defer answer.Body.Close()
	var programs api.Programs
	if err := json.NewDecoder(answer.Body).Decode(&programs); err != nil {
		t.Fatal(err)
	}
	return programs.Items[0].Reasons
}

func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	if err := testnet.Until(30*time.Second, what, cond); err != nil {
		t.Fatal(err)
	}
}
