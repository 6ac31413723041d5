package lab

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/gateway"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Packet is an IP packet that a frame is made of. Its upper bits of the traffic class are the DSCP, the lower two ECN.
type Packet struct {
	Src, Dst netip.Addr
	Class    uint8
	Hops     uint8
	Options  bool   // there are IPv4 options, or a header with options after that of IPv6
	Fragment bool   // it is a part of a packet: the first one, or with an offset the last one, which UDP isn't in
	Offset   uint16 // in units of 8 bytes
	Payload  []byte // of UDP
}

var fixed = gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}

// Encapsulated is a frame as the peer sends it to the gateway, with that traffic class outside and this packet inside.
func (l *Lab) Encapsulated(class uint8, inside Packet) ([]byte, error) {
	return l.frame(around{
		src: l.PeerDev.MAC, dst: l.RelayOut.MAC, from: l.far, to: l.near, udp: &layers.UDP{SrcPort: 50000},
		ip:     header(l.far.out, l.near.out, class, 64, l.next(inside)),
		option: []byte{0xFF, 0, 2, 2, 1, 2, 3, 4, 5, 6, 7, 8}, // 8 bytes; the relay sends 4
	}, inside)
}

// sent is a frame as the gateway sends it to the peer, with that traffic class outside and this packet inside. What a
// sender chooses is as in another frame: IPv4's identification and flags, the flow label, UDP's source port.
func (l *Lab) sent(like testnet.Frame, class uint8, inside Packet) ([]byte, error) {
	ip := header(l.near.out, l.far.out, class, 64, l.next(inside))
	switch was := dissect.Packet(like).NetworkLayer().(type) {
	case *layers.IPv4:
		if ip, ok := ip.(*layers.IPv4); ok {
			ip.Id, ip.Flags = was.Id, was.Flags
		}
	case *layers.IPv6:
		if ip, ok := ip.(*layers.IPv6); ok {
			ip.FlowLabel = was.FlowLabel
		}
	}
	udp := &layers.UDP{}
	if was, _, ok := dissect.UDP(like); ok {
		udp.SrcPort = was.SrcPort
	}
	return l.frame(around{
		src: l.RelayOut.MAC, dst: l.PeerDev.MAC, from: l.near, to: l.far, udp: udp, ip: ip,
		option: binary.BigEndian.AppendUint32([]byte{0xFF, 0, 1, 1}, Option),
	}, inside)
}

// next is the protocol of what is in the outer IP header.
func (l *Lab) next(inside Packet) layers.IPProtocol {
	switch {
	case l.Kind != gateway.IPIP:
		return layers.IPProtocolUDP
	case inside.Src.Is6():
		return layers.IPProtocolIPv6
	}
	return layers.IPProtocolIPv4
}

// around is what is around a packet in the tunnel.
type around struct {
	src, dst net.HardwareAddr
	from, to end
	ip       gopacket.SerializableLayer
	udp      *layers.UDP // its destination is the tunnel's
	option   []byte      // of GENEVE
}

// frame puts a packet into the tunnel.
func (l *Lab) frame(a around, inside Packet) ([]byte, error) {
	data, err := inside.bytes()
	if err != nil {
		return nil, err
	}
	list := []gopacket.SerializableLayer{ethernet(a.src, a.dst, a.to.out), a.ip}
	udp := a.udp
	if l.Kind != gateway.IPIP {
		if err := udp.SetNetworkLayerForChecksum(a.ip.(gopacket.NetworkLayer)); err != nil {
			return nil, err
		}
		list = append(list, udp)
	}
	switch frame := ethernet(a.from.mac, a.to.mac, inside.Src); l.Kind {
	case gateway.VXLAN:
		udp.DstPort = 4789
		list = append(list, &layers.VXLAN{ValidIDFlag: true, VNI: vni}, frame)
	case gateway.GENEVE:
		udp.DstPort = 6081
		head := append([]byte{byte(len(a.option) / 4), 0, 0x65, 0x58}, binary.BigEndian.AppendUint32(nil, vni<<8)...)
		list = append(list, gopacket.Payload(append(head, a.option...)), frame)
	case gateway.FOU:
		if udp.DstPort = fou4; inside.Src.Is6() {
			udp.DstPort = fou6
		}
	}
	buf := gopacket.NewSerializeBuffer()
	err = gopacket.SerializeLayers(buf, fixed, append(list, gopacket.Payload(data))...)
	out := buf.Bytes()
	if l.Kind != gateway.IPIP && !l.Sums && err == nil {
		at := 14 + 20 + 6 // where an outer UDP checksum is
		if a.to.out.Is6() {
			at += 20
		}
		out[at], out[at+1] = 0, 0
	}
	return out, err
}

