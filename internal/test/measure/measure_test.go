package measure

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

func TestQuantile(t *testing.T) {
	var d Delays
	if d.Quantile(0.5) != 0 {
		t.Error("of nothing")
	}
	for i := range 100 {
		d = append(d, time.Duration(i))
	}
	for q, want := range map[float64]time.Duration{0: 0, 0.5: 50, 0.99: 99, 1: 99} {
		if got := d.Quantile(q); got != want {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
}

// A datagram is at the receiver's device before its process has it, and each is measured.
func TestDelay(t *testing.T) {
	needs.Root(t)
	l, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	to, addr, err := BlockingSocket(l.Relay, netip.AddrPortFrom(l.RelayInAddr.V4, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(to)
	from, _, err := BlockingSocket(l.Client, netip.AddrPortFrom(l.ClientAddr.V4, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(from)
	const count, header = 200, 4
	toDevice, toProcess, err := Delay(LoadCPU, count, 2000, 100, func(payload []byte) error {
		return SendTo(from, append(make([]byte, header), payload...), addr)
	}, to, header)
	if err != nil {
		t.Fatal(err)
	}
	if len(toDevice) != len(toProcess) || len(toDevice) < count*9/10 || len(toDevice) > count {
		t.Errorf("%d and %d delays of %d datagrams", len(toDevice), len(toProcess), count)
	}
	for _, share := range []float64{0, 0.5, 1} {
		device, process := toDevice.Quantile(share), toProcess.Quantile(share)
		if device <= 0 || device > process || process > 10*time.Second {
			t.Errorf("quantile %v: %v to the device, %v to the process", share, device, process)
		}
	}
}

func TestSenderIsLimit(t *testing.T) {
	for _, c := range []struct {
		rate, offered, delivered float64
		want                     bool
	}{{1000, 1000, 1000, false}, {1000, 800, 800, true}, {1000, 800, 700, false}, {1000, 1000, 500, false}} {
		if got := senderIsLimit(c.rate, c.offered, c.delivered); got != c.want {
			t.Errorf("%v of %v packets a second offered, %v delivered: %v", c.offered, c.rate, c.delivered, got)
		}
	}
}

// A machine is in use for a share of its time.
func TestLoad(t *testing.T) {
	if share, err := Load(30 * time.Millisecond); err != nil || share < 0 || share > 1 {
		t.Errorf("%v, %v", share, err)
	}
}

// A batch arrives as separate datagrams, at the rate that was asked for, and a sink keeps them from the host.
func TestSenderAndSink(t *testing.T) {
	needs.Root(t)
	l, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(offloads.Segmentation(l.ClientDev, false),
		l.ClientDev.AddNeighbour(l.RelayInAddr.V4, l.RelayIn.MAC))
	if err != nil {
		t.Fatal(err)
	}
	fd, _, err := BlockingSocket(l.Client, netip.AddrPortFrom(l.ClientAddr.V4, 0))
	if err != nil {
		t.Fatal(err)
	}
	sender := NewSender(fd, netip.AddrPortFrom(l.RelayInAddr.V4, 9), make([]byte, 100))
	count := func() uint64 {
		n, err := l.RelayIn.Received()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	sink, err := NewSink(l.RelayIn)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	before := count()
	sent, err := sender.Send(LoadCPU, 50*time.Millisecond, 20_000)
	if err != nil {
		t.Fatal(err)
	}
	if sent == 0 || sent > 1000+maxBatch { // fewer if other work holds the sender up
		t.Errorf("%d datagrams in 50 ms, want at most 1000 and one batch", sent)
	}
	all := func() bool { return count()-before >= uint64(sent) }
	if err := testnet.Until(2*time.Second, "all datagrams", all); err != nil {
		t.Fatal(err)
	}
}

// The share of a processor that interrupts take is between nothing and all, and little on a host without traffic.
func TestBusy(t *testing.T) {
	needs.Root(t)
	b, err := NewBusy(LoadCPU)
	if err != nil {
		t.Fatal(err)
	}
	share, err := b.Interval(20 * time.Millisecond)
	if err != nil || share < 0 || share > 0.9 {
		t.Errorf("share %v, error %v", share, err)
	}
	if _, err := b.Interval(time.Second); err == nil {
		t.Error("an interval of a second would keep others from the processor for too long")
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// On kernels without TCX a sink is a filter. Either keeps packets from a socket, until it is closed.
func TestSinkKinds(t *testing.T) {
	needs.Root(t)
	for name, attach := range map[string]func(*Sink, *testnet.Dev) error{
		"tcx": (*Sink).attachTCX, "filter": (*Sink).attachFilter,
	} {
		t.Run(name, func(t *testing.T) {
			l, err := testnet.Start(t).Line()
			if err != nil {
				t.Fatal(err)
			}
			if err := l.ClientDev.AddNeighbour(l.RelayInAddr.V4, l.RelayIn.MAC); err != nil {
				t.Fatal(err)
			}
			from, _, err := BlockingSocket(l.Client, netip.AddrPortFrom(l.ClientAddr.V4, 0))
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(from)
			to, addr, err := BlockingSocket(l.Relay, netip.AddrPortFrom(l.RelayInAddr.V4, 0))
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(to)
			sink, err := NewSink(l.PeerDev) // for its program; the device is another
			if err != nil {
				t.Fatal(err)
			}
			defer sink.Close()
			second := &Sink{program: sink.program}
			if err := attach(second, l.RelayIn); err != nil {
				t.Fatal(err)
			}
			arrives := func(text string) bool {
				if err := SendTo(from, []byte(text), addr); err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, 16)
				n, err := unix.Read(to, buf)
				return err == nil && string(buf[:n]) == text
			}
			err = unix.SetsockoptTimeval(to, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
			if err != nil {
				t.Fatal(err)
			}
			if arrives("dropped") {
				t.Error("a packet passed the sink")
			}
			if err := second.detach(); err != nil {
				t.Fatal(err)
			}
			passes := func() bool { return arrives("passed") }
			if err := testnet.Until(2*time.Second, "a packet arrives", passes); err != nil {
				t.Error(err)
			}
		})
	}
}

// Tests that can't be set up fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }

// If every rate lost packets, a table says so, and has no ratio.
func TestNoRate(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{LossFreeKpps(0), "no rate without loss"}, {LossFreeKpps(1_234_000), "1234"},
		{Ratio(1, 0), "–"}, {Ratio(0, 1), "–"}, {Ratio(0, 0), "–"}, {Ratio(1, 2), "0.50"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
