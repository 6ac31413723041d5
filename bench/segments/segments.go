// Package segments measures what it costs to send a packet to each of many receivers whose copies user space has made:
// by a system call each, by sendmmsg, and by runtime/segments. One thread sends without a pause, and has a processor
// for itself and for what the kernel does there, up to the receivers' device, which drops what it gets: so what a
// packet costs is the time that goes by.
package segments

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/bench/fanout"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/runtime/segments"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Methods to send.
const (
	Each     = "sendmsg"
	Mmsg     = "sendmmsg"
	Segments = "segments"
)

// Methods are all methods to send, in the order of tables.
var Methods = []string{Each, Mmsg, Segments}

// Cell is what a packet cost.
type Cell struct {
	Family    int                `json:"family"`    // 4 or 6: the receivers' addresses
	Receivers int                `json:"receivers"` // packets that are sent at once, one to each
	Size      int                `json:"size"`      // bytes of payload
	NS        map[string]float64 `json:"ns"`        // time a packet, by method
}

// Report is the result of a run.
type Report struct {
	Cells []Cell `json:"cells"`
}

const (
	port  = 5004
	try   = 100 * time.Millisecond // of one method: the scheduler leaves 50 ms of each second to others
	tries = 3                      // of a round
	most  = 64                     // receivers
)

// server is what sends: a socket, and a sender with receivers of each family.
type server struct {
	conn      *net.UDPConn
	sender    *segments.Sender
	to        map[int][]netip.AddrPort
	receivers map[int][]*segments.Receiver
}

// Measure measures all methods, in turn: the least of all rounds.
func Measure(rounds int, progress io.Writer) (_ *Report, err error) {
	nets, err := testnet.New()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, nets.Close()) }()
	undo, err := fanout.PrepareMachine()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, undo()) }()
	line, err := nets.Line()
	if err != nil {
		return nil, err
	}
	sink, err := measure.NewSink(line.PeerDev)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sink.Close()) }()
	s, err := newServer(line)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.sender.Close(), s.conn.Close()) }()
	r := &Report{}
	for _, family := range []int{4, 6} {
		for _, n := range []int{8, most} {
			for _, size := range []int{200, 1200} {
				fmt.Fprintf(progress, "\r%-50s", fmt.Sprintf("IPv%d, %d receivers, %d bytes", family, n, size))
				err := alone(func() error {
					ns, err := s.compare(family, n, size, rounds)
					r.Cells = append(r.Cells, Cell{family, n, size, ns})
					return err
				})
				if err != nil {
					return nil, err
				}
			}
		}
	}
	fmt.Fprintf(progress, "\r%-50s\r", "")
	return r, nil
}

func newServer(line *testnet.Line) (*server, error) {
	s := &server{to: map[int][]netip.AddrPort{}, receivers: map[int][]*segments.Receiver{}}
	err := line.Relay.Do(func() (err error) {
		if s.conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: port}); err != nil {
			return err
		}
		s.sender, err = segments.New(segments.Config{Conn: s.conn, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		return s.sender.Kernel()
	})
	if err != nil {
		return nil, err
	}
	for _, family := range []int{4, 6} {
		// While the sink is attached, no host answers for its address.
		if err := line.RelayOut.AddNeighbour(line.PeerAddr.Of(family), line.PeerDev.MAC); err != nil {
			return nil, err
		}
		for n := range uint16(most) {
			to := netip.AddrPortFrom(line.PeerAddr.Of(family), 10000+n)
			r, err := s.sender.Add(netip.AddrPortFrom(line.RelayOutAddr.Of(family), port), to)
			if err != nil {
				return nil, err
			}
			s.to[family] = append(s.to[family], to)
			s.receivers[family] = append(s.receivers[family], r)
		}
	}
	return s, nil
}

// compare measures all methods with packets of one size to n receivers.
func (s *server) compare(family, n, size, rounds int) (map[string]float64, error) {
	payload := make([]byte, size)
	var letters []ipv4.Message
	var packets []segments.Packet
	for i, to := range s.to[family][:n] {
		letters = append(letters, ipv4.Message{Buffers: [][]byte{payload}, Addr: net.UDPAddrFromAddrPort(to)})
		packets = append(packets, segments.Packet{To: s.receivers[family][i], Payload: payload})
	}
	batches := ipv4.NewPacketConn(s.conn)
	methods := map[string]func() error{
		Each: func() error {
			for _, to := range s.to[family][:n] {
				if _, err := s.conn.WriteToUDPAddrPort(payload, to); err != nil {
					return err
				}
			}
			return nil
		},
		Mmsg: func() error {
			if sent, err := batches.WriteBatch(letters, 0); err != nil || sent != n {
				return fmt.Errorf("sendmmsg sent %d of %d packets: %w", sent, n, err)
			}
			return nil
		},
		Segments: func() error { return s.sender.Send(packets) },
	}
	results := map[string][]float64{}
	for range rounds * tries {
		for _, method := range Methods {
			before, err := s.sender.Stats()
			if err != nil {
				return nil, err
			}
			sends, took, err := timed(methods[method])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", method, err)
			}
			after, err := s.sender.Stats()
			if err != nil {
				return nil, err
			}
			sent, want := after.Relayed-before.Relayed, uint64((sends+1)*n)
			if method == Segments && sent != want {
				return nil, fmt.Errorf("of %d packets in segments, %d left for their receivers", want, sent)
			}
			results[method] = append(results[method], float64(took)/float64(sends*n))
			time.Sleep(try / 10) // others' turn
		}
	}
	least := map[string]float64{} // other work can only make it more
	for method, all := range results {
		least[method] = slices.Min(all)
	}
	return least, nil
}

// timed calls send for a while after a first time, and returns how often, and how long that took.
func timed(send func() error) (calls int, took time.Duration, err error) {
	if err := send(); err != nil { // neighbours and memory are there from then on
		return 0, 0, err
	}
	began := time.Now()
	for ; took < try; took = time.Since(began) {
		if err := send(); err != nil {
			return 0, 0, err
		}
		calls++
	}
	return calls, took, nil
}

// alone runs f on a thread that has the relay's processor before all ordinary work.
func alone(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		var set unix.CPUSet
		set.Set(measure.RelayCPU)
		err := errors.Join(unix.SchedSetaffinity(0, &set),
			unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}, 0))
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// Print prints the report with the ratios that matter.
func Print(w io.Writer, r *Report) {
	fmt.Fprintln(w, "\nOne packet to each of many receivers: ns a packet")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tsendmsg\tsendmmsg\tsegments\t/ sendmsg\t/ sendmmsg\t")
	for _, c := range r.Cells {
		fmt.Fprintf(t, "IPv%d, %d receivers, %d bytes\t%.0f\t%.0f\t%.0f\t%s\t%s\t\n", c.Family, c.Receivers, c.Size,
			c.NS[Each], c.NS[Mmsg], c.NS[Segments],
			measure.Ratio(c.NS[Segments], c.NS[Each]), measure.Ratio(c.NS[Segments], c.NS[Mmsg]))
	}
	t.Flush()
}
