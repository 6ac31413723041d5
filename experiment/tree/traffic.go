package tree

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/experiment/trial"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Offsets in an RTP header (RFC 3550 §5.1). The timestamp counts packets: relays don't change it here.
const (
	offTimestamp = 4
	offSSRC      = 8
	headerSize   = 12
	packetSize   = 1200
)

// publisher sends numbered packets to the root.
type publisher struct {
	conn   *net.UDPConn
	packet [packetSize]byte
	next   uint32
}

func newPublisher(host *testnet.Host, to netip.AddrPort) (*publisher, error) {
	conn, err := udp(host, func() (*net.UDPConn, error) {
		return net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
	})
	p := &publisher{conn: conn}
	p.packet[0], p.packet[1] = 2<<6, 96
	return p, err
}

// send sends packets at a rate for a while, or as many as it can.
func (p *publisher) send(d time.Duration, rate float64) error {
	began := time.Now()
	tick := time.NewTicker(time.Duration(float64(time.Second) / min(rate, 1000)))
	defer tick.Stop()
	for sent := 0; ; {
		passed := time.Since(began)
		if passed >= d {
			return nil
		}
		if float64(sent) >= passed.Seconds()*rate {
			<-tick.C
			continue
		}
		binary.BigEndian.PutUint16(p.packet[2:], uint16(p.next))
		binary.BigEndian.PutUint32(p.packet[offTimestamp:], p.next)
		if _, err := p.conn.Write(p.packet[:]); err != nil {
			return err
		}
		p.next++
		sent++
	}
}

// sink counts what the receivers of a relay at the edge get, at one socket: which of them a copy is for, its SSRC says.
type sink struct {
	conn *net.UDPConn
	done chan error

	mu   sync.Mutex
	each []tally
	bins map[int64]int // copies that arrived in a bin of time
}

// tally is what one receiver has got since the last reset.
type tally struct {
	packets int
	next    uint32    // the number that comes next
	doubled int       // packets that came again, or too late
	last    time.Time // when a packet came
	gap     time.Duration
}

// bin is how finely arrivals are counted.
const bin = 100 * time.Millisecond

func newSink(host *testnet.Host, at netip.AddrPort, receivers int) (*sink, error) {
	conn, err := udp(host, func() (*net.UDPConn, error) { return net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at)) })
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		var e error
		err = raw.Control(func(fd uintptr) {
			e = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
		})
		err = errors.Join(err, e)
	}
	s := &sink{conn: conn, done: make(chan error, 1), each: make([]tally, receivers), bins: map[int64]int{}}
	go s.read()
	return s, err
}

func (s *sink) read() {
	batch := make([]ipv4.Message, 64)
	for i := range batch {
		batch[i].Buffers = [][]byte{make([]byte, headerSize)} // the rest of a packet is cut off
	}
	conn := ipv4.NewPacketConn(s.conn)
	for {
		n, err := conn.ReadBatch(batch, 0)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				err = nil
			}
			s.done <- err
			return
		}
		now := time.Now()
		s.mu.Lock()
		s.bins[now.UnixNano()/int64(bin)] += n
		for _, m := range batch[:n] {
			b := m.Buffers[0]
			if ssrc := binary.BigEndian.Uint32(b[offSSRC:]); m.N == headerSize && int(ssrc) < len(s.each) {
				s.each[ssrc].count(binary.BigEndian.Uint32(b[offTimestamp:]), now)
			}
		}
		s.mu.Unlock()
	}
}

func (t *tally) count(number uint32, now time.Time) {
	if number < t.next {
		t.doubled++
		return
	}
	if !t.last.IsZero() {
		t.gap = max(t.gap, now.Sub(t.last))
	}
	t.packets, t.next, t.last = t.packets+1, number+1, now
}

func (s *sink) close() error {
	err := s.conn.Close()
	return errors.Join(err, <-s.done)
}

// totals are what all receivers have got since the last reset.
type totals struct {
	packets, doubled, short int           // short: receivers that miss something
	gap                     time.Duration // the longest one of a receiver
}

// reset begins to count anew.
func (t *network) reset() {
	for _, s := range t.sinks {
		s.mu.Lock()
		for i := range s.each {
			s.each[i] = tally{next: s.each[i].next}
		}
		clear(s.bins)
		s.mu.Unlock()
	}
}

// total sums up. Each receiver should have got so many packets.
func (t *network) total(want int) (sum totals) {
	for _, s := range t.sinks {
		s.mu.Lock()
		for _, r := range s.each {
			sum.packets += r.packets
			sum.doubled += r.doubled
			sum.gap = max(sum.gap, r.gap)
			if r.packets < want {
				sum.short++
			}
		}
		s.mu.Unlock()
	}
	return sum
}

// settle waits until every receiver has so many packets, or nothing has come for a while, and returns the sums.
func (t *network) settle(want int) totals {
	const quiet = 200 * time.Millisecond
	last, since := t.total(want), time.Now()
	for last.short > 0 && time.Since(since) < quiet {
		time.Sleep(2 * time.Millisecond)
		if now := t.total(want); now.packets != last.packets {
			last, since = now, time.Now()
		}
	}
	return last
}

// arrivals returns the copies a second that receivers below the first relay in the middle have got, over time.
func (t *network) arrivals(began time.Time, d time.Duration) (points trial.Curve) {
	bins := map[int64]int{}
	for _, s := range t.sinks[:t.shape.edges] {
		s.mu.Lock()
		for at, n := range s.bins {
			bins[at] += n
		}
		s.mu.Unlock()
	}
	first := began.UnixNano() / int64(bin)
	for i := range int64(d / bin) {
		points = append(points, trial.Point{
			X: (time.Duration(i) * bin).Seconds(), Y: float64(bins[first+i]) / bin.Seconds(),
		})
	}
	return points
}
