package runtime

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// logText is what a relay has logged.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// logger writes lines without a time.
func (l *logText) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// says waits until lines have come that match patterns, in this order, and forgets them.
func (l *logText) says(t *testing.T, patterns ...string) {
	t.Helper()
	all := regexp.MustCompile("(?s)" + strings.Join(patterns, "\n.*"))
	if err := testnet.Until(10*time.Second, strings.Join(patterns, "; "), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return all.Match(l.text.Bytes())
	}); err != nil {
		t.Errorf("%v", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.Failed() {
		t.Log(l.text.String())
	}
	l.text.Reset()
}

// Each change of a relay's state is logged once.
func TestLog(t *testing.T) {
	b := newBench(t)
	log := new(logText)
	var down atomic.Bool
	pins := "/sys/fs/bpf/" + pinName(t)
	opt := Options{
		PinPath: pins, Linger: time.Minute, Lease: 2 * time.Second, Logger: log.logger(),
		routes: func(from, to netip.Addr) Hop {
			if down.Load() {
				return Hop{State: HopUnreachable}
			}
			return Hop{State: HopDirect, Ifindex: 1, MTU: 1500}
		},
	}
	r := b.load(t, opt)
	log.says(t, `level=INFO msg="a relay is loaded" relay=flow pinned=`+pins+` lease=2s`)
	if err := r.Program("fwd").Attach("in0"); err != nil {
		t.Fatal(err)
	}
	log.says(t, `level=INFO msg="a program is attached" relay=flow program=fwd interface=in0 how=tcx`)
	open(t, r, 1)
	for range 2 { // the second time nothing changes
		down.Store(true)
		if err := r.RefreshRoutes(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	down.Store(false)
	if err := r.RefreshRoutes(t.Context()); err != nil {
		t.Fatal(err)
	}
	log.says(t, `^(level=WARN msg="a next hop is lost" relay=flow to=[0-9.]+ state=unreachable rows=1\n){2}`+
		`(level=INFO msg="a next hop is found again" relay=flow to=[0-9.]+ rows=1\n){2}$`)
	r.leaseMu.Lock() // the process is stopped for a while
	until(t, 10*time.Second, "the lease lapses", func() bool {
		return r.lease.Load64(0, abi.LeaseDeadline)+r.clock.hz/10 < r.clock.now()
	})
	r.leaseMu.Unlock()
	log.says(t, `level=WARN msg="the lease had lapsed, and is regained" relay=flow after=[0-9.]+m?s\n$`)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	log.says(t, `level=INFO msg="a relay is left to a successor" relay=flow for=1m0s`)
	opt.Linger = 0
	r = b.load(t, opt)
	log.says(t, `level=INFO msg="a relay is adopted" relay=flow .* attachments=1 sessions=1 receivers=0`)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_ = r.Drain(over)
	for s := range r.Sessions() {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	r.EndDrain()
	log.says(t, `msg="a relay is being drained" relay=flow sessions=1 receivers=0`,
		`msg="a relay is drained" relay=flow`,
		`msg="a relay takes new sessions again" relay=flow`)
	if err := r.Program("fwd").Detach("in0"); err != nil {
		t.Fatal(err)
	}
	log.says(t, `level=INFO msg="a program is detached" relay=flow program=fwd interface=in0`)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	log.says(t, `level=INFO msg="a relay is closed" relay=flow\n$`)
}

// If thousands of next hops are lost at once, few lines say so.
func TestLogManyHops(t *testing.T) {
	log := new(logText)
	r := load(t, Options{Logger: log.logger()})
	log.says(t, `msg="a relay is loaded"`)
	r.hops.say(make([]NextHop, 1000))
	log.says(t, `^(level=WARN msg="a next hop is lost"[^\n]*\n){8}`+
		`level=WARN msg="more next hops are lost or found" relay=flow count=992\n$`)
}
