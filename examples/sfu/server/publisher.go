package server

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/pion/rtcp"
)

// Publisher sends one stream to a port of its own.
type Publisher struct {
	name  string
	s     *Server
	conn  *net.UDPConn
	local netip.AddrPort
	clock uint32 // of its timestamps, in Hz

	mu     sync.Mutex
	remote netip.AddrPort // the first packet's source, if it was not given; the zero value until then
	ssrc   uint32         // likewise
	live   bool           // both are known
	begun  bool           // subscribers may get it: the group was opened, or can't be
	group  kernelGroup    // nil: user space alone

	cache      cache
	arriving   packet // the memory of the next one
	newest     *packet
	firstCycle int64 // of the first number: what RTCP counts cycles from
	feeds      []*feed
	scratch    []byte
	outlier    int64 // the last number that was far away from the others

	base     [2]uint32   // timestamps of the last two frames of the base layer, the newer one first
	bytes    [Layers]int // since measured
	rates    [Layers]int // bits a second of each layer, over the last period
	measured time.Time
	report   *rtcp.ReceptionReport // the worst one since the last was sent
	asked    time.Time             // for a key frame
	requests map[uint16]time.Time  // packets that it was asked for
	stats    PublisherStats
}

func newPublisher(s *Server, name string, clock uint32) *Publisher {
	return &Publisher{name: name, s: s, clock: clock, requests: map[uint16]time.Time{}}
}

// PublisherStats is what came from a publisher.
type PublisherStats struct {
	Name      string         `json:"name"`
	Address   netip.AddrPort `json:"address"`
	Server    netip.AddrPort `json:"server"`
	SSRC      uint32         `json:"ssrc"`
	Kernel    bool           `json:"kernel"` // the kernel has a group for the stream
	Packets   uint64         `json:"packets"`
	Octets    uint64         `json:"octets"`
	Late      uint64         `json:"late"`
	Repeated  uint64         `json:"repeated"`
	Foreign   uint64         `json:"foreign"` // not RTP, or of someone else
	KeyFrames uint64         `json:"key_frames"`
	AskedKey  uint64         `json:"asked_for_key_frames"`
	AskedFor  uint64         `json:"asked_for"` // packets
	Restarts  uint64         `json:"restarts"`
	Rates     [Layers]int    `json:"rates"` // bits a second, by layer
}

// run reads what comes to the publisher's socket, until it is closed: all of a stream that the kernel doesn't relay,
// and of others what it leaves to user space.
func (p *Publisher) run() {
	buf := make([]byte, longest)
	for {
		n, from, err := p.conn.ReadFromUDPAddrPort(buf)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err == nil: // else an ICMP error
			p.s.offload.read() // what the kernel relayed before
			p.receive(buf[:n], from, time.Now())
		}
	}
}

// receive handles a datagram.
func (p *Publisher) receive(data []byte, from netip.AddrPort, now time.Time) {
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	p.mu.Lock()
	defer p.mu.Unlock()
	if isRTCP(data) {
		if p.live && from.Addr() == p.remote.Addr() {
			p.control(data)
		}
		return
	}
	q := &p.arriving
	ssrc, err := q.parse(data, p.s.config.Extension)
	if err != nil || p.remote.IsValid() && from != p.remote || p.ssrc != 0 && ssrc != p.ssrc {
		p.stats.Foreign++
		return
	}
	if !p.live {
		p.remote, p.ssrc, p.live = from, ssrc, true
		p.s.changes(func() { p.s.begin(p) })
	}
	p.take(q, uint16(data[2])<<8|uint16(data[3]), now)
}

// far is how far a number may be away from the highest one without the stream being a new one (RFC 3550 appendix A.1).
const far = window / 2

// take puts a packet into the cache and sends it if the kernel doesn't.
func (p *Publisher) take(q *packet, sequence uint16, now time.Time) {
	c := &p.cache
	q.at, q.number = now, c.numbers.near(sequence)
	q.late = c.numbers.begun && q.number <= c.numbers.highest
	switch {
	case !c.numbers.begun:
		p.firstCycle = q.number &^ 0xFFFF // RTCP counts cycles from here
	case q.late && c.numbers.highest-q.number > far:
		if q.number != p.outlier+1 {
			p.outlier = q.number
			return
		}
		p.restart(q)
		return
	case c.get(q.number) != nil:
		p.stats.Repeated++
		return
	}
	c.numbers.next(sequence)
	p.stats.Packets++
	p.stats.Octets += uint64(len(q.data) - q.header)
	p.bytes[q.layer] += len(q.data)
	if q.key && q.start {
		p.stats.KeyFrames++
	}
	slot := c.slot(q.number)
	*slot, *q = *q, *slot
	if slot.late {
		p.stats.Late++
	} else {
		p.newest = slot
		if slot.layer == 0 && slot.timestamp != p.base[0] {
			p.base = [2]uint32{slot.timestamp, p.base[0]}
		}
	}
	for _, f := range p.feeds {
		if f.kernel == nil && !slot.late {
			f.forward(slot)
		}
		if len(f.gaps) > 0 {
			f.repair()
		}
	}
}

// restart begins anew when the publisher counts from somewhere else, and so do its subscribers.
func (p *Publisher) restart(q *packet) {
	p.stats.Restarts++
	sequence := q.sequence()
	p.cache.forget()
	p.newest, p.base = nil, [2]uint32{}
	p.s.changes(func() { p.s.rebegin(p, sequence) })
}

