package lab

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/gateway"
	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
)

// Packet is an IP packet that a frame is made of. Its upper bits of the traffic class are the DSCP, the lower two ECN.
type Packet struct {
	Src, Dst netip.Addr
	Class    uint8
	Hops     uint8
	Options  bool   // there are IPv4 options, or a header with options after that of IPv6
	Fragment bool   // it is the first part of a packet
	Payload  []byte // of UDP
}

var fixed = gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}

// Encapsulated is a frame as the peer sends it to the gateway, with that traffic class outside and this packet inside.
func (l *Lab) Encapsulated(class uint8, inside Packet) ([]byte, error) {
	data, err := inside.bytes()
	if err != nil {
		return nil, err
	}
	next := layers.IPProtocolUDP
	if l.Kind == gateway.IPIP {
		if next = layers.IPProtocolIPv4; inside.Src.Is6() {
			next = layers.IPProtocolIPv6
		}
	}
	ip := header(l.far.out, l.near.out, class, 64, next)
	list := []gopacket.SerializableLayer{ethernet(l.PeerDev.MAC, l.RelayOut.MAC, l.near.out), ip}
	udp := &layers.UDP{SrcPort: 50000}
	if l.Kind != gateway.IPIP {
		if err := udp.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer)); err != nil {
			return nil, err
		}
		list = append(list, udp)
	}
	switch frame := ethernet(l.far.mac, l.near.mac, inside.Src); l.Kind {
	case gateway.VXLAN:
		udp.DstPort = 4789
		list = append(list, &layers.VXLAN{ValidIDFlag: true, VNI: vni}, frame)
	case gateway.GENEVE: // with an option of 8 bytes, where the relay sends one of 4
		udp.DstPort = 6081
		head := append([]byte{3, 0, 0x65, 0x58}, binary.BigEndian.AppendUint32(nil, vni<<8)...)
		list = append(list, gopacket.Payload(append(head, 0xFF, 0, 2, 2, 1, 2, 3, 4, 5, 6, 7, 8)), frame)
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
		if l.near.out.Is6() {
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
			ip.Id, ip.Flags = 77, layers.IPv4MoreFragments
		}
	case *layers.IPv6:
		next := &ip.NextHeader // of the last header so far
		if p.Options {
			*next = layers.IPProtocolIPv6HopByHop
			list = append(list, gopacket.Payload{byte(layers.IPProtocolUDP), 0, 1, 4, 0, 0, 0, 0}) // PadN
		}
		if p.Fragment {
			fragment := gopacket.Payload{byte(layers.IPProtocolUDP), 0, 0, 1, 0, 0, 0, 77}
			if p.Options {
				list[1].(gopacket.Payload)[0] = byte(layers.IPProtocolIPv6Fragment)
			} else {
				*next = layers.IPProtocolIPv6Fragment
			}
			list = append(list, fragment)
		}
	}
	udp := &layers.UDP{SrcPort: 6000, DstPort: 7000}
	if err := udp.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer)); err != nil {
		return nil, err
	}
	buf := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buf, fixed, append(list, udp, gopacket.Payload(p.Payload))...)
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
