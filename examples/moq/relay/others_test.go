package relay

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// made is where ../endpoints/build makes programs of other implementations.
const made = "../../../.cache/moq/python/bin/"

// others makes those of aiomoqt, or what is named.
func others(t *testing.T, what ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "../endpoints/build", what...).CombinedOutput(); err != nil {
		t.Fatalf("../endpoints/build %v: %v\n%s", what, err, out)
	}
}

// urls are the relay's, of both transports.
func urls(r *Relay) map[string]string {
	return map[string]string{
		"quic": fmt.Sprintf("moqt://%v", r.Addr()), "webtransport": fmt.Sprintf("https://%v/", r.Addr()),
	}
}

// cases are those of moq-interop-client that it runs unasked.
var cases = []string{
	"setup-only", "announce-only", "publish-namespace-done", "subscribe-error", "rendezvous-timeout",
	"announce-subscribe", "subscribe-before-announce", "data-subgroup-basic", "subscribe-namespace-lifecycle",
	"namespace-discovery", "publish-track-only", "publish-track-subscribe",
}

// more are those that it runs if asked.
var more = []string{"fetch", "join"}

// TestInterop runs the interop client of aiomoqt, in both drafts: each of its cases has to pass.
func TestInterop(t *testing.T) {
	others(t)
	r := start(t, nil)
	for transport, url := range urls(r) {
		for _, draft := range []string{"18", "22"} {
			t.Run(transport+"/"+draft, func(t *testing.T) { interop(t, url, draft) })
		}
	}
	if s := r.Stats(); s.FailedSessions > 0 {
		t.Errorf("%d sessions were closed for a violation", s.FailedSessions)
	}
}

func interop(t *testing.T, url, draft string) {
	passes := func(cases []string, args ...string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		args = append(args, "-r", url, "--tls-disable-verify", "--draft", draft)
		out, err := exec.CommandContext(ctx, made+"moq-interop-client", args...).CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		for i, name := range cases {
			t.Run(name, func(t *testing.T) {
				if !strings.Contains(string(out), fmt.Sprintf("\nok %d - %s\n", i+1, name)) {
					t.Errorf("it didn't pass:\n%s", out)
				}
			})
		}
	}
	passes(cases)
	for _, name := range more {
		passes([]string{name}, "-t", name)
	}
}

// report are the lines of a subscriber's report that count.
var report = map[string]*regexp.Regexp{
	"objects":      regexp.MustCompile(`Objects: +([\d,]+)`),
	"lost":         regexp.MustCompile(`Lost: +([\d,]+)`),
	"out of order": regexp.MustCompile(`Out-of-order: +([\d,]+)`),
}

// TestBench has the load generators of aiomoqt publish and subscribe: by PUBLISH and by PUBLISH_NAMESPACE, on streams
// and in datagrams, in one draft or each in another. Nothing is lost.
func TestBench(t *testing.T) {
	others(t)
	r := start(t, nil)
	bench(t, func(int) (from, to *Relay) { return r, r })
}

// TestTreeBench has them do so across three relays, in either direction.
func TestTreeBench(t *testing.T) {
	others(t)
	relays := chain(t, options{})
	bench(t, func(i int) (from, to *Relay) {
		if i%2 == 0 {
			return relays[0], relays[2]
		}
		return relays[2], relays[0]
	})
}

// bench runs them: for each case, on a publisher's relay and a subscriber's.
func bench(t *testing.T, on func(i int) (from, to *Relay)) {
	t.Helper()
	for i, tt := range []struct {
		from, to   string // transports
		publisher  string // its draft
		subscriber string
		how        []string
	}{
		{"quic", "quic", "22", "22", nil},
		{"quic", "webtransport", "22", "18", []string{"--pub-ns"}},
		{"webtransport", "quic", "18", "22", nil},
		{"webtransport", "webtransport", "18", "18", []string{"--pub-ns"}},
		{"quic", "webtransport", "18", "22", []string{"--pub-ns", "-D"}}, // the publisher has datagrams on QUIC alone
	} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			namespace := fmt.Sprintf("run%d", i)
			from, to := on(i)
			program := func(r *Relay, name, transport, draft string, args ...string) *exec.Cmd {
				args = append(args, urls(r)[transport], "-k", "--draft", draft, "-N", namespace, "-T", "track")
				return exec.CommandContext(ctx, made+name, args...)
			}
			publisher := program(from, "moq-pub-bench", tt.from, tt.publisher,
				append(tt.how, "-s", "1000", "-r", "200", "-g", "50", "-t", "600")...) // longer than its subscriber
			var published bytes.Buffer
			publisher.Stdout, publisher.Stderr = &published, &published
			if err := publisher.Start(); err != nil {
				t.Fatal(err)
			}
			until(t, "the publisher is there", func() bool { return from.hasPublisher(namespace) })
			if from.upstreams != nil { // what is published below is announced above
				until(t, "it is known above", func() bool { return to.hasPublisher(namespace) })
			}
			out, err := program(to, "moq-sub-bench", tt.to, tt.subscriber, "-t", "3").CombinedOutput()
			_ = publisher.Process.Kill()
			_ = publisher.Wait() // killed
			if err != nil {
				t.Logf("the publisher:\n%s", published.Bytes())
				t.Fatalf("%v\n%s", err, out)
			}
			got := map[string]int{}
			for name, line := range report {
				m := line.FindSubmatch(out)
				if m == nil {
					t.Fatalf("no line %v in\n%s", line, out)
				}
				got[name], _ = strconv.Atoi(strings.ReplaceAll(string(m[1]), ",", ""))
			}
			if got["objects"] == 0 || got["lost"] > 0 || got["out of order"] > 0 {
				t.Errorf("%v\n%s", got, out)
			}
		})
	}
}

// hasPublisher reports whether a session publishes a namespace of one field, or a track in it.
func (r *Relay) hasPublisher(namespace string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.namespaces[namespaceKey{"/", namespace}] != nil {
		return true
	}
	for key, t := range r.tracks {
		if strings.HasPrefix(key.name, namespace+"--") && t.users > 0 {
			return true
		}
	}
	return false
}
