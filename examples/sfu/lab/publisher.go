package lab

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pion/rtcp"
	"github.com/pion/rtp"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// payload is the most bytes of a frame in one packet.
const payload = 1100

// Publisher sends a video as RTP (RFC 7741), and again what it is asked for.
type Publisher struct {
	SSRC     uint32
	Lose     func(sequence uint16) bool // packets that get lost on their way to the server; nil: none
	Shuffle  func(sequence uint16) bool // packets that come after their successor; nil: none
	Sequence uint16                     // of the next packet; not while Play runs
	Before   func(Frame) error          // is called before each frame; nil: nothing is

	conn *net.UDPConn
	to   netip.AddrPort

	mu      sync.Mutex
	sent    map[uint16][]byte
	again   int
	keys    int
	reports []rtcp.ReceptionReport
	packets uint32
	octets  uint32
	highest uint16
}

// NewPublisher makes a publisher on a host, which sends to a port of the server.
func NewPublisher(host *testnet.Host, to netip.AddrPort, ssrc uint32) (*Publisher, error) {
	conn, err := listen(host, to.Addr(), 0)
	if err != nil {
		return nil, err
	}
	p := &Publisher{SSRC: ssrc, Sequence: 65500, conn: conn, to: to, sent: map[uint16][]byte{}}
	go p.run()
	return p, nil
}

func listen(host *testnet.Host, family netip.Addr, port uint16) (conn *net.UDPConn, err error) {
	any := netip.IPv4Unspecified()
	if family.Is6() {
		any = netip.IPv6Unspecified()
	}
	err = host.Do(func() error {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(any, port)))
		return err
	})
	return conn, err
}

// Close ends the publisher.
func (p *Publisher) Close() error { return p.conn.Close() }

// run answers the server's RTCP.
func (p *Publisher) run() {
	buf := make([]byte, 2048)
	for {
		n, err := p.conn.Read(buf)
		if err != nil {
			return
		}
		packets, err := rtcp.Unmarshal(buf[:n])
		if err != nil {
			continue
		}
		p.mu.Lock()
		for _, q := range packets {
			switch q := q.(type) {
			case *rtcp.PictureLossIndication:
				p.keys++
			case *rtcp.ReceiverReport:
				p.reports = append(p.reports, q.Reports...)
			case *rtcp.TransportLayerNack:
				for _, pair := range q.Nacks {
					for _, sequence := range pair.PacketList() {
						if data, ok := p.sent[sequence]; ok {
							_, _ = p.conn.WriteToUDPAddrPort(data, p.to)
							p.again++
						}
					}
				}
			}
		}
		p.mu.Unlock()
	}
}

// Asked returns how many packets the server asked for again, and how many times it asked for a key frame.
func (p *Publisher) Asked() (again, keys int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.again, p.keys
}

// Highest returns the number of the last packet.
func (p *Publisher) Highest() uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.highest
}

// Reports returns the reports that came.
func (p *Publisher) Reports() []rtcp.ReceptionReport {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]rtcp.ReceptionReport(nil), p.reports...)
}

// Play sends frames at their pace, each with the layer it belongs to, and a report each second. The timestamp of frame
// number n is n/30 s, from the first frame on.
func (p *Publisher) Play(ctx context.Context, frames []Frame) error {
	pace := time.NewTicker(time.Second / FramesPerSecond)
	defer pace.Stop()
	for _, f := range frames {
		if p.Before != nil {
			if err := p.Before(f); err != nil {
				return err
			}
		}
		if err := p.frame(f); err != nil {
			return err
		}
		if f.Number%FramesPerSecond == 0 {
			if err := p.report(f.timestamp()); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pace.C:
		}
	}
	return nil
}

// Loop plays frames again and again until ctx ends; the time goes on.
func (p *Publisher) Loop(ctx context.Context, frames []Frame) {
	for n := 0; ; n += len(frames) {
		again := make([]Frame, len(frames))
		for i, f := range frames {
			again[i] = f
			again[i].Number += n
		}
		if p.Play(ctx, again) != nil {
			return
		}
	}
}

func (f Frame) timestamp() uint32 { return uint32(f.Number) * (Clock / FramesPerSecond) }

// descriptor is VP8's payload descriptor (RFC 7741 §4.2) with TL0PICIDX and the layer. It has no picture ID, since
// ffmpeg takes a gap in those for a loss, whatever the sequence numbers say.
func (f Frame) descriptor(first bool) []byte {
	const extended, start, tl0, tid, sync = 0x80, 0x10, 0x40, 0x20, 0x20
	b := []byte{extended, tl0 | tid, byte(f.Number / len(pattern)), f.Layer << 6}
	if first {
		b[0] |= start
	}
	if f.Layer == 1 || f.Number%len(pattern) == 1 { // needs the base layer alone
		b[3] |= sync
	}
	return b
}

func (p *Publisher) frame(f Frame) error {
	var held []byte
	for rest, first := f.Data, true; len(rest) > 0; first = false {
		part := rest[:min(len(rest), payload)]
		rest = rest[len(part):]
		q := rtp.Packet{
			Header: rtp.Header{
				Version: 2, PayloadType: 96, SequenceNumber: p.Sequence, Timestamp: f.timestamp(), SSRC: p.SSRC,
				Marker: len(rest) == 0,
			},
			Payload: append(f.descriptor(first), part...),
		}
		data, err := q.Marshal()
		if err != nil {
			return err
		}
		sequence := p.Sequence
		p.Sequence++
		p.mu.Lock()
		p.sent[sequence], p.highest = data, sequence
		p.packets++
		p.octets += uint32(len(q.Payload))
		p.mu.Unlock()
		if p.Lose != nil && p.Lose(sequence) {
			continue
		}
		if held == nil && len(rest) > 0 && p.Shuffle != nil && p.Shuffle(sequence) {
			held = data
			continue
		}
		if _, err := p.conn.WriteToUDPAddrPort(data, p.to); err != nil {
			return err
		}
		if held != nil {
			if _, err := p.conn.WriteToUDPAddrPort(held, p.to); err != nil {
				return err
			}
			held = nil
		}
	}
	return nil
}

// report sends a sender report (RFC 3550 §6.4.1).
func (p *Publisher) report(timestamp uint32) error {
	now := time.Now()
	const from1900 = 2208988800
	p.mu.Lock()
	report := &rtcp.SenderReport{
		SSRC: p.SSRC, NTPTime: uint64(now.Unix()+from1900)<<32 | uint64(now.Nanosecond())<<32/1e9, RTPTime: timestamp,
		PacketCount: p.packets, OctetCount: p.octets,
	}
	p.mu.Unlock()
	data, err := report.Marshal()
	if err != nil {
		return err
	}
	_, err = p.conn.WriteToUDPAddrPort(data, p.to)
	return err
}

// Send sends one packet as it is, but for its SSRC and number.
func (p *Publisher) Send(q *rtp.Packet) error {
	q.Version, q.SSRC, q.SequenceNumber = 2, p.SSRC, p.Sequence
	p.Sequence++
	data, err := q.Marshal()
	if err != nil {
		return err
	}
	_, err = p.conn.WriteToUDPAddrPort(data, p.to)
	return err
}
