package runtime

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// reported keeps what a relay reports about its attachments.
type reported struct {
	mu  sync.Mutex
	all []string
}

func (c *reported) change(program string, now Attachment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := fmt.Sprintf("%s %s", program, now.Interface)
	if now.Lost != nil {
		text += ": " + now.Lost.Error()
	}
	c.all = append(c.all, text)
}

func (c *reported) was(want ...string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Equal(c.all, want)
}

func (c *reported) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.all, "; ")
}

// gives up after a long time, and says what was reported until then.
func (c *reported) until(t *testing.T, want ...string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !c.was(want...); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("reported %q, not %q", c.String(), strings.Join(want, "; "))
		}
	}
}

func eachHow(t *testing.T, f func(t *testing.T, clsact bool)) {
	for _, clsact := range []bool{false, true} {
		t.Run(map[bool]string{false: "tcx", true: "clsact"}[clsact], func(t *testing.T) { f(t, clsact) })
	}
}

// An interface is deleted, and made again under its name: the programs are attached again, in their order.
func TestInterfaceComesBack(t *testing.T) {
	eachHow(t, func(t *testing.T, clsact bool) {
		b, c := newBench(t), &reported{}
		r := b.load(t, Options{Clsact: clsact, routes: someHop, AttachmentChanged: c.change})
		fwd := r.Program("fwd")
		for _, p := range []*AnyProgram{fwd, r.Program("out")} {
			if err := p.Attach("in0"); err != nil {
				t.Fatal(err)
			}
		}
		open(t, r, 1)
		var total uint64
		for round := range 3 {
			b.send(t, 2)
			total += 2
			until(t, 5*time.Second, "packets are forwarded", func() bool {
				return must(fwd.Count("sent")).Packets == total
			})
			if err := b.host.Run("ip", "link", "del", "in0"); err != nil {
				t.Fatal(err)
			}
			until(t, 5*time.Second, "both are lost", func() bool {
				a, o := fwd.Attachments(), r.Program("out").Attachments()
				return len(a) == 1 && len(o) == 1 && errors.Is(a[0].Lost, errInterfaceGone) && o[0].Lost != nil &&
					a[0].Index == 0
			})
			b.dev, b.there = b.join(t, "in0", fmt.Sprint("out", round+1))
			until(t, 5*time.Second, "both are attached again", func() bool {
				a, o := fwd.Attachments(), r.Program("out").Attachments()
				return len(a) == 1 && len(o) == 1 && a[0].Lost == nil && o[0].Lost == nil && a[0].Index == b.dev.Index
			})
		}
		var want []string
		for range 3 {
			want = append(want, "fwd in0: the interface is gone", "out in0: the interface is gone", "fwd in0",
				"out in0")
		}
		c.until(t, want...)
		b.send(t, 1)
		until(t, 5*time.Second, "a packet is forwarded", func() bool {
			return must(fwd.Count("sent")).Packets == total+1
		})
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		q := b.tc(t, "qdisc", "in0") + b.tc(t, "filter", "in0", "ingress")
		if strings.Contains(q, "clsact") || strings.Contains(q, "fastrelay") {
			t.Errorf("left behind: %s", q)
		}
	})
}

// orderDesc is the relay of the tests with a second program of ingress.
func orderDesc() *abi.Desc {
	d := flowDesc()
	d.Programs[1].Hook = abi.HookIngress
	return d
}

// ingress returns the programs of ours on a device, in the order in which packets come to them.
func (b *bench) ingress(t *testing.T, r *Relay, dev string, clsact bool) (names []string) {
	t.Helper()
	byID := map[string]string{}
	for _, p := range r.Programs() {
		info, err := p.Kernel().Info()
		if err != nil {
			t.Fatal(err)
		}
		id, _ := info.ID()
		byID[fmt.Sprint(id)] = p.Name()
	}
	if err := b.host.Do(func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		if clsact {
			filters, err := netlink.FilterList(l, netlink.HANDLE_MIN_INGRESS)
			for _, f := range filters {
				names = append(names, byID[fmt.Sprint(f.(*netlink.BpfFilter).Id)])
			}
			return err
		}
		names, err = tcxPrograms(l.Attrs().Index, byID)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return names
}

func tcxPrograms(index int, byID map[string]string) (names []string, err error) {
	there, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		if errors.Is(err, unix.ENOSPC) { // another one came while they were listed
			err = nil
		}
		return nil, err
	}
	for _, p := range there.Programs {
		names = append(names, byID[fmt.Sprint(p.ID)])
	}
	return names, nil
}

