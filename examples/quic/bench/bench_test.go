package main

import (
	"context"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/quic/bench/line"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func TestMain(m *testing.M) {
	measure.Main()
	relayMain()
	m.Run()
}

// A delivery is what a test has a variant do.
type delivery struct {
	subscribers, objects, streams int
	rate                          float64
}

// run runs a variant's relay and its clients, checks that each object is delivered once to every subscriber, and that
// each copy's delay is seen: until it is read, and with null protection by captures as well. It returns how many
// packets subscribers sent early (earlyOf).
func (d delivery) run(t *testing.T, v Variant) (early int) {
	t.Helper()
	net, l, err := line.New()
	check(t, err)
	defer net.Close()
	p, err := start(l, v, settings{acks: "10,20"})
	check(t, err)
	defer p.stop()
	a, err := subscribe(v, l, d.subscribers)
	check(t, err)
	defer a.close()
	in, err := l.RelayIn.Capture()
	check(t, err)
	out, err := l.RelayOut.Capture()
	check(t, err)
	var sent int64
	read, err := a.watch(func() error {
		load, err := publish(v, l, a, d.rate, d.objects)
		check(t, err)
		defer load.dialled.close()
		check(t, testnet.Until(10*time.Second, "some objects", func() bool {
			return load.sent.Load() >= uint64(d.streams*d.objects)
		}))
		check(t, load.close())
		sent = int64(load.sent.Load())
		return testnet.Until(5*time.Second, "all streams", func() bool {
			return a.streams.Load() >= int64(d.subscribers)*sent/int64(d.objects)
		})
	})
	check(t, err)
	all := int64(d.subscribers) * sent
	if n := len(read); n != int(all) || read[0] <= 0 || read[n-1] > time.Minute {
		t.Errorf("%d delays of %d reads, from %v to %v", n, all, read[0], read[n-1])
	}
	if got, want := a.bytes.Load(), all*objectSize; got != want {
		t.Errorf("%d bytes were delivered, want %d", got, want)
	}
	came, err := in.Stop()
	check(t, err)
	left, err := out.Stop()
	check(t, err)
	want := 0 // what is encrypted has no mark
	if v.null() {
		want = int(all)
	}
	if n := len(delaysOf(came, left)); n != want {
		t.Errorf("%d delays of %d copies, want %d", n, all, want)
	}
	share, err := p.share()
	check(t, err)
	if (share > 50) != v.kernel() {
		t.Errorf("the kernel's share is %.0f%%", share)
	}
	early = earlyOf(left)
	t.Logf("%s: %d early packets of subscribers for %d deliveries", v, early, all)
	return early
}

// earlyOf counts the packets of subscribers that come before ten packets, and before 15 ms from the first of them, have
// gone to the subscriber: what who is asked for an ACK every ten packets, or after 20 ms, doesn't send for an ACK. A
// machine that stalls makes them fewer, never more.
func earlyOf(frames []testnet.Frame) (n int) {
	type unanswered struct {
		packets int
		since   time.Time
	}
	subscribers := map[uint16]*unanswered{} // by port
	for _, f := range frames {
		if len(f.Data) < 42 || f.Data[23] != unix.IPPROTO_UDP {
			continue
		}
		at := 34 // of the port that is the subscriber's
		if f.Outgoing {
			at = 36
		}
		port := binary.BigEndian.Uint16(f.Data[at:])
		s := subscribers[port]
		if s == nil {
			s = &unanswered{}
			subscribers[port] = s
		}
		switch {
		case f.Outgoing:
			if s.packets == 0 {
				s.since = f.At
			}
			s.packets++
		default:
			if s.packets < 10 && f.At.Sub(s.since) < 15*time.Millisecond {
				n++
			}
			s.packets = 0
		}
	}
	return n
}

// Every variant delivers each object once to every subscriber.
func TestVariantsDeliver(t *testing.T) {
	needs.Root(t)
	for _, v := range []Variant{UserSpace, Kernel, Stock, StockSegments, StockWaiting, Quinn} {
		t.Run(string(v), func(t *testing.T) { delivery{subscribers: 2, objects: 5, streams: 20, rate: 200}.run(t, v) })
	}
}

// Subscribers of thinned variants send ACKs when they have to.
func TestThinned(t *testing.T) {
	needs.Root(t)
	d := delivery{subscribers: 2, objects: 5, streams: 200, rate: 1000}
	for _, pair := range [][2]Variant{{Kernel, KernelThinned}, {Stock, StockThinned}, {Quinn, QuinnThinned}} {
		t.Run(string(pair[1]), func(t *testing.T) {
			d.run(t, pair[0])
			// One a stream may allow another one (MAX_STREAMS).
			if n, most := d.run(t, pair[1]), d.subscribers*d.streams*(10+d.objects)/10; n > most {
				t.Errorf("subscribers sent %d packets before they had to, %d is the most: they were asked for fewer",
					n, most)
			}
		})
	}
}

