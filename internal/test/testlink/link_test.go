package testlink

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"math"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

var (
	addrA = map[int]netip.Addr{4: netip.MustParseAddr("192.0.2.1"), 6: netip.MustParseAddr("2001:db8::1")}
	addrB = map[int]netip.Addr{4: netip.MustParseAddr("192.0.2.2"), 6: netip.MustParseAddr("2001:db8::2")}
)

func start(t testing.TB, c Config) *Link {
	t.Helper()
	needs.Root(t)
	n := testnet.Start(t)
	a, errA := n.Host("a")
	b, errB := n.Host("b")
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	l := Start(t, n, a, "eth0", b, "eth0", c)
	addAddrs(t, l)
	return l
}

func addAddrs(t testing.TB, l *Link) {
	t.Helper()
	err := errors.Join(l.A.AddAddr("192.0.2.1/24"), l.A.AddAddr("2001:db8::1/64"),
		l.B.AddAddr("192.0.2.2/24"), l.B.AddAddr("2001:db8::2/64"))
	if err != nil {
		t.Fatal(err)
	}
}

// addNeighbours makes resolution unnecessary: meanwhile, the kernel keeps fewer than a hundred packets.
func addNeighbours(t testing.TB, l *Link) {
	t.Helper()
	err := errors.Join(l.A.AddNeighbour(addrB[4], l.B.MAC), l.B.AddNeighbour(addrA[4], l.A.MAC))
	if err != nil {
		t.Fatal(err)
	}
}

// listenUDP opens a socket with much space, on which the kernel says when a datagram came.
func listenUDP(t testing.TB, d *testnet.Dev, addr netip.Addr) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	err := d.Host.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	raw, err := conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketSpace))
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// arrival is a datagram that arrived: its number, when it was sent, and when the kernel had it.
type arrival struct {
	n        int
	sent, at time.Time
}

// send sends numbered datagrams at a rate, from one processor: sent from several, they may overtake each other.
func send(from, to *net.UDPConn, count int, rate float64, size int) error {
	done := make(chan error, 1)
	go func() {
		if err := stay(); err != nil { // and the thread ends with its goroutine
			done <- err
			return
		}
		done <- sendHere(from, to, count, rate, size)
	}()
	return <-done
}

func sendHere(from, to *net.UDPConn, count int, rate float64, size int) error {
	payload, dest, begin := make([]byte, size), to.LocalAddr().(*net.UDPAddr).AddrPort(), time.Now()
	tick := time.NewTicker(100 * time.Microsecond)
	defer tick.Stop()
	for n := 0; n < count; <-tick.C {
		// What is late is sent in parts: the kernel's queues have no room for a second's datagrams at once.
		for part := 0; part < batch && n < count && float64(n) <= rate*time.Since(begin).Seconds(); part++ {
			binary.LittleEndian.PutUint32(payload, uint32(n))
			binary.LittleEndian.PutUint64(payload[4:], uint64(time.Now().UnixNano()))
			if _, err := from.WriteToUDPAddrPort(payload, dest); err != nil {
				return err
			}
			n++
		}
	}
	return nil
}

// receive returns the first datagrams that arrive: count of them, or fewer if nothing comes for a long time.
func receive(to *net.UDPConn, count int, patience time.Duration) (all []arrival, err error) {
	buf, oob := make([]byte, 2048), make([]byte, unix.CmsgSpace(int(unsafe.Sizeof(unix.Timespec{}))))
	for len(all) < count {
		if err := to.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return nil, err
		}
		n, oobn, _, _, err := to.ReadMsgUDPAddrPort(buf, oob)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if n < 12 || oobn < unix.CmsgSpace(16) {
			return nil, errors.New("a datagram that isn't the test's, or without a time stamp")
		}
		stamp := (*unix.Timespec)(unsafe.Pointer(&oob[unix.CmsgLen(0)]))
		all = append(all, arrival{
			n: int(binary.LittleEndian.Uint32(buf)), at: time.Unix(stamp.Unix()),
			sent: time.Unix(0, int64(binary.LittleEndian.Uint64(buf[4:]))),
		})
	}
	return all, nil
}

