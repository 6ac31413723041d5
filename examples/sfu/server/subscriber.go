package server

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pion/rtcp"
)

// Subscriber gets one stream at a time, from a port of its own, under an SSRC and in numbers that stay the same
// whatever stream that is.
type Subscriber struct {
	name        string
	s           *Server
	conn        *net.UDPConn
	local       netip.AddrPort
	remote      netip.AddrPort
	ssrc        uint32
	payloadType uint8

	// What was asked for, and what the next feed goes on from. Guarded by the server's lock for changes.
	publisher string
	layer     uint8
	bandwidth int    // bits a second; 0: no limit
	next      uint16 // the number that the next feed begins with
	clock     clock

	mu     sync.Mutex
	feed   *feed // nil: none
	before *feed // the one before it, which is asked for packets for a while
	stats  SubscriberStats
}

// clock continues a subscriber's timestamps from one stream to the next.
type clock struct {
	timestamp uint32
	at        time.Time
}

// SubscriberStats is what a subscriber was sent, and what it said about it.
type SubscriberStats struct {
	Name      string         `json:"name"`
	Address   netip.AddrPort `json:"address"`
	Server    netip.AddrPort `json:"server"`
	SSRC      uint32         `json:"ssrc"`
	Publisher string         `json:"publisher"`
	Layer     uint8          `json:"layer"`
	Bandwidth int            `json:"bandwidth,omitempty"` // bits a second
	Kernel    bool           `json:"kernel"`              // the kernel sends
	Sent
	Nacks     uint64  `json:"nacks"`      // numbers that it missed
	Lost      float64 `json:"lost"`       // the last report's share of lost packets
	Jitter    uint32  `json:"jitter"`     // of the last report, in ticks of the stream's clock
	KeyFrames uint64  `json:"key_frames"` // that it asked for
}

func (u *Subscriber) write(data []byte) error {
	_, err := u.conn.WriteToUDPAddrPort(data, u.remote)
	return err
}

// run reads the subscriber's RTCP, until its socket is closed.
func (u *Subscriber) run() {
	buf := make([]byte, longest)
	for {
		n, from, err := u.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			if u.s.closing.Load() || u.left() {
				return
			}
			continue
		}
		if from.Addr().Unmap() == u.remote.Addr() && isRTCP(buf[:n]) {
			u.control(buf[:n], time.Now())
		}
	}
}

func (u *Subscriber) left() bool {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.s.subscribers[u.name] != u
}

// current returns the feeds that a subscriber's RTCP may speak of, the present one first.
func (u *Subscriber) current() []*feed {
	u.mu.Lock()
	defer u.mu.Unlock()
	var list []*feed
	for _, f := range []*feed{u.feed, u.before} {
		if f != nil {
			list = append(list, f)
		}
	}
	return list
}

// control handles the subscriber's RTCP.
func (u *Subscriber) control(data []byte, now time.Time) {
	packets, err := rtcp.Unmarshal(data)
	if err != nil {
		return
	}
	feeds := u.current()
	u.s.offload.read() // the packets that this may be about
	for _, q := range packets {
		switch q := q.(type) {
		case *rtcp.TransportLayerNack:
			for _, pair := range q.Nacks {
				for _, n := range pair.PacketList() {
					u.missed(feeds, n, now)
				}
			}
		case *rtcp.PictureLossIndication, *rtcp.FullIntraRequest:
			u.mu.Lock()
			u.stats.KeyFrames++
			u.mu.Unlock()
			if len(feeds) > 0 {
				p := feeds[0].pub
				p.mu.Lock()
				p.askKey(now)
				p.mu.Unlock()
			}
		case *rtcp.ReceiverReport:
			u.reports(feeds, q.Reports)
		case *rtcp.SenderReport:
			u.reports(feeds, q.Reports)
		case *rtcp.ReceiverEstimatedMaximumBitrate:
			u.s.changes(func() { u.s.limit(u, max(1, int(min(q.Bitrate, mostBandwidth)))) })
		case *rtcp.Goodbye:
			u.s.changes(func() { _ = u.s.unsubscribe(u) })
		}
	}
}

func (u *Subscriber) missed(feeds []*feed, n uint16, now time.Time) {
	u.mu.Lock()
	u.stats.Nacks++
	u.mu.Unlock()
	for _, f := range feeds {
		f.pub.mu.Lock()
		var ask []uint16
		known := f.missed(n, &ask)
		f.pub.ask(ask, now)
		f.pub.mu.Unlock()
		if known {
			return
		}
	}
}

func (u *Subscriber) reports(feeds []*feed, reports []rtcp.ReceptionReport) {
	for _, r := range reports {
		if r.SSRC != u.ssrc {
			continue
		}
		u.mu.Lock()
		u.stats.Lost, u.stats.Jitter = float64(r.FractionLost)/256, r.Jitter
		u.mu.Unlock()
		if len(feeds) == 0 {
			continue
		}
		f := feeds[0]
		f.pub.mu.Lock()
		if r, ok := f.report(r); ok {
			f.pub.reported(r)
		}
		f.pub.mu.Unlock()
	}
}

// sendReport passes on the publisher's report, with the subscriber's SSRC, timestamps and counts (RFC 3550 §7.2).
func (f *feed) sendReport(r *rtcp.SenderReport) {
	n := f.sent()
	f.sub.mu.Lock()
	n.add(f.sub.stats.Sent) // of earlier streams, under the same SSRC
	f.sub.mu.Unlock()
	report := &rtcp.SenderReport{
		SSRC: f.sub.ssrc, NTPTime: r.NTPTime, RTPTime: r.RTPTime + f.row.timestamp,
		PacketCount: uint32(n.Packets), OctetCount: uint32(n.Octets),
	}
	if data, err := report.Marshal(); err == nil {
		_ = f.sub.write(data) // lost like any packet
	}
}

// Stats returns what the subscriber was sent.
func (u *Subscriber) Stats() SubscriberStats {
	u.mu.Lock()
	st, f := u.stats, u.feed
	u.mu.Unlock()
	st.Name, st.Address, st.Server, st.SSRC = u.name, u.remote, u.local, u.ssrc
	if f != nil {
		f.pub.mu.Lock()
		st.Sent.add(f.sent())
		st.Publisher, st.Kernel, st.Layer = f.pub.name, f.kernel != nil, f.row.layer
		f.pub.mu.Unlock()
	}
	return st
}
