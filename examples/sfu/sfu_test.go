package main

import (
	"bytes"
	"context"
	"flag"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/sfu/lab"
	"github.com/fastrelay/fastrelay-gen/examples/sfu/server"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func TestMain(m *testing.M) {
	lab.Main()
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil { // the tests wait for videos more than they work
		panic(err)
	}
	os.Exit(m.Run())
}

const wait = 5 * time.Second

// video is the test video: a little over 4 seconds, with a key frame at the beginning of each of its four parts.
var video = sync.OnceValues(func() (*lab.Video, error) { return lab.Encode(context.Background(), 4*lab.KeyInterval) })

// bed is a server with a publisher, and hosts for receivers.
type bed struct {
	*testing.T
	family int
	star   *lab.Star
	server *lab.Process
	video  *lab.Video
	pub    *lab.Publisher
	played chan error
}

func newBed(t *testing.T, family, receivers int, flags ...string) *bed {
	t.Helper()
	t.Parallel()
	b := &bed{T: t, family: family, played: make(chan error, 2)}
	var err error
	b.video, err = video()
	b.check(err)
	b.star, err = lab.NewStar(testnet.Start(t), receivers)
	b.check(err)
	b.serve(flags...)
	b.pub = b.publish("cam")
	b.pub.Before = func(f lab.Frame) error {
		if f.Number != first {
			return nil
		}
		return testnet.Until(wait, "all subscribers get the stream from here on", func() bool {
			st, err := b.server.Stats()
			return err == nil && !slices.ContainsFunc(st.Subscribers, func(u server.SubscriberStats) bool {
				return u.Publisher == ""
			})
		})
	}
	return b
}

func (b *bed) serve(flags ...string) {
	b.Helper()
	flags = append([]string{"--address", b.star.SFUAddr.V4.String(), "--address", b.star.SFUAddr.V6.String()}, flags...)
	p, err := lab.Serve(b.star.SFU, flags...)
	b.check(err)
	b.server = p
	b.Cleanup(func() {
		if st, err := p.Stats(); b.Failed() && err == nil {
			b.Logf("counters: %+v", st)
		}
		p.Kill()
		if b.Failed() {
			b.Logf("the server's log:\n%s", p.Log())
		}
	})
}

func (b *bed) check(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bed) publish(name string) *lab.Publisher {
	b.Helper()
	st, err := b.server.Publish(server.Publish{Name: name, IPv6: b.family == 6})
	b.check(err)
	pub, err := lab.NewPublisher(b.star.Publisher, st.Server, 1000)
	b.check(err)
	b.Cleanup(func() { pub.Close() })
	return pub
}

func (b *bed) receiver(i int) *lab.Receiver {
	b.Helper()
	r, err := lab.NewReceiver(b.star.Receivers[i].Host, b.star.Receivers[i].Addr.Of(b.family))
	b.check(err)
	b.Cleanup(func() { r.Close() })
	return r
}

func (b *bed) subscribe(name string, to netip.AddrPort, layer uint8) {
	b.Helper()
	_, err := b.server.Subscribe(server.Subscribe{
		Name: name, Publisher: new("cam"), Address: &to, Layer: &layer, PayloadType: new(uint8(97)),
	})
	b.check(err)
}

func (b *bed) subscriber(name string) server.SubscriberStats {
	b.Helper()
	st, err := b.server.Subscriber(name)
	b.check(err)
	return st
}

func (b *bed) publisher() server.PublisherStats {
	b.Helper()
	st, err := b.server.Stats()
	b.check(err)
	return st.Publishers[0]
}

// play begins to play frames. The server learns from the first packet where they come from, and whoever joins then
// waits for a key frame: the first pictures are those of the second key frame.
func (b *bed) play(frames []lab.Frame) {
	go func() { b.played <- b.pub.Play(context.Background(), frames) }()
}

// until plays frames and waits until all receivers have what was sent to them.
func (b *bed) until(frames []lab.Frame) {
	b.Helper()
	b.play(frames)
	b.check(<-b.played)
}

// loop plays the video again and again, until what it returns is called.
func (b *bed) loop(p *lab.Publisher) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Loop(ctx, b.video.Frames)
	}()
	stop = func() { cancel(); <-done }
	b.Cleanup(stop)
	return stop
}

func (b *bed) await(limit time.Duration, what string, holds func() bool) {
	b.Helper()
	b.check(testnet.Until(limit, what, holds))
}

