package turnlab

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// UDPFrame builds an Ethernet frame with a UDP datagram, all lengths and checksums filled in.
func UDPFrame(srcMAC, dstMAC net.HardwareAddr, src, dst netip.AddrPort, payload []byte) ([]byte, error) {
	udp := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
	eth := &layers.Ethernet{SrcMAC: srcMAC, DstMAC: dstMAC, EthernetType: layers.EthernetTypeIPv4}
	var ip gopacket.SerializableLayer
	if src.Addr().Is4() {
		v4 := &layers.IPv4{Version: 4, TTL: 64, Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocolUDP,
			SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
		ip = v4
		if err := udp.SetNetworkLayerForChecksum(v4); err != nil {
			return nil, err
		}
	} else {
		eth.EthernetType = layers.EthernetTypeIPv6
		v6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP,
			SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
		ip = v6
		if err := udp.SetNetworkLayerForChecksum(v6); err != nil {
			return nil, err
		}
	}
	buf := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	err := gopacket.SerializeLayers(buf, options, eth, ip, udp, gopacket.Payload(payload))
	return buf.Bytes(), err
}

// Unpadded is a frame without the bytes that follow its IP packet.
func Unpadded(frame []byte) []byte {
	const link, v6 = 14, 40
	ip := frame[link:]
	if ip[0]>>4 == 6 {
		return frame[:link+v6+int(binary.BigEndian.Uint16(ip[4:]))]
	}
	return frame[:link+int(binary.BigEndian.Uint16(ip[2:]))]
}
