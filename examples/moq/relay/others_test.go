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

// others makes them.
func others(t *testing.T) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "../endpoints/build").CombinedOutput(); err != nil {
		t.Fatalf("../endpoints/build: %v\n%s", err, out)
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

// TestInterop runs the interop client of aiomoqt: each of its cases has to pass.
func TestInterop(t *testing.T) {
	others(t)
	r := start(t, nil)
	for transport, url := range urls(r) {
		t.Run(transport, func(t *testing.T) {
			passes := func(cases []string, args ...string) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				args = append(args, "-r", url, "--tls-disable-verify", "--draft", "22")
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
		})
	}
	if s := r.Stats(); s.FailedSessions > 0 {
		t.Errorf("%d sessions were closed for a violation", s.FailedSessions)
	}
}

// report are the lines of a subscriber's report that count.
var report = map[string]*regexp.Regexp{
	"objects":      regexp.MustCompile(`Objects: +([\d,]+)`),
	"lost":         regexp.MustCompile(`Lost: +([\d,]+)`),
	"out of order": regexp.MustCompile(`Out-of-order: +([\d,]+)`),
}

// TestBench has the load generators of aiomoqt publish and subscribe: by PUBLISH and by PUBLISH_NAMESPACE, on streams
// and, on QUIC, in datagrams. Nothing is lost.
func TestBench(t *testing.T) {
	others(t)
	r := start(t, nil)
	for transport, url := range urls(r) {
		for _, how := range []string{"publish", "namespace", "datagrams"} {
			if how == "datagrams" && transport == "webtransport" { // the publisher takes them on QUIC alone
				continue
			}
			t.Run(transport+"/"+how, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				common := []string{url, "-k", "--draft", "22", "-N", transport + how, "-T", "track"}
				args := append(common[:len(common):len(common)], "-s", "1000", "-r", "200", "-g", "50", "-t", "5")
				switch how {
				case "namespace":
					args = append(args, "--pub-ns")
				case "datagrams":
					args = append(args, "--pub-ns", "-D")
				}
				publisher := exec.CommandContext(ctx, made+"moq-pub-bench", args...)
				var published bytes.Buffer
				publisher.Stdout, publisher.Stderr = &published, &published
				if err := publisher.Start(); err != nil {
					t.Fatal(err)
				}
				until(t, "the publisher is there", func() bool { return r.hasPublisher(transport + how) })
				subscriber := exec.CommandContext(ctx, made+"moq-sub-bench", append(common, "-t", "3")...)
				out, err := subscriber.CombinedOutput()
				if err := publisher.Wait(); err != nil {
					t.Errorf("the publisher: %v\n%s", err, published.Bytes())
				}
				if err != nil {
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
				if got["objects"] < 300 || got["lost"] > 0 || got["out of order"] > 0 {
					t.Errorf("%v\n%s", got, out)
				}
			})
		}
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
