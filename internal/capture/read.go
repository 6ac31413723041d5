package capture

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// Packet is a packet of a capture.
type Packet struct {
	Number int // counted from 1, as Wireshark does
	Time   time.Time
	Link   layers.LinkType
	Data   []byte // as captured; valid until the next packet is read
	Length int    // on the wire; more than the capture has if it was cut off
}

// Cut reports whether the capture has only the first bytes of a packet.
func (p *Packet) Cut() bool { return len(p.Data) < p.Length }

// Reader reads the packets of a capture.
type Reader struct {
	next func() ([]byte, gopacket.CaptureInfo, error)
	link func(gopacket.CaptureInfo) layers.LinkType
	n    int
}

// ErrFormat is returned for a file that isn't a capture.
var ErrFormat = errors.New("this is not a capture: pcap and pcapng files are read")

// TruncatedError says that a capture ends inside of a packet, or in what belongs to one.
type TruncatedError struct {
	After int // packets that were read
	Err   error
}

func (e *TruncatedError) Error() string {
	if e.After == 0 {
		return fmt.Sprintf("the capture ends before its first packet: %v", e.Err)
	}
	return fmt.Sprintf("the capture is damaged or cut off after packet %d: %v", e.After, e.Err)
}

func (e *TruncatedError) Unwrap() error { return e.Err }

// NewReader begins to read a capture, which may be compressed by gzip.
func NewReader(from io.Reader) (*Reader, error) {
	r := bufio.NewReaderSize(from, 1<<16)
	magic, err := r.Peek(4)
	if err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("%w; the gzip file is damaged: %w", ErrFormat, err)
		}
		r = bufio.NewReader(z)
		if magic, err = r.Peek(4); err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w; the gzip file is damaged: %w", ErrFormat, err)
		}
	}
	if len(magic) < 4 {
		if err == nil || errors.Is(err, io.EOF) {
			err = ErrFormat
		}
		return nil, fmt.Errorf("%w; there are only %d bytes", err, len(magic))
	}
	switch binary.LittleEndian.Uint32(magic) {
	case 0x0a0d0d0a:
		return newNg(r)
	case 0xa1b2c3d4, 0xd4c3b2a1, 0xa1b23c4d, 0x4d3cb2a1: // micro- or nanoseconds, in either byte order
	default:
		return nil, fmt.Errorf("%w; this begins with %x", ErrFormat, magic)
	}
	p, err := pcapgo.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("%w; its header is damaged: %w", ErrFormat, err)
	}
	link := func(gopacket.CaptureInfo) layers.LinkType { return p.LinkType() }
	return &Reader{next: p.ZeroCopyReadPacketData, link: link}, nil
}

func newNg(r io.Reader) (*Reader, error) {
	p, err := pcapgo.NewNgReader(r, pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true})
	if err != nil {
		return nil, fmt.Errorf("%w; its header is damaged: %w", ErrFormat, err)
	}
	link := func(ci gopacket.CaptureInfo) layers.LinkType {
		if len(ci.AncillaryData) > 0 {
			if t, ok := ci.AncillaryData[0].(layers.LinkType); ok {
				return t
			}
		}
		return p.LinkType()
	}
	return &Reader{next: p.ZeroCopyReadPacketData, link: link}, nil
}

// Next reads a packet; at the end of the capture the error is io.EOF.
func (r *Reader) Next() (*Packet, error) {
	data, ci, err := r.next()
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	if err != nil {
		return nil, &TruncatedError{r.n, err}
	}
	r.n++
	return &Packet{r.n, ci.Timestamp, r.link(ci), data, max(ci.Length, len(data))}, nil
}

// ErrLink is returned for packets that no program can get.
var ErrLink = errors.New("a link layer that isn't read")

const (
	ethernet = 14 // bytes of a header
	cooked   = 16
	cooked2  = 20

	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	etherVLAN = 0x8100
	etherQinQ = 0x88a8
)

