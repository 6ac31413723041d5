package runtime

import (
	"errors"
	"math"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// bench is a host with a relay, joined to another by a cable.
type bench struct {
	net        *testnet.Net
	host, far  *testnet.Host
	dev, there *testnet.Dev
	sock       int // sends frames from there
}

func newBench(t testing.TB) *bench {
	t.Helper()
	needs.Root(t)
	b := &bench{net: testnet.Start(t)}
	var err error
	if b.host, err = b.net.Host("relay"); err != nil {
		t.Fatal(err)
	}
	if b.far, err = b.net.Host("far"); err != nil {
		t.Fatal(err)
	}
	b.dev, b.there = b.join(t, "in0", "out0")
	if b.sock, err = b.there.PacketSocket(0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(b.sock) })
	return b
}

func (b *bench) join(t testing.TB, here, there string) (*testnet.Dev, *testnet.Dev) {
	t.Helper()
	d, e, err := b.net.Join(b.host, here, b.far, there)
	if err != nil {
		t.Fatal(err)
	}
	return d, e
}

// load loads the relay of the tests in the host's namespace.
func (b *bench) load(t testing.TB, opt Options) (r *Relay) {
	t.Helper()
	if err := b.host.Do(func() (err error) {
		r, err = Load(flowDesc(), build(t), quiet(opt))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// send puts n packets of flow 1 on the cable.
func (b *bench) send(t testing.TB, n int) {
	t.Helper()
	for range n {
		if err := b.sendOne(); err != nil {
			t.Fatal(err)
		}
	}
}

// sendOne waits for room: packets of other tests may fill a processor's queue.
func (b *bench) sendOne() (err error) {
	if full := testnet.Until(5*time.Second, "there is room for a packet", func() bool {
		err = unix.Sendto(b.sock, packet(1), 0, &unix.SockaddrLinklayer{Ifindex: b.there.Index, Protocol: 8})
		return err != unix.ENOBUFS
	}); full != nil {
		return full
	}
	return err
}

// flood puts packets of flow 1 on the cable until stop is called or the test ends. stop returns how many they were.
func (b *bench) flood(t testing.TB) (stop func() int) {
	var over atomic.Bool
	n, done := 0, make(chan struct{})
	go func() {
		defer close(done)
		pace := time.NewTicker(50 * time.Microsecond) // at full speed a busy processor's queue would overflow
		defer pace.Stop()
		for ; !over.Load(); n++ {
			<-pace.C
			if err := b.sendOne(); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	stop = func() int {
		over.Store(true)
		<-done
		return n
	}
	t.Cleanup(func() { stop() })
	return stop
}

// tc returns what tc shows of the device.
func (b *bench) tc(t testing.TB, what, dev string, args ...string) string {
	t.Helper()
	out, err := b.host.Command(t.Context(), "tc",
		append([]string{what, "show", "dev", dev}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("tc: %v: %s", err, out)
	}
	return string(out)
}

// seen counts the packets that the program has seen, without those that hosts send by themselves (ARP, ICMPv6).
func seen(r *Relay) uint64 {
	n := uint64(0)
	for reason, packets := range reasons(r, "fwd") {
		if reason != "other" {
			n += packets
		}
	}
	return n
}

func TestAttach(t *testing.T) {
	for _, clsact := range []bool{false, true} {
		mode := map[bool]AttachMode{false: AttachTCX, true: AttachClsact}[clsact]
		t.Run(mode.String(), func(t *testing.T) {
			b := newBench(t)
			r := b.load(t, Options{Clsact: clsact})
			fwd := r.Program("fwd")
			// From a thread that is not in the relay's namespace.
			for range 2 {
				if err := fwd.Attach("in0"); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.Program("out").attach("", b.dev.Index); err != nil {
				t.Fatal(err)
			}
			if got := fwd.Attachments(); len(got) != 1 || got[0] != (Attachment{
				Interface: "in0", Index: b.dev.Index, Mode: mode,
			}) {
				t.Errorf("attachments %v", got)
			}
			s := open(t, r, 1)
			b.send(t, 5)
			until(t, 2*time.Second, "five packets are forwarded", func() bool {
				return must(s.Counters())[0].Packets == 5
			})
			if err := fwd.Detach("in0"); err != nil {
				t.Fatal(err)
			}
			before := seen(r)
			b.send(t, 5)
			if err := fwd.Attach("in0"); err != nil {
				t.Fatal(err)
			}
			b.send(t, 1)
			until(t, 2*time.Second, "one more packet is seen", func() bool { return seen(r) == before+1 })
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if q := b.tc(t, "qdisc", "in0"); strings.Contains(q, "clsact") {
				t.Errorf("left behind: %s", q)
			}
		})
	}
}

// Sessions come and go while their packets flow: closed means that nothing more is forwarded.
func TestCloseWhilePacketsFlow(t *testing.T) {
	b := newBench(t)
	r := b.load(t, Options{routes: someHop})
	fwd := r.Program("fwd")
	if err := fwd.Attach("in0"); err != nil {
		t.Fatal(err)
	}
	b.flood(t)
	for range 100 {
		before := must(fwd.Count("sent")).Packets
		s := open(t, r, 1)
		until(t, 5*time.Second, "packets are forwarded", func() bool {
			return must(fwd.Count("sent")).Packets > before
		})
		missed := must(fwd.Count("no_by_client")).Packets
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		until(t, 5*time.Second, "packets pass to the stack", func() bool {
			return must(fwd.Count("no_by_client")).Packets > missed
		})
		closed := must(fwd.Count("sent")).Packets
		until(t, 5*time.Second, "more pass to the stack", func() bool {
			return must(fwd.Count("no_by_client")).Packets > missed+10
		})
		if n := must(fwd.Count("sent")).Packets - closed; n != 0 {
			t.Fatalf("%d packets were forwarded for a session that is closed", n)
		}
	}
}

func TestAttachRefuses(t *testing.T) {
	b := newBench(t)
	if err := b.host.Run("ip", "tuntap", "add", "dev", "tun0", "mode", "tun"); err != nil {
		t.Fatal(err)
	}
	r := b.load(t, Options{})
	err := r.Program("fwd").Attach("eth7")
	if err == nil || !strings.Contains(err.Error(), "attach fwd to eth7: there is no such interface; this network "+
		"namespace has in0, lo") {
		t.Errorf("missing interface: %v", err)
	}
	if err := r.Program("fwd").
		attach("", 4711); err == nil || !strings.Contains(err.Error(), "interface 4711: there is no such interface") {
		t.Errorf("missing index: %v", err)
	}
	if err := r.Program("fwd").Attach("tun0"); err == nil || !strings.Contains(err.Error(), "no Ethernet header") {
		t.Errorf("a tunnel: %v", err)
	}
	if err := r.Program("out").Attach("tun0"); err != nil {
		t.Errorf("a tunnel, for a program that doesn't mind: %v", err)
	}
}

// What others have on the device stays, and comes first.
func TestAttachBesideOthers(t *testing.T) {
	b := newBench(t)
	for _, args := range [][]string{
		{"qdisc", "add", "dev", "in0", "clsact"},
		{"filter", "add", "dev", "in0", "ingress", "prio", "7", "bpf", "bytecode", "1,6 0 0 0", "flowid", "1:1"},
	} {
		if err := b.host.Run("tc", args...); err != nil {
			t.Fatal(err)
		}
	}
	first, second := b.load(t, Options{Clsact: true}), b.load(t, Options{Clsact: true})
	for _, r := range []*Relay{first, second} {
		if err := r.Program("fwd").Attach("in0"); err != nil {
			t.Fatal(err)
		}
	}
	filters := b.tc(t, "filter", "in0", "ingress")
	for _, want := range []string{"pref 7 bpf", "pref 8 bpf", "pref 9 bpf", "fastrelay:flow:fwd"} {
		if !strings.Contains(filters, want) {
			t.Errorf("no %q in %s", want, filters)
		}
	}
	// The first lets pass what it has no session for; the second takes it.
	open(t, second, 1)
	b.send(t, 3)
	until(t, 2*time.Second, "both see the packets", func() bool {
		return seen(first) == 3 && must(second.Program("fwd").Count("sent")).Packets == 3
	})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if filters := b.tc(t, "filter", "in0", "ingress"); !strings.Contains(filters, "pref 7 bpf") ||
		strings.Contains(filters, "fastrelay") {
		t.Errorf("filters at the end: %s", filters)
	}
	if q := b.tc(t, "qdisc", "in0"); !strings.Contains(q, "clsact") {
		t.Error("another program's qdisc is gone")
	}
}

// A program that lets no other one have its packets is there. Only a relay that is attached first sees them, also after
// the interface was made anew; its programs keep their order.
func TestAttachFirst(t *testing.T) {
	b := newBench(t)
	last, first := b.load(t, Options{}), (*Relay)(nil)
	if err := b.host.Do(func() (err error) {
		first, err = Load(orderDesc(), build(t), quiet(Options{}))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	order := func() []string { return b.ingress(t, first, "in0", false) }
	b.takeAll(t, b.dev)
	if err := last.Program("fwd").Attach("in0"); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"out", "fwd"} {
		if err := first.Program(p).AttachFirst("in0"); err != nil {
			t.Fatal(err)
		}
	}
	if got := order(); !slices.Equal(got, []string{"out", "fwd", "", ""}) {
		t.Errorf("order %q", got)
	}
	b.send(t, 3)
	until(t, 2*time.Second, "the first relay sees the packets", func() bool { return seen(first) == 3 })
	if n := seen(last); n > 0 {
		t.Errorf("%d packets came to the last program", n)
	}
	if err := b.host.Run("ip", "link", "del", "in0"); err != nil {
		t.Fatal(err)
	}
	b.dev, b.there = b.join(t, "in0", "out1")
	until(t, 5*time.Second, "all are attached again, in their order", func() bool {
		return slices.Equal(order(), []string{"out", "fwd", ""})
	})
	old := b.load(t, Options{Clsact: true})
	if err := old.Program("fwd").AttachFirst("in0"); err == nil || !strings.Contains(err.Error(), "without TCX") {
		t.Errorf("by clsact: %v", err)
	}
}

// A relay that adopts attachments has them in their order, and at the places that it asks for, also on an interface
// that is made anew.
func TestAdoptedOrder(t *testing.T) {
	b := newBench(t)
	pins := "/sys/fs/bpf/" + pinName(t)
	attached := func() *Relay {
		t.Helper()
		var r *Relay
		if err := b.host.Do(func() (err error) {
			r, err = Load(orderDesc(), build(t), quiet(Options{PinPath: pins}))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{"out", "fwd"} {
			if err := r.Program(p).AttachFirst("in0"); err != nil {
				t.Fatal(err)
			}
		}
		return r
	}
	if err := attached().Leave(time.Minute); err != nil {
		t.Fatal(err)
	}
	r := attached()
	defer r.Close()
	if err := b.host.Run("ip", "link", "del", "in0"); err != nil {
		t.Fatal(err)
	}
	dev, _ := b.join(t, "temp", "out1")
	b.takeAll(t, dev)
	if err := errors.Join(b.host.Run("ip", "link", "set", "temp", "down"),
		b.host.Run("ip", "link", "set", "temp", "name", "in0")); err != nil {
		t.Fatal(err)
	}
	until(t, 5*time.Second, "all are attached again, first and in their order", func() bool {
		return slices.Equal(b.ingress(t, r, "in0", false), []string{"out", "fwd", ""})
	})
}

// takeAll puts a program first on a device that lets no other one have its packets.
func (b *bench) takeAll(t *testing.T, dev *testnet.Dev) {
	t.Helper()
	greedy, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}, License: "GPL",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer greedy.Close()
	if err := b.host.Do(func() error {
		l, err := link.AttachTCX(link.TCXOptions{
			Interface: dev.Index, Program: greedy, Attach: ebpf.AttachTCXIngress, Anchor: link.Head(),
		})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// An ingress qdisc takes programs of ingress; egress is refused rather than attached to the wrong direction.
func TestIngressQdisc(t *testing.T) {
	b := newBench(t)
	if err := b.host.Run("tc", "qdisc", "add", "dev", "in0", "ingress"); err != nil {
		t.Fatal(err)
	}
	r := b.load(t, Options{Clsact: true})
	if err := r.Program("out").Attach("in0"); err == nil || !strings.Contains(err.Error(), "qdisc of type ingress") {
		t.Errorf("egress: %v", err)
	}
	if err := r.Program("fwd").Attach("in0"); err != nil {
		t.Fatal(err)
	}
	b.send(t, 1)
	until(t, 2*time.Second, "a packet is seen", func() bool { return seen(r) == 1 })
}

func TestInterfaceGoesAway(t *testing.T) {
	for _, clsact := range []bool{false, true} {
		b := newBench(t)
		r := b.load(t, Options{Clsact: clsact})
		if err := r.Program("fwd").Attach("in0"); err != nil {
			t.Fatal(err)
		}
		if err := b.host.Run("ip", "link", "del", "in0"); err != nil {
			t.Fatal(err)
		}
		b.join(t, "in0", "out1") // a new one of that name
		if err := r.Program("fwd").Attach("in0"); err != nil {
			t.Fatal(err)
		}
		if got := r.Program("fwd").Attachments(); len(got) != 1 {
			t.Errorf("attachments %v", got)
		}
		if err := b.host.Run("ip", "link", "del", "in0"); err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

// Filters outlive their process. They forward nothing, and the next relay of that name takes them away.
func TestDeadFilter(t *testing.T) {
	b := newBench(t)
	dead := b.load(t, Options{Clsact: true})
	if err := dead.Program("fwd").Attach("in0"); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.tc(t, "filter", "in0", "ingress"), "fastrelay:flow:fwd"); n != 1 {
		t.Fatalf("%d filters", n)
	}
	dead.endLease(0) // as if it had been killed a while ago
	r := b.load(t, Options{Clsact: true})
	if err := r.Program("fwd").Attach("in0"); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.tc(t, "filter", "in0", "ingress"), "fastrelay:flow:fwd"); n != 1 {
		t.Errorf("%d filters", n)
	}
	open(t, r, 1)
	b.send(t, 1)
	until(t, 2*time.Second, "a packet is forwarded", func() bool {
		return must(r.Program("fwd").Count("sent")).Packets == 1
	})
}

// The process is killed. Within its lease everything passes to the stack.
func TestKilledProcess(t *testing.T) {
	for _, clsact := range []string{"", "1"} {
		b := newBench(t)
		// The maps of the child are reached through the filter that outlives it, or through a pin.
		pins := "/sys/fs/bpf/" + pinName(t)
		env := []string{"PINS=" + pins, "CLSACT=" + clsact}
		var cmd *exec.Cmd
		if err := b.host.Do(func() error {
			cmd = startChild(t, "serve", append(env, "DEV=in0")...)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		dead := pinnedReasons(t, pins)
		sent := func() uint64 { return dead(2) }
		b.send(t, 1)
		until(t, 2*time.Second, "a packet is forwarded", func() bool { return sent() > 0 })
		killed := kill(t, cmd)
		lease := pinnedLease(t, pins)
		end := lease.Load64(0, abi.LeaseDeadline)
		lease.Store64(0, abi.LeaseDeadline, math.MaxUint64) // it doesn't lapse, however long this takes
		b.send(t, 1)
		until(t, 10*time.Second, "the program is still there", func() bool { return sent() == 2 || dead(0) > 0 })
		if sent() != 2 {
			t.Error("a packet wasn't forwarded, though the lease had not lapsed")
		}
		lease.Store64(0, abi.LeaseDeadline, end)
		last := killed // when the last packet that was forwarded was sent
		until(t, 10*time.Second, "packets pass to the stack", func() bool {
			at, before, up := time.Now(), sent(), dead(0)
			b.send(t, 1)
			if sent() > before {
				last = at
			}
			return dead(0) > up
		})
		if d := last.Sub(killed); d > 1100*time.Millisecond {
			t.Errorf("packets were forwarded for %v", d)
		}
		before := sent()
		b.send(t, 20)
		until(t, 2*time.Second, "the packets are seen", func() bool { return dead(0) > 20 })
		if sent() != before {
			t.Error("a dead relay forwards")
		}
		b.load(t, Options{PinPath: pins, Clsact: clsact != ""}).Close() // removes the pins
	}
}