// Several programs on one device come back in the order in which they were attached, whatever the order in the spec.
func TestOrderComesBack(t *testing.T) {
	eachHow(t, func(t *testing.T, clsact bool) {
		b := newBench(t)
		var r *Relay
		if err := b.host.Do(func() (err error) {
			r, err = Load(orderDesc(), build(t), quiet(Options{Clsact: clsact, routes: someHop}))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for _, p := range []string{"out", "fwd"} {
			if err := r.Program(p).Attach("in0"); err != nil {
				t.Fatal(err)
			}
		}
		// Devices are looked at all the time, so also while they appear.
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				case r.interfaces.kick <- struct{}{}:
				}
			}
		}()
		defer func() { close(stop); <-stopped }()
		for round := range 3 {
			if got := b.ingress(t, r, "in0", clsact); !slices.Equal(got, []string{"out", "fwd"}) {
				t.Fatalf("round %d: order %v", round, got)
			}
			if err := b.host.Run("ip", "link", "del", "in0"); err != nil {
				t.Fatal(err)
			}
			b.join(t, "in0", fmt.Sprint("out", round+1))
			until(t, 5*time.Second, "both are attached again", func() bool {
				return len(b.ingress(t, r, "in0", clsact)) == 2
			})
		}
		// One that is asked for again while it waits keeps its place, too.
		if err := b.host.Run("ip", "link", "del", "in0"); err != nil {
			t.Fatal(err)
		}
		b.join(t, "in0", "out9")
		if err := r.Program("out").Attach("in0"); err != nil {
			t.Fatal(err)
		}
		until(t, 5*time.Second, "each is attached once", func() bool {
			return len(b.ingress(t, r, "in0", clsact)) == 2 &&
				len(r.Program("out").Attachments()) == 1 && len(r.Program("fwd").Attachments()) == 1
		})
	})
}

// A device that is renamed keeps its programs. One that gets the name that is waited for is as good as a new one; so
// is one that comes from another namespace.
func TestInterfaceIsRenamedAndMoved(t *testing.T) {
	eachHow(t, func(t *testing.T, clsact bool) {
		b, c := newBench(t), &reported{}
		r := b.load(t, Options{Clsact: clsact, routes: someHop, AttachmentChanged: c.change})
		fwd := r.Program("fwd")
		ip := func(args ...string) {
			t.Helper()
			if err := b.host.Run("ip", args...); err != nil {
				t.Fatal(err)
			}
		}
		if err := fwd.Attach("in0"); err != nil {
			t.Fatal(err)
		}
		ready := func() {
			t.Helper()
			if err := b.there.Ready(); err != nil {
				t.Fatal(err)
			}
		}
		open(t, r, 1)
		ip("link", "set", "in0", "down")
		ip("link", "set", "in0", "name", "in1")
		ip("link", "set", "in1", "up")
		ready()
		b.send(t, 1)
		until(t, 5*time.Second, "a packet is forwarded", func() bool { return must(fwd.Count("sent")).Packets == 1 })
		until(t, 5*time.Second, "the attachment has the new name", func() bool {
			all := fwd.Attachments()
			return len(all) == 1 && all[0].Interface == "in1"
		})
		if err := fwd.Detach("in0"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "to in1") {
			t.Errorf("Detach with the old name: %v", err)
		}
		// Moved: the program doesn't go on in a namespace whose devices have other numbers.
		away, err := b.net.Host("away")
		if err != nil {
			t.Fatal(err)
		}
		ns := away.Command(t.Context(), "true").Args[3]
		ip("link", "set", "in1", "netns", ns)
		c.until(t, "fwd in1: the interface is gone")
		before := seen(r)
		if err := away.Run("ip", "link", "set", "in1", "up"); err != nil {
			t.Fatal(err)
		}
		ready()
		b.send(t, 5)
		out, err := away.Command(t.Context(), "tc", "filter", "show", "dev", "in1", "ingress").CombinedOutput()
		if err != nil || strings.Contains(string(out), "fastrelay") {
			t.Errorf("a filter in the other namespace: %v: %s", err, out)
		}
		if n := seen(r) - before; n != 0 {
			t.Errorf("the program saw %d packets", n)
		}
		// Back, under the name that it had last.
		if err := away.Run("ip", "link", "set", "in1", "down"); err != nil {
			t.Fatal(err)
		}
		host := b.host.Command(t.Context(), "true").Args[3]
		if err := away.Run("ip", "link", "set", "in1", "netns", host); err != nil {
			t.Fatal(err)
		}
		c.until(t, "fwd in1: the interface is gone", "fwd in1")
		ip("link", "set", "in1", "up")
		ready()
		b.send(t, 1)
		until(t, 5*time.Second, "a packet is forwarded again", func() bool {
			return must(fwd.Count("sent")).Packets == 2
		})
		// Gone, and another device takes its name.
		ip("link", "del", "in1")
		b.dev, b.there = b.join(t, "temp", "out1")
		ip("link", "set", "temp", "down")
		ip("link", "set", "temp", "name", "in1")
		c.until(t, "fwd in1: the interface is gone", "fwd in1", "fwd in1: the interface is gone", "fwd in1")
	})
}