// Without subscribers that take ACK_FREQUENCY, there are no figures of thinned ACKs.
func TestThinnedRefusesOthers(t *testing.T) {
	needs.Root(t)
	net, l, err := line.New()
	check(t, err)
	defer net.Close()
	p, err := start(l, QuinnThinned, settings{acks: "10,20"})
	check(t, err)
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, p.out)
		close(ended)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	check(t, l.Peer.Do(func() error { // without hooks
		c, err := quic.DialAddr(ctx, serverAt(l).String(), secrets(), wide())
		if err != nil {
			return err
		}
		control, err := c.OpenStreamSync(ctx)
		if err != nil {
			return err
		}
		_, err = control.Write([]byte("subscribe bench\n"))
		return err
	}))
	select {
	case <-ended:
	case <-ctx.Done():
		t.Error("the relay still runs")
	}
	if err := p.stop(); err == nil {
		t.Error("the relay ended without an error")
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDelays(t *testing.T) {
	start := time.Now()
	part := func(outgoing bool, port uint16, at time.Duration, of []byte) testnet.Frame {
		data := make([]byte, 60)
		binary.BigEndian.PutUint16(data[destination:], port)
		return testnet.Frame{Data: append(data, of...), At: start.Add(at), Outgoing: outgoing}
	}
	frame := func(outgoing bool, port uint16, at time.Duration, numbers ...uint64) testnet.Frame {
		var data []byte
		for _, n := range numbers {
			data = append(data, object(n)...)
		}
		return part(outgoing, port, at, data)
	}
	came := []testnet.Frame{
		frame(false, 1, 0, 0), frame(false, 1, 10, 1, 2),
		frame(false, 1, 500, 1), // again
		frame(true, 1, 12, 7),   // an answer
		part(false, 1, 20, object(11)[:10]), part(false, 1, 21, object(11)[10:]),
	}
	left := []testnet.Frame{
		frame(true, 2, 3, 0), frame(true, 3, 4, 0), frame(true, 2, 15, 1, 2),
		frame(true, 2, 90, 1),  // again
		frame(false, 2, 95, 1), // not the relay's
		frame(true, 3, 95, 9),  // came before
		part(true, 2, 25, object(11)[:400]), part(true, 2, 26, object(11)[400:]),
	}
	if got, want := delaysOf(came, left), (measure.Delays{3, 4, 4, 5, 5}); !slices.Equal(got, want) {
		t.Errorf("delays %v, want %v", got, want)
	}
}

// Wherever a stream is cut into reads, each object counts when its last byte is there.
func TestObjectReader(t *testing.T) {
	var stream []byte
	for n := range uint64(4) {
		stream = append(stream, object(70+n)...)
	}
	type complete struct {
		first uint64
		count int
	}
	for size, want := range map[int][]complete{
		1:    {{70, 1}, {71, 1}, {72, 1}, {73, 1}},
		999:  {{70, 1}, {71, 1}, {72, 1}, {73, 1}},
		1000: {{70, 1}, {71, 1}, {72, 1}, {73, 1}},
		1999: {{70, 1}, {71, 2}, {73, 1}},
		4096: {{70, 4}},
	} {
		var got []complete
		var r objectReader
		for data := range slices.Chunk(stream, size) {
			if first, count := r.take(data); count > 0 {
				got = append(got, complete{first, count})
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("in reads of %d bytes: %v, want %v", size, got, want)
		}
	}
}

func TestVariantsOf(t *testing.T) {
	got, err := variantsOf("stock, user space,quinn")
	check(t, err)
	if want := []Variant{Stock, UserSpace, Quinn}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for text, want := range map[string]string{
		"": `"" is not a variant`, "kernel,quin": `"quin" is not a variant`, "stock,stock": "named twice",
	} {
		if _, err := variantsOf(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// A report has what was measured: any choice of variants, and ratios of those that belong together.
func TestReport(t *testing.T) {
	encrypted := Cell{Subscribers: 8, Objects: 60, Results: map[Variant]Result{
		Stock: {Rate: 8000, CPU: 30, Calls: 3, ReadP50: 500, ReadP99: 900},
		Quinn: {Rate: 8000, CPU: 20, Calls: 2, ReadP50: 400, ReadP99: 600},
	}}
	all := Cell{Subscribers: 64, Objects: 60, Results: map[Variant]Result{
		UserSpace: {Rate: 8000, CPU: 16, Calls: 3, P50: 300, P99: 700, ReadP50: 900, ReadP99: 1200},
		Kernel:    {Rate: 8000, CPU: 8, Calls: 1, P50: 30, P99: 70, ReadP50: 300, ReadP99: 600, Share: 100},
		Stock:     {Rate: 8000, CPU: 40, Calls: 4, ReadP50: 600, ReadP99: 1000},
		Quinn:     {Rate: 8000, CPU: 30, Calls: 2, ReadP50: 500, ReadP99: 700},
	}}
	var b strings.Builder
	printPath(&b, []Cell{encrypted, all})
	rows := map[string]int{}
	for line := range strings.Lines(b.String()) {
		rows[strings.Join(strings.Fields(line), " ")]++
	}
	for _, want := range []string{
		"8 60 stock 8000 0.0% 0% – – 500 900 3.00 30.0", "stock / quinn 1.00 1.25 1.50 1.50 1.50",
		"64 60 kernel 8000 0.0% 100% 30 70 300 600 1.00 8.0", "kernel / user space 1.00 0.10 0.10 0.33 0.50 0.33 0.50",
		"stock / quinn 1.00 1.20 1.43 2.00 1.33",
	} {
		if rows[want] != 1 {
			t.Errorf("%d rows are %q:\n%s", rows[want], want, &b)
		}
	}
	for name, cells := range map[string][]Cell{"all": {encrypted, all}, "encrypted": {encrypted}} {
		file := filepath.Join(t.TempDir(), name+".png")
		check(t, plot(file, cells))
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	}
}
