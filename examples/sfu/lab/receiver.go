package lab

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/pion/rtcp"
	"github.com/pion/rtp"
	"github.com/pion/rtp/codecs"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Receiver gets a stream as RTP, asks for what it misses, and puts frames together.
type Receiver struct {
	Addr netip.AddrPort

	conn *net.UDPConn

	mu      sync.Mutex
	lose    func(sequence uint16) bool
	server  netip.AddrPort
	ssrc    uint32
	packets map[int64]*rtp.Packet
	lost    map[int64]bool
	first   int64
	highest int64
	order   int // packets that came after their successors
	twice   int
	foreign int
	reports []*rtcp.SenderReport
}

// NewReceiver makes a receiver on a host, with the address that it has there.
func NewReceiver(host *testnet.Host, addr netip.Addr) (*Receiver, error) {
	conn, err := listen(host, addr, 0)
	if err != nil {
		return nil, err
	}
	r := &Receiver{
		Addr: netip.AddrPortFrom(addr, conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()), conn: conn,
		packets: map[int64]*rtp.Packet{}, lost: map[int64]bool{}, highest: -1,
	}
	go r.run()
	return r, nil
}

// Lose says which packets after the first get lost on their way from the server, once each.
func (r *Receiver) Lose(which func(sequence uint16) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lose = which
}

// Close ends the receiver.
func (r *Receiver) Close() error { return r.conn.Close() }

func (r *Receiver) run() {
	buf := make([]byte, 4096)
	for {
		n, from, err := r.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		r.mu.Lock()
		r.receive(slices.Clone(buf[:n]), netip.AddrPortFrom(from.Addr().Unmap(), from.Port()))
		r.mu.Unlock()
	}
}

func (r *Receiver) receive(data []byte, from netip.AddrPort) {
	r.server = from
	if len(data) > 1 && data[1] >= 192 && data[1] <= 223 {
		packets, err := rtcp.Unmarshal(data)
		if err != nil {
			r.foreign++
			return
		}
		for _, q := range packets {
			if report, ok := q.(*rtcp.SenderReport); ok {
				r.reports = append(r.reports, report)
			}
		}
		return
	}
	q := &rtp.Packet{}
	if err := q.Unmarshal(data); err != nil || r.ssrc != 0 && q.SSRC != r.ssrc {
		r.foreign++
		return
	}
	number := int64(q.SequenceNumber) + 1<<16
	if r.highest >= 0 {
		number = r.highest + int64(int16(q.SequenceNumber-uint16(r.highest)))
	}
	if r.lose != nil && r.highest >= 0 && !r.lost[number] && r.lose(q.SequenceNumber) {
		r.lost[number] = true
		return
	}
	switch {
	case r.highest < 0:
		r.first, r.ssrc = number, q.SSRC
	case r.packets[number] != nil:
		r.twice++
		return
	case number < r.highest:
		r.order++
	case number > r.highest+1:
		r.ask(r.missing(r.highest+1, number))
	}
	r.packets[number] = q
	r.highest = max(r.highest, number)
}

func (r *Receiver) missing(from, to int64) (list []uint16) {
	for n := from; n < to; n++ {
		if r.packets[n] == nil {
			list = append(list, uint16(n))
		}
	}
	return list
}

func (r *Receiver) ask(sequences []uint16) {
	if len(sequences) > 0 {
		r.send(&rtcp.TransportLayerNack{
			SenderSSRC: 1, MediaSSRC: r.ssrc, Nacks: rtcp.NackPairsFromSequenceNumbers(sequences),
		})
	}
}

func (r *Receiver) send(q rtcp.Packet) {
	if data, err := rtcp.Marshal([]rtcp.Packet{&rtcp.ReceiverReport{SSRC: 1}, q}); err == nil {
		_, _ = r.conn.WriteToUDPAddrPort(data, r.server)
	}
}

// AskAgain asks for all that is missing, and returns how much that is.
func (r *Receiver) AskAgain() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.missing(r.first, r.highest)
	r.ask(list)
	return len(list)
}

// Report sends a report about a share of lost packets.
func (r *Receiver) Report(lost uint8) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.send(&rtcp.ReceiverReport{
		SSRC: 1, Reports: []rtcp.ReceptionReport{
			{SSRC: r.ssrc, FractionLost: lost, LastSequenceNumber: uint32(r.highest - 1<<16), Jitter: 7},
		},
	})
}

// Send sends RTCP to the server.
func (r *Receiver) Send(q rtcp.Packet) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.send(q)
}

// Last returns the highest number that came.
func (r *Receiver) Last() uint16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return uint16(r.highest)
}

// Tally is what a receiver got.
type Tally struct {
	Packets  int
	Missing  int // numbers without a packet, between the first and the last one
	Lost     int // packets that got lost on the way, once
	Disorder int // packets after their successors
	Twice    int
	Foreign  int // not of the stream
	SSRC     uint32
	Reports  []*rtcp.SenderReport
}

// Tally returns what came so far.
func (r *Receiver) Tally() Tally {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := Tally{
		Packets: len(r.packets), Lost: len(r.lost), Disorder: r.order, Twice: r.twice, Foreign: r.foreign, SSRC: r.ssrc,
		Reports: slices.Clone(r.reports),
	}
	if r.highest >= 0 {
		t.Missing = len(r.missing(r.first, r.highest))
	}
	return t
}

// Picture is a frame that a receiver put together.
type Picture struct {
	Data      []byte
	Timestamp uint32
	Layer     uint8
	Whole     bool // with its first and last packet and all in between
}

// Pictures puts the frames together, in the order of their numbers.
func (r *Receiver) Pictures() []Picture {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []Picture
	open := false
	for n := r.first; n <= r.highest; n++ {
		q := r.packets[n]
		var v codecs.VP8Packet
		var part []byte
		var err error
		if q != nil && len(q.Payload) > 0 {
			part, err = v.Unmarshal(q.Payload)
		}
		switch {
		case q == nil || err != nil:
			open = false
			continue
		case len(q.Payload) == 0: // padding
			continue
		case v.S == 1 && v.PID == 0:
			list = append(list, Picture{Timestamp: q.Timestamp, Layer: v.TID})
			open = true
		case !open || list[len(list)-1].Timestamp != q.Timestamp:
			open = false
			continue
		}
		last := &list[len(list)-1]
		last.Data = append(last.Data, part...)
		if q.Marker {
			last.Whole, open = true, false
		}
	}
	return list
}

// Await waits until a receiver has something.
func (r *Receiver) Await(limit time.Duration, what string, holds func(Tally) bool) error {
	return testnet.Until(limit, what, func() bool { return holds(r.Tally()) })
}