// stream sends datagrams and returns those that arrive, want of them; it fails if more come.
func stream(t testing.TB, from, to *net.UDPConn, count, want int, rate float64, size int) []arrival {
	t.Helper()
	sent := make(chan error, 1)
	go func() { sent <- send(from, to, count, rate, size) }()
	got, err := receive(to, want, time.Minute)
	if err := errors.Join(err, <-sent); err != nil {
		t.Error(err)
		return nil
	}
	more, err := receive(to, 1, 20*time.Millisecond)
	if err != nil || len(got) != want || len(more) > 0 {
		t.Errorf("%d datagrams arrived, and %d more, not %d: %v", len(got), len(more), want, err)
	}
	return got
}

func stats(t testing.TB, l *Link) Stats {
	t.Helper()
	s, err := l.Stats()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]Counters{"A": s.FromA, "B": s.FromB} {
		if c.Received+c.Duplicated != c.Lost+c.LostInBursts+c.Sent+c.Refused+c.Waiting {
			t.Errorf("the counters from %s don't add up: %+v", name, c)
		}
	}
	return s
}

// A link that does nothing is a cable: neighbours are found, datagrams arrive in their order.
func TestCable(t *testing.T) {
	l := start(t, Config{})
	for _, family := range []int{4, 6} {
		a, b := listenUDP(t, l.A, addrA[family]), listenUDP(t, l.B, addrB[family])
		for _, way := range [][2]*net.UDPConn{{a, b}, {b, a}} {
			stream(t, way[0], way[1], 1, 1, 1000, 1000)
			for i, got := range stream(t, way[0], way[1], 100, 100, 1000, 1000) {
				if got.n != i {
					t.Fatalf("IPv%d: datagram %d came in the place of %d", family, got.n, i)
				}
			}
		}
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	s := stats(t, l)
	for _, c := range []Counters{s.FromA, s.FromB} {
		if c.Received-c.Other != 202 || c.Sent+c.Waiting != c.Received || c.Waiting > c.Other || c.Other == 0 {
			t.Errorf("202 datagrams were sent each way, and neighbours resolved: %v, %d others", c, c.Other)
		}
	}
}

// No packet comes before its delay, in each direction. The link calls late what it knows to be late, and no other.
func TestDelay(t *testing.T) {
	want := []time.Duration{20 * time.Millisecond, 3500 * time.Microsecond}
	l := start(t, Config{FromA: Direction{Delay: want[0]}, FromB: Direction{Delay: want[1]}})
	a, b := listenUDP(t, l.A, addrA[4]), listenUDP(t, l.B, addrB[4])
	const count, clocks = 1000, 20 * time.Microsecond // clocks of two processors differ a little
	for i, way := range [][2]*net.UDPConn{{a, b}, {b, a}} {
		stream(t, way[0], way[1], 100, 100, 1000, 100) // the kernel turns its time stamps on, neighbours are resolved
		before := stats(t, l)
		least, over := time.Duration(math.MaxInt64), uint64(0)
		for _, got := range stream(t, way[0], way[1], count, count, 1000, 100) {
			wrong := got.at.Sub(got.sent) - want[i]
			if least = min(least, wrong); wrong > lateness-clocks {
				over++
			}
		}
		after := stats(t, l)
		late := after.FromA.Late + after.FromB.Late - before.FromA.Late - before.FromB.Late
		other := after.FromA.Other + after.FromB.Other - before.FromA.Other - before.FromB.Other
		if least < -clocks {
			t.Errorf("a delay of %v is %v too short", want[i], -least)
		}
		if late > over+other {
			t.Errorf("%d packets were late, and the link says %d", over, late)
		}
	}
}

// Frames leave in their order, each as soon as its time has come, not before; those that the link was late for are
// counted, and it wakes for the next one. The clock is the test's.
func TestTimes(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	const delay, hold = 20 * time.Millisecond, 100 * time.Millisecond
	clock := time.Duration(0)
	c := &carrier{out: newSocket(fds[0]), hold: hold, now: func() time.Duration { return clock }}
	type leaving struct {
		n   uint32
		due time.Duration
	}
	var want []leaving // what is on its way
	late, space := uint64(0), make([]byte, 16)
	rnd := mathrand.New(mathrand.NewPCG(needs.Seed(t), 0))
	for n := uint32(0); n < 20_000 || len(want) > 0; {
		for range rnd.IntN(4) {
			if n >= 20_000 {
				break
			}
			// Time stamps of several processors differ: a frame is never due before the one that came earlier.
			due := clock + delay - time.Duration(rnd.IntN(30))*time.Microsecond
			c.meet(&frame{data: binary.LittleEndian.AppendUint32(nil, n), due: due}, Fate{})
			if len(want) > 0 {
				due = max(due, want[len(want)-1].due)
			}
			want, n = append(want, leaving{n, due}), n+1
		}
		next := c.leave()
		for len(want) > 0 && want[0].due <= clock {
			size, err := unix.Read(fds[1], space)
			if err != nil || size != 4 || binary.LittleEndian.Uint32(space) != want[0].n {
				t.Fatalf("frame %d leaves in the place of %v: %v", binary.LittleEndian.Uint32(space), want[0], err)
			}
			if clock-want[0].due > lateness {
				late++
			}
			want = want[1:]
		}
		if wake := never; len(want) > 0 && next != want[0].due || len(want) == 0 && next != wake {
			t.Fatalf("at %v the link sleeps until %v, and these are on their way: %v", clock, next, want)
		}
		if _, _, err := unix.Recvfrom(fds[1], space, unix.MSG_DONTWAIT); err != unix.EAGAIN {
			t.Fatalf("at %v a frame leaves before its time: %v", clock, err)
		}
		if rnd.IntN(8) == 0 && next != never {
			clock = next + time.Duration(rnd.IntN(2))*time.Duration(rnd.IntN(int(2*lateness)))
		} else {
			clock += time.Duration(rnd.IntN(int(2 * time.Millisecond)))
		}
	}
	if c.counters.Late != late || late == 0 || c.counters.Sent != 20_000 {
		t.Errorf("%d frames were late: %+v", late, c.counters)
	}

	// What is held back goes when others have overtaken it, and otherwise when it has waited for long enough.
	clock = 0
	for n, overtaken := range []int{2, 0, 0, 5} {
		c.meet(&frame{data: make([]byte, 4), due: clock + time.Duration(n)}, Fate{Overtaken: overtaken})
	}
	clock = 3
	if next := c.leave(); next != 3+hold || c.counters.Sent != 20_003 {
		t.Errorf("the link sleeps until %v: %+v", next, c.counters)
	}
	clock = 3 + hold - 1
	c.release()
	if c.leave(); c.counters.Sent != 20_003 || c.counters.Alone != 0 {
		t.Errorf("a frame that is held back left too early: %+v", c.counters)
	}
	clock++
	c.release()
	if next := c.leave(); next != never || c.counters.Sent != 20_004 || c.counters.Alone != 1 {
		t.Errorf("a frame that is held back has not left: %+v", c.counters)
	}
}

// expect returns the numbers of the datagrams that arrive, in their order: those that aren't lost, some twice, some
// after later ones. It knows of the last ones that too few follow; alone is how many these are.
func expect(fates *Fates, count int) (order []int, lost, alone int) {
	type copy struct{ n, after int }
	var copies []copy
	for n := range count {
		f := fates.Next()
		if f.Lost || f.InBurst {
			lost++
			continue
		}
		// A packet comes right after the one that is the last to overtake it.
		c := copy{n, n + f.Overtaken}
		copies = append(copies, c)
		if f.Twice {
			copies = append(copies, c)
		}
	}
	// At the end too few follow: what is held back comes last.
	slices.SortStableFunc(copies, func(a, b copy) int {
		if a, b := min(a.after, count), min(b.after, count); a != b {
			return a - b
		}
		// of two that wait for one packet, it goes first
		return btoi(a.after != a.n) - btoi(b.after != b.n)
	})
	for _, c := range copies {
		order = append(order, c.n)
		if c.after >= count {
			alone++
		}
	}
	return order, lost, alone
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Exactly the packets are lost, duplicated and reordered that the seed names, in both directions at the same time; the
// shares are those asked for, within 0.2 points, and all counters agree. What is held back waits long enough for a
// sender that is stopped for a while.
func TestFatesOnTheLink(t *testing.T) {
	const count, rate = 50_000, 24_000
	c := Config{
		FromA: Direction{Delay: 10 * time.Millisecond, Loss: 0.05, Duplicates: 0.02},
		FromB: Direction{
			Delay: 5 * time.Millisecond, Bursts: Bursts{Loss: 0.03, Length: 4}, Duplicates: 0.01,
			Reordering: Reordering{Share: 0.05, By: 3, Hold: time.Minute},
		},
	}
	// With this seed none of the last packets is held back: it would wait for others in vain.
	for c.Seed = 20; ; c.Seed++ {
		_, fates := c.Fates()
		if _, _, alone := expect(fates, count); alone == 0 {
			break
		}
	}
	l := start(t, c)
	addNeighbours(t, l)
	a, b := listenUDP(t, l.A, addrA[4]), listenUDP(t, l.B, addrB[4])
	fates := [2]*Fates{}
	fates[0], fates[1] = c.Fates()
	done := make(chan func(), 2)
	for i, way := range [][2]*net.UDPConn{{a, b}, {b, a}} {
		want, lost, _ := expect(fates[i], count)
		go func() {
			got := stream(t, way[0], way[1], count, len(want), rate, 200)
			done <- func() {
				if len(got) != len(want) {
					return
				}
				for j := range got {
					if got[j].n != want[j] {
						t.Errorf("direction %d: datagram %d came in the place of %d", i, got[j].n, want[j])
						break
					}
				}
				t.Logf("direction %d: %d of %d lost", i, lost, count)
			}
		}()
	}
	(<-done)()
	(<-done)()
	s := stats(t, l)
	if n := s.FromA.Alone + s.FromB.Alone; n != 0 {
		t.Errorf("%d packets left alone", n)
	}
	for _, share := range []struct {
		name string
		got  uint64
		of   uint64
		want float64
	}{
		{"lost", s.FromA.Lost, count, c.FromA.Loss},
		{"lost in bursts", s.FromB.LostInBursts, count, c.FromB.Bursts.Loss},
		{"duplicated", s.FromA.Duplicated, count - s.FromA.Lost, c.FromA.Duplicates},
		{"reordered", s.FromB.Reordered, count - s.FromB.LostInBursts, c.FromB.Reordering.Share},
	} {
		got := float64(share.got) / float64(share.of)
		t.Logf("%s: %.4f of packets, asked for %.4f", share.name, got, share.want)
		if math.Abs(got-share.want) > 0.002 {
			t.Errorf("%s: %.4f of packets, not %.4f", share.name, got, share.want)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// What is held back doesn't wait forever for packets that don't come.
func TestHeldBackAlone(t *testing.T) {
	l := start(t, Config{FromA: Direction{Reordering: Reordering{Share: 1, By: 5}}})
	a, b := listenUDP(t, l.A, addrA[4]), listenUDP(t, l.B, addrB[4])
	got := stream(t, a, b, 1, 1, 1000, 100)
	if len(got) == 1 && got[0].at.Sub(got[0].sent) < holdLimit-time.Millisecond {
		t.Errorf("a packet that others have to overtake left after %v", got[0].at.Sub(got[0].sent))
	}
	if alone := stats(t, l).FromA.Alone; alone != 1 {
		t.Errorf("%d packets left alone, not one", alone)
	}
}

// A rate is the kernel's: what its queue has no room for is refused, and counted; all else arrives, and never faster
// than the rate. How near it comes to the rate is measured (BenchmarkRatios).
func TestRate(t *testing.T) {
	const rate, queue, count = 1_600_000, 100_000, 2000 // 1,000 bytes with headers, so 200 a second, and 100 wait
	l := start(t, Config{FromA: Direction{Rate: rate, Queue: queue}})
	addNeighbours(t, l)
	a, b := listenUDP(t, l.A, addrA[4]), listenUDP(t, l.B, addrB[4])
	began := time.Now()
	if err := send(a, b, count, math.Inf(1), 958); err != nil {
		t.Fatal(err)
	}
	var c Counters
	if err := testnet.Until(time.Minute, "the link has had all datagrams", func() bool {
		c = stats(t, l).FromA
		return c.Received-c.Other == count && c.Waiting == 0
	}); err != nil {
		t.Fatal(err)
	}
	got, err := receive(b, int(c.Sent-c.Other), time.Minute)
	if err != nil || len(got) != int(c.Sent-c.Other) || c.Refused == 0 {
		t.Fatalf("%d datagrams came: %v, %d others, %v", len(got), c, c.Other, err)
	}
	const burst = rate / 8 / 100 // SetRate's
	took := got[len(got)-1].at.Sub(began)
	if most := burst + rate/8*took.Seconds(); float64(1000*len(got)) > most {
		t.Errorf("%d datagrams came in %v, want at most %.0f", len(got), took, most/1000)
	}
}

// Checksums that were partial stay so, and are right; complete ones stay complete. So do VLAN tags in the metadata.
func TestMetadata(t *testing.T) {
	l := start(t, Config{})
	for _, partial := range []bool{true, false} {
		if err := offloads.TxChecksum(l.A, partial); err != nil {
			t.Fatal(err)
		}
		capture, err := l.B.Capture()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range []int{4, 6} {
			stream(t, listenUDP(t, l.A, addrA[family]), listenUDP(t, l.B, addrB[family]), 10, 10, 1000, 501)
		}
		var frames []testnet.Frame
		if err := testnet.Until(2*time.Second, "the datagrams captured", func() bool {
			frames = nil
			for _, f := range capture.Frames() {
				if _, _, ok := dissect.UDP(f); ok && !f.Outgoing {
					frames = append(frames, f)
				}
			}
			return len(frames) == 20
		}); err != nil {
			t.Fatal(err)
		}
		for _, f := range frames {
			if err := dissect.Check(f); err != nil || f.Partial != partial {
				t.Errorf("sent with partial %v, arrives with %v: %v", partial, f.Partial, err)
			}
		}
		if !partial {
			if err := dissect.Tshark(frames); err != nil {
				t.Error(err)
			}
		}
		if _, err := capture.Stop(); err != nil {
			t.Error(err)
		}
	}

	capture, err := l.B.Capture()
	if err != nil {
		t.Fatal(err)
	}
	frame := append(append(append([]byte{}, l.B.MAC...), l.A.MAC...), 0x88, 0xa8, 0x20, 0x07, 0x08, 0x00)
	frame = append(frame, make([]byte, 46)...)
	if err := l.A.Inject(frame); err != nil {
		t.Fatal(err)
	}
	err = testnet.Until(2*time.Second, "the tag in the metadata", func() bool {
		return slices.ContainsFunc(capture.Frames(), func(f testnet.Frame) bool {
			return f.VLAN != nil && *f.VLAN == testnet.Tag{Proto: 0x88a8, TCI: 0x2007} &&
				bytes.Equal(f.Data, append(frame[:12:12], frame[16:]...))
		})
	})
	if _, stopped := capture.Stop(); err != nil || stopped != nil {
		t.Error(err, stopped)
	}
}

// The sender's kernel segments what it sends. If that is turned off, GSO packets cross the link whole.
func TestSegmentation(t *testing.T) {
	l := start(t, Config{FromA: Direction{Delay: time.Millisecond}})
	a, b := listenUDP(t, l.A, addrA[4]), listenUDP(t, l.B, addrB[4])
	stream(t, a, b, 1, 1, 1000, 100)
	const segments, size = 20, 1200
	for _, whole := range []bool{false, true} {
		if err := errors.Join(offloads.Segmentation(l.A, whole), offloads.Segmentation(l.B, whole)); err != nil {
			t.Fatal(err)
		}
		before := stats(t, l).FromA
		payload := make([]byte, segments*size)
		for i := range segments {
			binary.LittleEndian.PutUint32(payload[i*size:], uint32(i))
		}
		control := make([]byte, unix.CmsgSpace(2))
		header := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
		header.Level, header.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
		header.SetLen(unix.CmsgLen(2))
		binary.NativeEndian.PutUint16(control[unix.CmsgLen(0):], size)
		if _, _, err := a.WriteMsgUDP(payload, control, b.LocalAddr().(*net.UDPAddr)); err != nil {
			t.Fatal(err)
		}
		got, err := receive(b, segments, time.Minute)
		if err != nil || len(got) != segments {
			t.Fatalf("whole %v: %d of %d datagrams arrived: %v", whole, len(got), segments, err)
		}
		for i := range got {
			if got[i].n != i {
				t.Errorf("whole %v: datagram %d came in the place of %d", whole, got[i].n, i)
			}
		}
		after := stats(t, l).FromA
		received, gso := after.Received-after.Other-before.Received+before.Other, after.GSO-before.GSO
		if whole && (received != 1 || gso != 1) || !whole && (received != segments || gso != 0) {
			t.Errorf("whole %v: the link had %d packets, %d of them GSO packets", whole, received, gso)
		}
		tcp(t, l)
		if n := stats(t, l).FromA.GSO - after.GSO; whole != (n > 0) {
			t.Errorf("whole %v: TCP sent %d GSO packets", whole, n)
		}
	}
}

// tcp sends a megabyte from A to B.
func tcp(t *testing.T, l *Link) {
	t.Helper()
	var listener net.Listener
	err := l.B.Host.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(addrB[6], 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	data := make([]byte, 1<<20)
	_, _ = rand.Read(data)
	failed := make(chan error, 1)
	go func() {
		failed <- l.A.Host.Do(func() error {
			conn, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				return err
			}
			_, err = conn.Write(data)
			return errors.Join(err, conn.Close())
		})
	}()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got, err := io.ReadAll(conn)
	if err := errors.Join(err, <-failed); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d of %d bytes arrived over TCP: %v", len(got), len(data), err)
	}
}

// A device that is down refuses frames, and the link goes on when it is up again.
func TestDown(t *testing.T) {
	l := start(t, Config{})
	addNeighbours(t, l)
	a, b := listenUDP(t, l.A, addrA[4]), listenUDP(t, l.B, addrB[4])
	stream(t, a, b, 10, 10, 1000, 100)
	if err := l.B.SetUp(false); err != nil {
		t.Fatal(err)
	}
	if err := send(a, b, 10, 1000, 100); err != nil {
		t.Fatal(err)
	}
	if err := testnet.Until(time.Second, "ten frames received", func() bool {
		c := stats(t, l).FromA
		return c.Received-c.Other == 20
	}); err != nil {
		t.Error(err)
	}
	if err := l.B.SetUp(true); err != nil {
		t.Fatal(err)
	}
	addNeighbours(t, l)
	// The kernel turns the queues of both devices on a little later.
	if err := testnet.Until(2*time.Second, "the link carries again", func() bool {
		err := errors.Join(send(a, b, 1, 1000, 100), send(b, a, 1, 1000, 100))
		toB, errB := receive(b, 1, 20*time.Millisecond)
		toA, errA := receive(a, 1, 20*time.Millisecond)
		if err := errors.Join(err, errA, errB); err != nil {
			t.Error(err)
		}
		return len(toA) == 1 && len(toB) == 1 || t.Failed()
	}); err != nil {
		t.Error(err)
	}
}

// Frames on their way when the link ends are counted, and a link whose process was killed says so.
func TestEnd(t *testing.T) {
	l := start(t, Config{FromA: Direction{Delay: time.Minute}})
	addNeighbours(t, l)
	a, b := listenUDP(t, l.A, addrA[4]), listenUDP(t, l.B, addrB[4])
	if err := send(a, b, 10, 1000, 100); err != nil {
		t.Fatal(err)
	}
	if err := testnet.Until(time.Second, "ten frames waiting", func() bool {
		c := stats(t, l).FromA
		return c.Waiting == 10+c.Other
	}); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if c := stats(t, l).FromA; c.Waiting != 10+c.Other {
		t.Errorf("ten frames were waiting at the end: %+v", c)
	}

	n := testnet.Start(t)
	hostA, errA := n.Host("a")
	hostB, errB := n.Host("b")
	killed, err := Join(n, hostA, "eth0", hostB, "eth0", Config{})
	if err := errors.Join(errA, errB, err); err != nil {
		t.Fatal(err)
	}
	if err := killed.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := testnet.Until(time.Second, "the process ended", func() bool {
		_, err := killed.Stats()
		return err != nil
	}); err != nil {
		t.Error(err)
	}
	if err := killed.Close(); err == nil {
		t.Error("a link whose process was killed closes without an error")
	}
}

// Tests that can't be set up fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
