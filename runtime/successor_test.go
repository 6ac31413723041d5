package runtime

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/mapmem"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
)

// manyFlows is how many sessions the relay has that is taken over under load.
const manyFlows = 64_000

// manyDefines make of the relay of the tests one that has many sessions, and sends their packets back to where they
// came from.
var manyDefines = []string{"FLOWS=65536", "REFLECT"}

func manyDesc() *abi.Desc {
	d := flowDesc()
	d.Tables[0].Size, d.Tables[1].Size, d.Sessions[0].Size, d.Slots = 65536, 65536, 65536, 65536
	return d
}

// manyFlow returns the values of a session; each has a client and a peer of its own.
func manyFlow(n int) []any {
	addr := func(net byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, net, byte(n >> 8), byte(n)}), 40000)
	}
	server, relayed := netip.MustParseAddrPort("192.0.2.1:3478"), netip.MustParseAddrPort("192.0.2.1:50000")
	return []any{addr(1), server, 0x4000, relayed, addr(2)}
}

// manyPacket is what the client of manyFlow(n) sends. Its payload has room for a number, at numberAt.
func manyPacket(n int) []byte {
	b := packet(0)
	copy(b[26:], []byte{10, 1, byte(n >> 8), byte(n)})
	return b
}

const numberAt = 44

// stream sends numbered packets of all flows, and notes which come back.
type stream struct {
	b        *bench
	stop     chan struct{}
	stopped  chan error
	received int   // the socket that packets come back to
	overflow int64 // what didn't fit into its buffer
	sent     atomic.Int64
	at       []atomic.Int64 // when each was sent, in Unix nanoseconds
	back     []atomic.Bool
}

// newStream sends 50,000 packets a second, or as many as the machine can.
func newStream(t *testing.T, b *bench) *stream {
	t.Helper()
	const room = 60 * 50_000
	s := &stream{b: b, stop: make(chan struct{}), stopped: make(chan error, 2)}
	s.at, s.back = make([]atomic.Int64, room), make([]atomic.Bool, room)
	var err error
	if s.received, err = b.there.PacketSocket(unix.ETH_P_IP,
		namespace.Option(unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20), func(fd int) error {
			return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000})
		}); err != nil {
		t.Fatal(err)
	}
	go s.send()
	go s.receive()
	return s
}

// send stays on one processor: each has a queue of its own for what a veth device is sent, so packets that are sent on
// two may overtake each other.
func (s *stream) send() {
	goruntime.LockOSThread() // for good: the thread ends with the goroutine
	if err := onOneProcessor(); err != nil {
		s.stopped <- err
		return
	}
	packets := make([][]byte, manyFlows)
	for n := range packets {
		packets[n] = manyPacket(n)
	}
	to := &unix.SockaddrLinklayer{Ifindex: s.b.there.Index, Protocol: 8}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			s.stopped <- nil
			return
		case <-tick.C:
		}
		for range 50 {
			n := s.sent.Load()
			if n == int64(len(s.at)) {
				s.stopped <- errors.New("it went on for too long")
				return
			}
			p := packets[n%manyFlows]
			binary.LittleEndian.PutUint64(p[numberAt:], uint64(n))
			s.at[n].Store(time.Now().UnixNano())
			if err := unix.Sendto(s.b.sock, p, 0, to); err != nil {
				s.stopped <- err
				return
			}
			s.sent.Add(1)
		}
	}
}

// onOneProcessor keeps the calling thread on one of the processors that it may use.
func onOneProcessor() error {
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return err
	}
	for cpu := 0; ; cpu++ {
		if may.IsSet(cpu) {
			one.Set(cpu)
			return unix.SchedSetaffinity(0, &one)
		}
	}
}

func (s *stream) receive() {
	buf := make([]byte, 2048)
	for {
		n, _, err := unix.Recvfrom(s.received, buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			select {
			case <-s.stop:
				s.stopped <- nil
				return
			default:
			}
		case err != nil && !errors.Is(err, unix.EINTR):
			s.stopped <- err
			return
		case n >= numberAt+8:
			if i := binary.LittleEndian.Uint64(buf[numberAt:]); i < uint64(len(s.back)) {
				s.back[i].Store(true)
			}
		}
	}
}