// Plain is a frame as the client sends it to the gateway.
func (l *Lab) Plain(p Packet) ([]byte, error) {
	data, err := p.bytes()
	if err != nil {
		return nil, err
	}
	buf := gopacket.NewSerializeBuffer()
	err = gopacket.SerializeLayers(buf, fixed, ethernet(l.ClientDev.MAC, l.RelayIn.MAC, p.Src), gopacket.Payload(data))
	return buf.Bytes(), err
}

// bytes is the packet, with UDP in it.
func (p Packet) bytes() ([]byte, error) {
	ip := header(p.Src, p.Dst, p.Class, p.Hops, layers.IPProtocolUDP)
	list := []gopacket.SerializableLayer{ip}
	switch ip := ip.(type) {
	case *layers.IPv4:
		if p.Options {
			ip.Options = []layers.IPv4Option{
				{OptionType: 1, OptionLength: 1}, {OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}},
			}
		}
		if p.Fragment {
			if ip.Id, ip.FragOffset = 77, p.Offset; p.Offset == 0 {
				ip.Flags = layers.IPv4MoreFragments
			}
		}
	case *layers.IPv6:
		next := &ip.NextHeader // of the last header so far
		if p.Options {
			*next = layers.IPProtocolIPv6HopByHop
			list = append(list, gopacket.Payload{byte(layers.IPProtocolUDP), 0, 1, 4, 0, 0, 0, 0}) // PadN
		}
		if p.Fragment {
			fragment := gopacket.Payload{byte(layers.IPProtocolUDP), 0, 0, 0, 0, 0, 0, 77}
			if binary.BigEndian.PutUint16(fragment[2:], p.Offset<<3); p.Offset == 0 {
				fragment[3] = 1 // more follow
			}
			if p.Options {
				list[1].(gopacket.Payload)[0] = byte(layers.IPProtocolIPv6Fragment)
			} else {
				*next = layers.IPProtocolIPv6Fragment
			}
			list = append(list, fragment)
		}
	}
	if p.Offset == 0 {
		udp := &layers.UDP{SrcPort: 6000, DstPort: 7000}
		if err := udp.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer)); err != nil {
			return nil, err
		}
		list = append(list, udp)
	}
	buf := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buf, fixed, append(list, gopacket.Payload(p.Payload))...)
	return buf.Bytes(), err
}

func header(src, dst netip.Addr, class, hops uint8, next layers.IPProtocol) gopacket.SerializableLayer {
	if src.Is4() {
		return &layers.IPv4{
			Version: 4, TOS: class, TTL: hops, Protocol: next, SrcIP: src.AsSlice(), DstIP: dst.AsSlice(),
		}
	}
	return &layers.IPv6{
		Version: 6, TrafficClass: class, HopLimit: hops, NextHeader: next, SrcIP: src.AsSlice(), DstIP: dst.AsSlice(),
	}
}

func ethernet(src, dst net.HardwareAddr, family netip.Addr) *layers.Ethernet {
	e := &layers.Ethernet{SrcMAC: src, DstMAC: dst, EthernetType: layers.EthernetTypeIPv4}
	if family.Is6() {
		e.EthernetType = layers.EthernetTypeIPv6
	}
	return e
}

// find returns the first frame that came to a device and ends with these bytes.
func find(frames []testnet.Frame, payload []byte) (testnet.Frame, bool) {
	for _, f := range frames {
		if !f.Outgoing && bytes.HasSuffix(f.Data, payload) {
			return f, true
		}
	}
	return testnet.Frame{}, false
}
