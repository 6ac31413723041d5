package testlink

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"

	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Link is a link between two hosts.
type Link struct {
	A, B *testnet.Dev // the devices of the two hosts, up and without addresses

	cmd      *exec.Cmd
	requests io.WriteCloser
	replies  *bufio.Reader
	messages bytes.Buffer // what the process printed, read when it has ended

	mu     sync.Mutex
	closed bool
	last   Stats
	err    error
}

// Stats are the counters of both directions.
type Stats struct{ FromA, FromB Counters }

// Counters count the frames of one direction. They add up:
//
//	Received + Duplicated = Lost + LostInBursts + Sent + Refused + Waiting
type Counters struct {
	Received     uint64
	Other        uint64 // of those received: not unicast IP, so only delayed
	GSO          uint64 // of those received: several datagrams in one packet
	Lost         uint64
	LostInBursts uint64
	Duplicated   uint64
	Reordered    uint64
	Alone        uint64 // frames that were held back and left before enough packets had come to overtake them
	Sent         uint64
	Refused      uint64 // by the queue of the rate, or by a device that is down
	Waiting      uint64 // at the moment of asking
	Late         uint64 // of those sent: more than 0.5 ms after their time
	Overrun      uint64 // never received: the link didn't get the processor in time
}

func (c Counters) String() string {
	return fmt.Sprintf("%d received, %d lost and %d in bursts, %d duplicated, %d reordered, %d sent, %d refused, "+
		"%d waiting", c.Received, c.Lost, c.LostInBursts, c.Duplicated, c.Reordered, c.Sent, c.Refused, c.Waiting)
}

// Join connects two hosts by a link. The program has to call Main first of all.
func Join(n *testnet.Net, a *testnet.Host, aName string, b *testnet.Host, bName string, c Config) (*Link, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	host, err := n.Host("link-" + a.Name + "-" + aName)
	if err != nil {
		return nil, err
	}
	// The link's own host says nothing.
	err = errors.Join(host.Sysctl("net/ipv6/conf/all/disable_ipv6", "1"),
		host.Sysctl("net/ipv6/conf/default/disable_ipv6", "1"))
	if err != nil {
		return nil, err
	}
	l := &Link{}
	var toA, toB *testnet.Dev
	if l.A, toA, err = n.Join(a, aName, host, "a"); err != nil {
		return nil, err
	}
	if toB, l.B, err = n.Join(host, "b", b, bName); err != nil {
		return nil, err
	}
	for _, end := range []struct {
		host, link *testnet.Dev
		to         Direction
	}{{l.A, toA, c.FromB}, {l.B, toB, c.FromA}} {
		const longest = 65535 // the MTU of the link is that of its ends
		err = errors.Join(offloads.Segmentation(end.host, false), end.link.SetMTU(longest), limit(end.link, end.to))
		if err != nil {
			return nil, err
		}
	}
	if err := l.start(toA, toB, c); err != nil {
		return nil, err
	}
	return l, nil
}

func limit(d *testnet.Dev, to Direction) error {
	if to.Rate == 0 {
		return nil
	}
	queue := to.Queue
	if queue == 0 {
		queue = max(to.Rate/8/20, 15_000)
	}
	return d.SetRate(to.Rate, queue)
}

func (l *Link) start(toA, toB *testnet.Dev, c Config) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	config, err := json.Marshal(c)
	if err != nil {
		return err
	}
	l.cmd = exec.Command(self)
	l.cmd.Env = append(os.Environ(), role+"="+string(config),
		// With the race detector, the process would wait for a second when it has ended.
		"GODEBUG=asyncpreemptoff=1", "GORACE=atexit_sleep_ms=0")
	l.cmd.Stderr = &l.messages
	for _, d := range []*testnet.Dev{toA, toB} {
		fd, err := listen(d)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), d.Name)
		defer f.Close()
		l.cmd.ExtraFiles = append(l.cmd.ExtraFiles, f)
	}
	if l.requests, err = l.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	l.replies = bufio.NewReader(out)
	if err := testnet.StartChild(l.cmd); err != nil {
		return err
	}
	if _, err := l.Stats(); err != nil {
		return l.Close()
	}
	return nil
}

// Stats returns the counters, after Close those of its end.
func (l *Link) Stats() (Stats, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return l.last, l.err
	}
	if _, err := l.requests.Write([]byte{'?'}); err != nil {
		return Stats{}, fmt.Errorf("testlink: the link's process has ended: %w", err)
	}
	return l.reply()
}

func (l *Link) reply() (Stats, error) {
	line, err := l.replies.ReadBytes('\n')
	if err != nil {
		return Stats{}, fmt.Errorf("testlink: the link's process has ended: %w", err)
	}
	var s Stats
	return s, json.Unmarshal(line, &s)
}

// Close ends the link; frames on their way are lost. Its error says whether the link did all that it should: it fails
// if frames were lost that no fate concerned. It may be called twice.
func (l *Link) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return l.err
	}
	l.closed = true
	l.err = l.requests.Close()
	var err error
	if l.last, err = l.reply(); err != nil {
		l.err = errors.Join(l.err, err)
	}
	if err := l.cmd.Wait(); err != nil {
		l.err = errors.Join(l.err, fmt.Errorf("testlink: %w: %s", err, strings.TrimSpace(l.messages.String())))
	}
	if n := l.last.FromA.Overrun + l.last.FromB.Overrun; n > 0 {
		l.err = errors.Join(l.err, fmt.Errorf("testlink: %d frames came faster than the link could take them", n))
	}
	return l.err
}

// Start joins two hosts for a test, and closes the link when the test ends.
func Start(
	t testnet.TB, n *testnet.Net, a *testnet.Host, aName string, b *testnet.Host, bName string, c Config,
) *Link {
	t.Helper()
	l, err := Join(n, a, aName, b, bName, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("%v", err)
		}
	})
	return l
}