// settled waits until a receiver has all that the server has sent it.
func (b *bed) settled(name string, r *lab.Receiver) {
	b.Helper()
	var n lab.Tally
	var sent uint64
	err := testnet.Until(wait, name+" has got all that was sent", func() bool {
		n, sent = r.Tally(), b.subscriber(name).Packets
		return n.Missing == 0 && uint64(n.Packets+n.Twice+n.Lost) == sent
	})
	if err != nil {
		b.Fatalf("%v: %d packets were sent, and there are %+v", err, sent, n)
	}
}

// wanted are the pictures of some layers, from a frame on.
func (b *bed) wanted(layer uint8, from, to int) (sums []string) {
	for _, f := range b.video.Frames[from:to] {
		if f.Layer <= layer {
			sums = append(sums, b.video.Sums[f.Number])
		}
	}
	return sums
}

func (b *bed) same(name string, got, want []string) {
	b.Helper()
	if len(got) != len(want) {
		b.Errorf("%s decoded %d pictures, want %d", name, len(got), len(want))
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			b.Errorf("%s: picture %d is another one", name, i)
			return
		}
	}
}

// pictures decodes what a receiver put together.
func (b *bed) pictures(name string, r *lab.Receiver) []string {
	b.Helper()
	var frames [][]byte
	for _, p := range r.Pictures() {
		if !p.Whole {
			b.Errorf("%s: the frame at %d, of layer %d, is not whole", name, p.Timestamp, p.Layer)
		}
		frames = append(frames, p.Data)
	}
	sums, err := lab.Decode(context.Background(), frames)
	b.check(err)
	return sums
}

// seen has tshark read what came to a receiver, and wants numbers without a gap and timestamps that don't go back. A
// busy machine may lose packets, in the queues of its devices; then these have to have come later.
func (b *bed) seen(name string, capture *testnet.Capture, port uint16) []lab.Seen {
	b.Helper()
	frames, err := capture.Stop()
	b.check(err)
	for _, f := range frames {
		if err := dissect.Check(f); err != nil {
			b.Fatalf("%s: %v", name, err)
		}
	}
	list, err := lab.Tshark(frames, port)
	b.check(err)
	if len(list) == 0 {
		b.Fatalf("%s has got nothing", name)
	}
	if st := b.subscriber(name); st.Resent+st.Filled+st.Padded > 0 {
		b.Logf("%s: the machine has lost packets: %+v", name, st.Sent)
		begin := list[0].Sequence
		slices.SortStableFunc(list, func(x, y lab.Seen) int { return int(x.Sequence-begin) - int(y.Sequence-begin) })
		list = slices.Compact(list)
	}
	if gap := lab.Gap(list); gap != "" {
		b.Errorf("%s has a gap: %s", name, gap)
	}
	for i := 1; i < len(list); i++ {
		if int32(list[i].Timestamp-list[i-1].Timestamp) < 0 {
			b.Errorf("%s: the time goes back at packet %d: %+v after %+v", name, i, list[i], list[i-1])
		}
	}
	return list
}

func (b *bed) capture(i int) *testnet.Capture {
	b.Helper()
	c, err := b.star.Receivers[i].Dev.Capture()
	b.check(err)
	return c
}

// A wrong flag is an error at once, and says what is wrong.
func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		say  string
	}{
		{[]string{"--help"}, 0, "sfu is a selective forwarding unit"},
		{[]string{}, 2, "no address"},
		{[]string{"--address", "nowhere"}, 2, "nowhere"},
		{[]string{"--address", "127.0.0.1", "--extension", "15"}, 2, "1 to 14"},
		{[]string{"--address", "127.0.0.1", "extra"}, 2, `unexpected argument "extra"`},
		{[]string{"--address", "0.0.0.0", "--api", "127.0.0.1:0"}, 1, "0.0.0.0 is not an address of a host"},
		{[]string{"--address", "127.0.0.1", "--address", "127.0.0.2", "--api", "127.0.0.1:0"}, 1,
			"one address of each family"},
	} {
		var out, say bytes.Buffer
		if code := server.Command(c.args, &out, &say); code != c.code || !strings.Contains(say.String(), c.say) {
			t.Errorf("sfu %v: status %d, want %d; it said %q, want %q", c.args, code, c.code, say.String(), c.say)
		}
	}
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