// change is how long a change takes to come into force at most: it is made for frames that come later.
const change = 60 * time.Millisecond

// boundary returns a timestamp between two frames that come soon: where a layer may begin or end. It is that of a frame
// of the base layer, if those come regularly, so that no frame of the new layers needs one from before.
func (p *Publisher) boundary(now time.Time) uint32 {
	if p.newest == nil {
		return 0
	}
	soon := p.newest.timestamp + p.ticks(now.Sub(p.newest.at)+change)
	period := p.base[0] - p.base[1]
	if p.base[1] == 0 || period == 0 || period > p.clock {
		return soon
	}
	ahead := soon - p.base[0]
	return p.base[0] + (ahead+period-1)/period*period
}

// awaitFrame waits until the frame that is coming in is complete, so that a stream that is taken away ends with a
// complete one. It doesn't wait for long.
func (p *Publisher) awaitFrame() {
	const limit = 50 * time.Millisecond
	await(limit, func() bool {
		p.s.offload.read()
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.newest == nil || p.newest.marker || time.Since(p.newest.at) > limit
	})
}

func (p *Publisher) ticks(d time.Duration) uint32 {
	return uint32(d.Nanoseconds() * int64(p.clock) / int64(time.Second))
}

// present returns what the publisher's timestamp would be now.
func (p *Publisher) present(now time.Time) uint32 {
	if p.newest == nil {
		return 0
	}
	return p.newest.timestamp + p.ticks(now.Sub(p.newest.at))
}

// control handles the publisher's RTCP.
func (p *Publisher) control(data []byte) {
	packets, err := rtcp.Unmarshal(data)
	if err != nil {
		p.stats.Foreign++
		return
	}
	for _, q := range packets {
		switch q := q.(type) {
		case *rtcp.SenderReport:
			for _, f := range p.feeds {
				if q.SSRC == p.ssrc && f.history.count > 0 {
					f.sendReport(q)
				}
			}
		case *rtcp.Goodbye:
			if slices.Contains(q.Sources, p.ssrc) {
				p.s.changes(func() { _ = p.s.leave(p) })
			}
		}
	}
}

// again is how long a request for the same thing isn't repeated.
const again = 100 * time.Millisecond

// ask asks the publisher for packets (RFC 4585 §6.2.1).
func (p *Publisher) ask(sequences []uint16, now time.Time) {
	fresh := sequences[:0]
	for _, n := range sequences {
		if now.Sub(p.requests[n]) >= again {
			p.requests[n] = now
			fresh = append(fresh, n)
		}
	}
	if len(p.requests) > window {
		clear(p.requests)
	}
	if len(fresh) == 0 {
		return
	}
	slices.Sort(fresh)
	p.stats.AskedFor += uint64(len(fresh))
	p.write(&rtcp.TransportLayerNack{
		SenderSSRC: p.s.ssrc, MediaSSRC: p.ssrc, Nacks: rtcp.NackPairsFromSequenceNumbers(slices.Compact(fresh)),
	})
}

// askKey asks the publisher for a key frame (RFC 4585 §6.3.1).
func (p *Publisher) askKey(now time.Time) {
	if !p.live || now.Sub(p.asked) < again {
		return
	}
	p.asked = now
	p.stats.AskedKey++
	p.write(&rtcp.PictureLossIndication{SenderSSRC: p.s.ssrc, MediaSSRC: p.ssrc})
}

// write sends RTCP, in a compound packet that begins with a report (RFC 3550 §6.1).
func (p *Publisher) write(packets ...rtcp.Packet) {
	if _, isReport := packets[0].(*rtcp.ReceiverReport); !isReport {
		packets = append([]rtcp.Packet{&rtcp.ReceiverReport{SSRC: p.s.ssrc}}, packets...)
	}
	if data, err := rtcp.Marshal(packets); err == nil {
		_, _ = p.conn.WriteToUDPAddrPort(data, p.remote) // lost like any packet
	}
}

// period is how often the server looks at rates and passes on reports.
const period = 500 * time.Millisecond

// tick does what has to be done from time to time: it measures, passes on the worst report, and repeats requests for
// key frames.
func (p *Publisher) tick(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if passed := now.Sub(p.measured); !p.measured.IsZero() && passed > 0 {
		for i, n := range p.bytes {
			p.rates[i] = int(float64(n*8) / passed.Seconds())
		}
	}
	p.measured, p.bytes = now, [Layers]int{}
	if p.report != nil {
		p.write(&rtcp.ReceiverReport{SSRC: p.s.ssrc, Reports: []rtcp.ReceptionReport{*p.report}})
		p.report = nil
	}
	for _, f := range p.feeds {
		if f.waits(now) {
			p.askKey(now)
		}
	}
}

// reported takes a subscriber's report, in the publisher's numbers.
func (p *Publisher) reported(r rtcp.ReceptionReport) {
	if p.report == nil || r.FractionLost > p.report.FractionLost {
		p.report = &r
	}
}

// Stats returns what came from the publisher.
func (p *Publisher) Stats() PublisherStats {
	p.s.offload.read()
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.stats
	st.Name, st.Address, st.Server, st.SSRC, st.Rates, st.Kernel = p.name, p.remote, p.local, p.ssrc, p.rates,
		p.group != nil
	return st
}
