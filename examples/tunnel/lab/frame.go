package lab

import (
	"bytes"
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
	ID       uint16
	Options  []layers.IPv4Option // inside
	Fragment bool                // the first part of a packet, inside
	Payload  []byte              // of UDP, inside
}

// Encapsulated is a frame as the peer sends it to the gateway, with that traffic class outside and this packet inside.
func (l *Lab) Encapsulated(class uint8, inside Packet) ([]byte, error) {
	tunnel := []gopacket.SerializableLayer{}
	transport := layers.IPProtocolUDP
	udp := &layers.UDP{SrcPort: 50000}
	switch l.Kind {
	case gateway.VXLAN:
		udp.DstPort = 4789
		tunnel = append(tunnel,
			udp, &layers.VXLAN{ValidIDFlag: true, VNI: vni}, ethernet(l.far.mac, l.near.mac, inside.Src))
	}
	ip := network(Packet{Src: l.far.out, Dst: l.near.out, Class: class, Hops: 64}, transport)
	if err := udp.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer)); err != nil {
		return nil, err
	}
	return serialize(l.Sums, append([]gopacket.SerializableLayer{
		ethernet(l.PeerDev.MAC, l.RelayOut.MAC, l.near.out), ip,
	}, tunnel...), inside)
}

// Plain is a frame as the client sends it to the gateway.
func (l *Lab) Plain(p Packet) ([]byte, error) {
	return serialize(true, []gopacket.SerializableLayer{ethernet(l.ClientDev.MAC, l.RelayIn.MAC, p.Src)}, p)
}

func serialize(sums bool, outside []gopacket.SerializableLayer, p Packet) ([]byte, error) {
	inside, err := p.bytes()
	if err != nil {
		return nil, err
	}
	buf := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	err = gopacket.SerializeLayers(buf, options, append(outside, gopacket.Payload(inside))...)
	frame := buf.Bytes()
	if sums || err != nil || len(outside) < 3 {
		return frame, err
	}
	at := 14 + 20 + 6 // where an outer UDP checksum is
	if outside[1].LayerType() == layers.LayerTypeIPv6 {
		at += 20
	}
	frame[at], frame[at+1] = 0, 0
	return frame, nil
}

// bytes is the packet, with UDP in it.
func (p Packet) bytes() ([]byte, error) {
	ip := network(p, layers.IPProtocolUDP)
	udp := &layers.UDP{SrcPort: 6000, DstPort: 7000}
	if err := udp.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer)); err != nil {
		return nil, err
	}
	buf := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	err := gopacket.SerializeLayers(buf, options, ip, udp, gopacket.Payload(p.Payload))
	return buf.Bytes(), err
}

func network(p Packet, next layers.IPProtocol) gopacket.SerializableLayer {
	if p.Src.Is4() {
		ip := &layers.IPv4{
			Version: 4, TOS: p.Class, TTL: p.Hops, Protocol: next, SrcIP: p.Src.AsSlice(), DstIP: p.Dst.AsSlice(),
			Options: p.Options, Id: p.ID,
		}
		if p.Fragment {
			ip.Flags = layers.IPv4MoreFragments
		}
		return ip
	}
	return &layers.IPv6{
		Version: 6, TrafficClass: p.Class, HopLimit: p.Hops, NextHeader: next, SrcIP: p.Src.AsSlice(),
		DstIP: p.Dst.AsSlice(),
	}
}

func ethernet(src, dst net.HardwareAddr, family netip.Addr) *layers.Ethernet {
	e := &layers.Ethernet{SrcMAC: src, DstMAC: dst, EthernetType: layers.EthernetTypeIPv4}
	if family.Is6() {
		e.EthernetType = layers.EthernetTypeIPv6
	}
	return e
}

// Find returns the first frame that came to a device and ends with these bytes.
func Find(frames []testnet.Frame, payload []byte) (testnet.Frame, bool) {
	for _, f := range frames {
		if !f.Outgoing && bytes.HasSuffix(f.Data, payload) {
			return f, true
		}
	}
	return testnet.Frame{}, false
}
