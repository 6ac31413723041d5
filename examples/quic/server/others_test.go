package server

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// made is where ../endpoints/build makes them.
const made = "../../../.cache/quic/"

// An other is a subscriber of another implementation, in a process of its own (../endpoints).
type other struct {
	name, protection string
	command          []string
	lines            *bufio.Scanner
	process          *exec.Cmd
	input            io.Closer
	acks, asked      int // of quinn, at the end: ACK frames that it has sent, and requests for ACKs that it got
}

func others() []*other {
	python, quinn := made+"python/bin/python", made+"quinn/release/quinn-subscriber"
	aioquic := func(protection string) *other {
		return &other{name: "aioquic", protection: protection, command: []string{
			python, "../endpoints/aioquic_subscriber.py", address.Addr().String(), strconv.Itoa(int(address.Port())),
		}}
	}
	return []*other{
		aioquic("null"), {name: "quinn", protection: "null", command: []string{quinn, address.String()}},
		aioquic("stock"), {name: "quinn", protection: "stock", command: []string{quinn, address.String()}},
	}
}

// start has it subscribe.
func (o *other) start(b *bed, streams int) {
	b.Helper()
	args := append(o.command[1:], "cam", o.protection, strconv.Itoa(streams))
	o.process = exec.CommandContext(b.ctx, o.command[0], args...)
	o.process.Stderr = b.Output()
	out, err := o.process.StdoutPipe()
	b.check(err)
	o.input, err = o.process.StdinPipe()
	b.check(err)
	o.lines = bufio.NewScanner(out)
	b.check(b.users.Do(o.process.Start))
	b.Cleanup(func() { _ = o.process.Process.Kill() })
	want := map[string]string{"null": "ok null", "stock": "ok protected"}[o.protection]
	if !o.lines.Scan() || o.lines.Text() != want {
		b.Fatalf("%s: %q, %v: want %q", o, o.lines.Text(), o.lines.Err(), want)
	}
}

// next returns the next line that it prints.
func (o *other) next() string {
	o.lines.Scan()
	return o.lines.Text()
}

func (o *other) String() string { return o.name + ", " + o.protection }

// check reads what it got.
func (o *other) check(b *bed, want map[string]bool) {
	b.Helper()
	got := map[string]bool{}
	for len(got) < len(want) && o.lines.Scan() {
		hash, ok := strings.CutPrefix(o.lines.Text(), "stream ")
		if !ok || !want[hash] || got[hash] {
			b.Errorf("%s: %s", o, o.lines.Text())
		}
		got[hash] = true
	}
	o.input.Close()
	if o.name == "quinn" {
		if _, err := fmt.Sscanf(o.next(), "acks %d %d", &o.acks, &o.asked); err != nil {
			b.Errorf("%s: %v", o, err)
		}
	}
	if err := o.process.Wait(); err != nil || len(got) != len(want) {
		b.Errorf("%s: %d streams of %d: %v", o, len(got), len(want), err)
	}
}

func buildOthers(t *testing.T) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "../endpoints/build").CombinedOutput(); err != nil {
		t.Fatalf("../endpoints/build (tools/ensure quic installs what it needs): %v\n%s", err, out)
	}
}

// wanted returns the hashes of a plan's streams.
func (p *plan) wanted() map[string]bool {
	want := map[string]bool{}
	for i := range p.streams {
		want[fmt.Sprintf("%x", sha256.Sum256(content(uint64(i), size*p.objects)))] = true
	}
	return want
}

// TestOtherImplementations has subscribers of aioquic and of quinn get 1,000 objects: with null protection from the
// kernel, and as they are published, encrypted, from user space.
func TestOtherImplementations(t *testing.T) {
	needs.Root(t)
	buildOthers(t)
	b := newBed(t, options{in: delayed(), out: delayed()})
	p := plan{streams: 250, objects: 4, rate: 500}
	all := others()
	for _, o := range all {
		o.start(b, p.streams)
	}
	b.play(b.publish(true, nil), p)
	want := p.wanted()
	b.check(testnet.Until(5*time.Second, "all streams are sent", func() bool {
		sum := b.server.Stats()[0].Sum()
		return sum.KernelBytes+sum.UserBytes+sum.DroppedBytes == uint64(len(all)*p.streams*p.objects*size)
	}))
	stats := b.server.Stats()[0].Subscribers
	for i, o := range all {
		o.check(b, want)
		share := float64(stats[i].KernelBytes) / float64(p.streams*p.objects*size)
		t.Logf("%s: the kernel's share is %.1f%%", o, 100*share)
		if o.protection == "null" && share < 0.75 || o.protection != "null" && share > 0 {
			t.Errorf("%s: the kernel's share is %.1f%%", o, 100*share)
		}
	}
}