// settled waits until a packet that is sent from now on has come back, and returns its number: packets stay in order,
// so all before it have come back, or never will.
func (s *stream) settled(t *testing.T) (n int64) {
	t.Helper()
	from := s.sent.Load()
	until(t, 20*time.Second, "packets come back", func() bool {
		for n = from; n < s.sent.Load(); n++ {
			if s.back[n].Load() {
				return true
			}
		}
		return false
	})
	return n
}

// lost returns how many packets of those numbers have not come back.
func (s *stream) lost(from, to int64) (n int64) {
	for i := from; i < to; i++ {
		if !s.back[i].Load() {
			n++
		}
	}
	return n
}

// dropped returns how many packets found no room in the queues of this machine's processors, or in the socket's buffer.
func (s *stream) dropped(t *testing.T) (n int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/net/softnet_stat") // for each processor: processed, dropped, …
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var processed, dropped int64
		if _, err := fmt.Sscanf(line, "%x %x", &processed, &dropped); err != nil {
			t.Fatal(err)
		}
		n += dropped
	}
	stats, err := unix.GetsockoptTpacketStats(s.received, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		t.Fatal(err)
	}
	s.overflow += int64(stats.Drops) // since it was asked last
	return n + s.overflow
}

func (s *stream) end(t *testing.T) {
	close(s.stop)
	for range 2 {
		if err := <-s.stopped; err != nil {
			t.Error(err)
		}
	}
	unix.Close(s.received)
}

// server is a process that serves the relay with many sessions.
type server struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	took time.Duration // from its first statement until it served
}

// serveMany starts one; ready waits for it.
func (b *bench) serveMany(t *testing.T, env ...string) *server {
	t.Helper()
	s := &server{}
	if err := b.host.Do(func() (err error) {
		s.cmd = childCommand(t, "many", env...)
		s.cmd.Stderr = os.Stderr
		if s.in, err = s.cmd.StdinPipe(); err != nil {
			return err
		}
		out, err := s.cmd.StdoutPipe()
		if err != nil {
			return err
		}
		s.out = bufio.NewReader(out)
		return s.cmd.Start()
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.in.Close()
		s.cmd.Process.Kill()
		s.cmd.Wait()
	})
	return s
}

func (s *server) ready(t *testing.T) {
	t.Helper()
	line, err := s.out.ReadString('\n')
	var took int64
	if n, _ := fmt.Sscanf(line, "ready %d\n", &took); err != nil || n != 1 {
		t.Fatalf("the server said %q, %v", line, err)
	}
	s.took = time.Duration(took) * time.Microsecond
}