// For makes of a captured packet what comes to a program, whose stack begins with Ethernet or not. The bytes may be
// those of the capture.
func (p *Packet) For(withLink bool) (sim.Packet, error) {
	switch p.Link {
	case layers.LinkTypeEthernet:
		if len(p.Data) < ethernet {
			return sim.Packet{}, fmt.Errorf("%d bytes are less than an Ethernet header", len(p.Data))
		}
		out := sim.Packet{Data: p.Data}
		if t := binary.BigEndian.Uint16(p.Data[12:]); (t == etherVLAN || t == etherQinQ) && len(p.Data) >= ethernet+4 {
			out.VLAN = &sim.Tag{Proto: t, TCI: binary.BigEndian.Uint16(p.Data[14:])}
			out.Data = append(append(make([]byte, 0, len(p.Data)), p.Data[:12]...), p.Data[16:]...)
		}
		if to := sim.LinkType(out.Data, [6]byte{}); to == ir.ToBroadcast || to == ir.ToMulticast {
			out.Link = to
		}
		if withLink {
			return out, nil
		}
		return bare(out.Data[ethernet:], binary.BigEndian.Uint16(out.Data[12:]))
	case layers.LinkTypeRaw, layers.LinkTypeIPv4, layers.LinkTypeIPv6, 12, 14: // 12 and 14: raw IP on some systems
		return framed(p.Data, version(p.Data), packet.DefaultSource, ir.ToHost, withLink)
	case layers.LinkTypeLinuxSLL:
		if len(p.Data) < cooked {
			return sim.Packet{}, fmt.Errorf("%d bytes are less than the header of a cooked capture", len(p.Data))
		}
		proto := binary.BigEndian.Uint16(p.Data[14:])
		return framed(p.Data[cooked:], proto, sender(p.Data[4:], p.Data[6:]), uint8(p.Data[1]), withLink)
	case layers.LinkTypeLinuxSLL2:
		if len(p.Data) < cooked2 {
			return sim.Packet{}, fmt.Errorf("%d bytes are less than the header of a cooked capture", len(p.Data))
		}
		source := sender([]byte{0, p.Data[11]}, p.Data[12:])
		return framed(p.Data[cooked2:], binary.BigEndian.Uint16(p.Data), source, p.Data[10], withLink)
	}
	return sim.Packet{}, fmt.Errorf("%w: %s (%d); Ethernet, raw IP and Linux cooked captures are", ErrLink, p.Link,
		p.Link)
}

// sender is the link-layer address in a cooked header, if it is one of six bytes.
func sender(length, addr []byte) [6]byte {
	if binary.BigEndian.Uint16(length) != 6 || [6]byte(addr) == [6]byte{} {
		return packet.DefaultSource
	}
	return [6]byte(addr)
}

func version(b []byte) uint16 {
	if len(b) > 0 && b[0]>>4 == 6 {
		return etherIPv6
	}
	return etherIPv4
}

// framed puts an Ethernet header in front of a packet, if it is wanted. kind is whom the frame was addressed to, in
// the kernel's numbers; what this host has sent (4) counts as being for the host that it comes to.
func framed(data []byte, proto uint16, source [6]byte, kind uint8, withLink bool) (sim.Packet, error) {
	if !withLink {
		return bare(data, proto)
	}
	to := packet.DefaultDestination
	out := sim.Packet{Link: ir.ToHost}
	switch kind {
	case ir.ToBroadcast:
		to, out.Link = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, kind
	case ir.ToMulticast:
		to, out.Link = [6]byte{0x01, 0x00, 0x5e, 0, 0, 1}, kind
	case ir.ToOther:
		out.Link = kind
	}
	out.Data = binary.BigEndian.AppendUint16(append(append([]byte{}, to[:]...), source[:]...), proto)
	out.Data = append(out.Data, data...)
	return out, nil
}

// bare is a packet without a link-layer header, which is IP.
func bare(data []byte, proto uint16) (sim.Packet, error) {
	if proto != etherIPv4 && proto != etherIPv6 {
		return sim.Packet{}, fmt.Errorf("EtherType 0x%04x, and the program's packets begin with IP", proto)
	}
	return sim.Packet{Data: data, Proto: proto}, nil
}