// What can be done while the interface is away.
func TestWhileInterfaceIsAway(t *testing.T) {
	eachHow(t, func(t *testing.T, clsact bool) {
		b, c := newBench(t), &reported{}
		pins := "/sys/fs/bpf/" + pinName(t)
		r := b.load(t, Options{Clsact: clsact, routes: someHop, AttachmentChanged: c.change, PinPath: pins})
		fwd, out := r.Program("fwd"), r.Program("out")
		ip := func(args ...string) {
			t.Helper()
			if err := b.host.Run("ip", args...); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range []*AnyProgram{fwd, out} {
			if err := p.Attach("in0"); err != nil {
				t.Fatal(err)
			}
		}
		ip("link", "del", "in0")
		lost := []string{"fwd in0: the interface is gone", "out in0: the interface is gone"}
		c.until(t, lost...)
		if err := fwd.Attach("in0"); err == nil || !strings.Contains(err.Error(), "there is no such interface") {
			t.Errorf("attaching to nothing: %v", err)
		}
		// A device without Ethernet is refused, by the program that needs it, and reported.
		ip("tuntap", "add", "dev", "in0", "mode", "tun")
		refused := "fwd in0: its frames have no Ethernet header (none), and the spec's stack begins with one"
		c.until(t, append(lost, refused, "out in0")...)
		ip("link", "del", "in0")
		until(t, 5*time.Second, "it is gone again", func() bool {
			return errors.Is(fwd.Attachments()[0].Lost, errInterfaceGone) &&
				errors.Is(out.Attachments()[0].Lost, errInterfaceGone)
		})
		// Detached while it is away: it doesn't come back.
		if err := out.Detach("in0"); err != nil {
			t.Fatal(err)
		}
		b.join(t, "in0", "out1")
		until(t, 5*time.Second, "one is attached", func() bool { return fwd.Attachments()[0].Lost == nil })
		if got := out.Attachments(); len(got) != 0 {
			t.Errorf("the other one: %v", got)
		}
		// Closed while it is away: nothing is left.
		ip("link", "del", "in0")
		until(t, 5*time.Second, "it is lost", func() bool { return fwd.Attachments()[0].Lost != nil })
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		b.join(t, "in0", "out2")
		if q := b.tc(t, "qdisc", "in0"); strings.Contains(q, "clsact") {
			t.Errorf("attached by a relay that is closed: %s", q)
		}
	})
}

// Next hops through a device that is deleted lead nowhere; when it is there again, with its addresses, they lead
// through the new one.
func TestHopsThroughInterface(t *testing.T) {
	b := newBench(t)
	r := b.load(t, Options{})
	far := netip.MustParseAddr("203.0.113.9")
	mac := [6]byte{2, 0, 0, 0, 0, 9}
	set := func() {
		t.Helper()
		if err := errors.Join(b.dev.AddAddr("192.0.2.1/24"), b.dev.AddRoute("0.0.0.0/0", "192.0.2.2"),
			b.dev.AddNeighbour(netip.MustParseAddr("192.0.2.2"), mac[:])); err != nil {
			t.Fatal(err)
		}
	}
	set()
	if err := r.Program("fwd").Attach("in0"); err != nil {
		t.Fatal(err)
	}
	s := open(t, r, 1)
	hop := func() Hop {
		value, err := s.rows[0].table.m.LookupBytes(s.rows[0].key)
		if err != nil {
			t.Fatal(err)
		}
		h := getHop(value[36:])
		return h
	}
	if s.Values()[4].(netip.AddrPort).Addr() != far {
		t.Fatal("another peer")
	}
	for round := range 2 {
		until(t, 5*time.Second, "the next hop is through the device", func() bool {
			h := hop()
			return h.State == HopDirect && h.Ifindex == b.dev.Index && h.Dst == mac && h.Src == [6]byte(b.dev.MAC)
		})
		if err := b.host.Run("ip", "link", "del", "in0"); err != nil {
			t.Fatal(err)
		}
		until(t, 5*time.Second, "there is no next hop", func() bool { return hop().State == HopNone })
		b.dev, b.there = b.join(t, "in0", fmt.Sprint("out", round+1))
		set()
	}
	until(t, 5*time.Second, "the next hop is through the new device", func() bool {
		return hop().Ifindex == b.dev.Index && hop().State == HopDirect
	})
	b.send(t, 1)
	until(t, 5*time.Second, "a packet is forwarded", func() bool { return must(s.Counters())[0].Packets == 1 })
}

// Bridges announce that a port has left them as if a device were deleted; what is lost is looked for where
// announcements were.
func TestAnnouncements(t *testing.T) {
	b, c := newBench(t), &reported{}
	r := b.load(t, Options{routes: someHop, AttachmentChanged: c.change})
	if err := r.Program("fwd").Attach("in0"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.host.Run("ip", "link", "add", "br0", "type", "bridge"),
		b.host.Run("ip", "link", "set", "in0", "master", "br0"),
		b.host.Run("ip", "link", "set", "in0", "nomaster")); err != nil {
		t.Fatal(err)
	}
	// More than a socket can hold: devices come and go while the reader can't read, ours among them.
	if err := unix.SetsockoptInt(r.interfaces.events.GetFd(), unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	err := func() error {
		defer r.mu.Unlock()
		for range 20 {
			if err := b.host.Run("sh", "-c", "ip link set br0 up; ip link set br0 down"); err != nil {
				return err
			}
		}
		return b.host.Run("ip", "link", "del", "in0")
	}()
	if err != nil {
		t.Fatal(err)
	}
	until(t, 5*time.Second, "it is lost", func() bool { return r.Program("fwd").Attachments()[0].Lost != nil })
	b.dev, b.there = b.join(t, "in0", "out1")
	until(t, 5*time.Second, "it is attached again", func() bool {
		return r.Program("fwd").Attachments()[0].Index == b.dev.Index
	})
	c.until(t, "fwd in0: the interface is gone", "fwd in0")
}

// A relay that is closed by its own callback, which Close doesn't wait for.
func TestCloseWhenInterfaceGoes(t *testing.T) {
	b, closed := newBench(t), make(chan error, 1)
	var r *Relay
	loaded := make(chan struct{})
	r = b.load(t, Options{routes: someHop, AttachmentChanged: func(_ string, now Attachment) {
		<-loaded
		closed <- errors.Join(now.Lost, r.Close())
	}})
	close(loaded)
	if err := r.Program("fwd").Attach("in0"); err != nil {
		t.Fatal(err)
	}
	if err := b.host.Run("ip", "link", "del", "in0"); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "the relay is closed", closed); err == nil || err.Error() != errInterfaceGone.Error() {
		t.Errorf("closed with %v", err)
	}
}