// A relay with 64,000 sessions is taken over while 50,000 packets a second flow: after its process was killed, after
// it was killed and no successor came before the lease had lapsed, and after it was closed with Linger. Packets carry
// numbers; those that don't come back were lost.
func TestSuccessorLosesNothing(t *testing.T) {
	b := newBench(t)
	if err := errors.Join(b.dev.AddAddr("192.0.2.1/24"), b.dev.AddRoute("0.0.0.0/0", "192.0.2.2"),
		b.dev.AddNeighbour(netip.MustParseAddr("192.0.2.2"), b.there.MAC)); err != nil {
		t.Fatal(err)
	}
	pins := "/sys/fs/bpf/" + pinName(t)
	env := []string{"PINS=" + pins, "DEV=in0"}
	now := b.serveMany(t, env...)
	now.ready(t)
	t.Logf("opened %d sessions in %v", manyFlows, now.took)
	flow := newStream(t, b)
	defer flow.end(t)
	from := flow.settled(t)
	noise := flow.dropped(t)
	// takeOver ends the server as asked, starts another, and returns how many packets that cost. What
	// queues of the kernel dropped was no loss of the relay.
	takeOver := func(name string, end func(*server)) int64 {
		t.Helper()
		old := now
		end(old)
		now = b.serveMany(t, env...)
		now.ready(t)
		old.cmd.Wait()
		to := flow.settled(t)
		lost := flow.lost(from, to)
		rate := float64(to-from) / time.Duration(flow.at[to].Load()-flow.at[from].Load()).Seconds()
		dropped := flow.dropped(t)
		t.Logf("%s: %d of %d packets lost at %.0f a second; %d dropped in queues; the successor served after %v", name,
			lost, to-from, rate, dropped-noise, now.took)
		lost = max(0, lost-(dropped-noise))
		from, noise = to, dropped
		return lost
	}
	for range 2 {
		if lost := takeOver("killed", func(s *server) { s.cmd.Process.Kill() }); lost > 0 {
			t.Errorf("%d packets were lost", lost)
		}
	}
	if takeOver("killed, and no successor came before the lease lapsed", func(s *server) {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		lease := pinnedLease(t, pins)
		lease.Store64(0, abi.LeaseDeadline, lease.Load64(0, abi.LeaseNow))
		at := flow.sent.Load()
		until(t, 5*time.Second, "the lease lapses", func() bool {
			n := flow.sent.Load() - 1
			return n > at+2000 && !flow.back[n-1000].Load()
		})
	}) == 0 {
		t.Error("nothing was lost, though the lease had lapsed")
	}
	if lost := takeOver("closed with Linger", func(s *server) { s.in.Close() }); lost > 0 {
		t.Errorf("%d packets were lost", lost)
	}
	kill(t, now.cmd)
	var last *Relay
	if err := b.host.Do(func() (err error) {
		last, err = Load(manyDesc(), build(t, manyDefines...), quiet(Options{PinPath: pins}))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := last.Close(); err != nil {
		t.Error(err)
	}
}

func pinnedLease(t *testing.T, pins string) *mapmem.Array {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(pins, "live", abi.MapLease), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	mem, err := mapmem.Map(m)
	if err != nil {
		t.Fatal(err)
	}
	return mem
}

// A successor renews the lease before it looks at what was registered, however much that is: packets flow meanwhile.
func TestLeaseComesFirst(t *testing.T) {
	pins := "/sys/fs/bpf/" + pinName(t)
	// A next hop that isn't known is looked for when the session is read.
	none := func(_, _ netip.Addr) Hop { return Hop{} }
	r := load(t, Options{PinPath: pins, Linger: 30 * time.Second, routes: none})
	open(t, r, 1)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	lease := pinnedLease(t, pins)
	was := lease.Load64(0, abi.LeaseDeadline)
	var asked atomic.Int64
	load(t, Options{PinPath: pins, Lease: time.Minute, routes: func(from, to netip.Addr) Hop {
		if end := lease.Load64(0, abi.LeaseDeadline); asked.Add(1) == 1 && end <= was {
			t.Errorf("a session was read, and the lease still ends at %d, as before, at %d", end, was)
		}
		return someHop(from, to)
	}})
	if asked.Load() == 0 {
		t.Error("no session was read")
	}
}

// An adoption that fails leaves the lease as it was: nothing is forwarded for a server that isn't there.
func TestFailedAdoption(t *testing.T) {
	pins := "/sys/fs/bpf/" + pinName(t)
	r := load(t, Options{PinPath: pins, Linger: 10 * time.Second})
	open(t, r, 1)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	lease := pinnedLease(t, pins)
	was := lease.Load64(0, abi.LeaseDeadline)
	bad := filepath.Join(pins, "live", "link_fwd_1")
	if err := os.Mkdir(bad, 0o700); err != nil { // what isn't a link can't be adopted, and that comes last
		t.Fatal(err)
	}
	opt := quiet(Options{PinPath: pins, Lease: time.Minute, routes: someHop})
	if _, err := Load(flowDesc(), build(t), opt); err == nil || !strings.Contains(err.Error(), "adopt "+pins) {
		t.Fatalf("adopted: %v", err)
	}
	if now := lease.Load64(0, abi.LeaseDeadline); now != was {
		t.Errorf("the lease ends at %d, and ended at %d before", now, was)
	}
	// One with another layout never took it.
	other := flowDesc()
	other.Sessions[0].Fields[0].Name = "caller"
	var le *LayoutError
	if _, err := Load(other, build(t), opt); !errors.As(err, &le) {
		t.Fatalf("adopted: %v", err)
	}
	if now := lease.Load64(0, abi.LeaseDeadline); now != was {
		t.Errorf("the lease ends at %d, and ended at %d before", now, was)
	}
	if err := os.Remove(bad); err != nil {
		t.Fatal(err)
	}
	next := load(t, Options{PinPath: pins})
	if run(t, next, packet(1)) != forwarded || next.lease.Load64(0, abi.LeaseDeadline) == was {
		t.Error("the session is gone, or its lease")
	}
	// A lease that another process has renewed meanwhile is theirs.
	failed := &Relay{lease: next.lease, leaseTaken: true, leaseMine: 1, leaseWas: 0}
	failed.returnLease()
	if next.lease.Load64(0, abi.LeaseDeadline) == 0 {
		t.Error("the lease of a living relay was taken away")
	}
}

// The network has changed while no process was there. If the relay was stopped for long, it forwards nothing
// before it knows the next hops as they are now; else it goes on, and follows.
func TestAdoptedHops(t *testing.T) {
	for _, long := range []bool{false, true} {
		b := newBench(t)
		pins := "/sys/fs/bpf/" + pinName(t)
		router := netip.MustParseAddr("192.0.2.2")
		if err := errors.Join(b.dev.AddAddr("192.0.2.1/24"), b.dev.AddRoute("0.0.0.0/0", "192.0.2.2"),
			b.dev.AddNeighbour(router, []byte{2, 0, 0, 0, 0, 1})); err != nil {
			t.Fatal(err)
		}
		r := b.load(t, Options{PinPath: pins, Linger: 20 * time.Second})
		open(t, r, 1)
		row := []any{netip.MustParseAddr("203.0.113.1")}
		if err := r.Table("routes").Put([]any{netip.MustParsePrefix("10.0.0.0/8")}, row); err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if err := b.dev.AddNeighbour(router, []byte{2, 0, 0, 0, 0, 2}); err != nil {
			t.Fatal(err)
		}
		if long {
			pinnedLease(t, pins).Store64(0, abi.LeaseDeadline, 1)
		}
		next := b.load(t, Options{PinPath: pins})
		follows := func() bool {
			n, now := 0, 0
			for _, name := range []string{"by_client", "by_peer", "routes"} {
				table := next.Table(name)
				for _, row := range must(table.scan()) {
					for _, m := range table.desc.Value {
						if m.Kind != abi.KindHop && m.Kind != abi.KindNextHop {
							continue
						}
						n++
						if h := getHop(row.value[m.Off:]); h.State == HopDirect && h.Dst == [6]byte{2, 0, 0, 0, 0, 2} {
							now++
						}
					}
				}
			}
			return n == 3 && now == 3
		}
		if next.leaseTaken == long {
			t.Errorf("long: %v, but the lease was taken: %v", long, next.leaseTaken)
		}
		if long && !follows() {
			t.Error("it forwards by old next hops")
		}
		until(t, 5*time.Second, "the next hops are those of now", follows)
	}
}

// Tables read by thousands of rows are the same as read row by row.
func TestScan(t *testing.T) {
	r := mustLoad(t, manyDesc(), build(t, manyDefines...), Options{routes: someHop})
	for n := range 3 * scanRows {
		if _, err := r.Open("flow", manyFlow(n)...); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 3 {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(n), 0})
		if err := errors.Join(r.Table("sources").Put([]any{addr}, []any{n, nil}),
			r.Table("levels").Put([]any{n + 1}, []any{2 * n}), r.Table("loads").Put([]any{n}, []any{n, true}),
			r.Table("routes").Put([]any{netip.PrefixFrom(addr, 24)}, []any{addr})); err != nil {
			t.Fatal(err)
		}
	}
	for _, table := range r.Tables() {
		want, n := map[string]string{}, 0
		for row, err := range table.each() {
			if err != nil {
				t.Fatal(err)
			}
			want[string(row.key)] = string(row.value)
		}
		for _, row := range must(table.scan()) {
			n++
			if got, ok := want[string(row.key)]; !ok || got != string(row.value) {
				t.Errorf("%s: %x: %x, not %x", table.desc.Name, row.key, row.value, got)
			}
		}
		if _, batches := table.readBatches(); n != len(want) || batches == table.desc.PerCPU {
			t.Errorf("%s: %d rows, not %d; in batches: %v", table.desc.Name, n, len(want), batches)
		}
	}
}

func BenchmarkScan(b *testing.B) {
	r := mustLoad(b, manyDesc(), build(b, manyDefines...), Options{routes: someHop})
	for n := range manyFlows {
		if _, err := r.Open("flow", manyFlow(n)...); err != nil {
			b.Fatal(err)
		}
	}
	table := r.Table("by_client")
	each := func() (rows []rowBytes, err error) {
		for row, err := range table.each() {
			if err != nil {
				return nil, err
			}
			rows = append(rows, row)
		}
		return rows, nil
	}
	for name, read := range map[string]func() ([]rowBytes, error){"scan": table.scan, "each": each} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if rows, err := read(); err != nil || len(rows) != manyFlows {
					b.Fatal(len(rows), err)
				}
			}
		})
	}
}
