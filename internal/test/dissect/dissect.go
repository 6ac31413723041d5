// Package dissect decodes what captures of testnet have recorded, by gopacket and tshark: neither has anything of ours.
package dissect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Packet decodes the frame.
func Packet(f testnet.Frame) gopacket.Packet {
	return gopacket.NewPacket(f.Data, layers.LayerTypeEthernet, gopacket.Default)
}

// UDP returns the decoded UDP header and its payload, or false for other frames.
func UDP(f testnet.Frame) (*layers.UDP, []byte, bool) {
	udp, ok := Packet(f).Layer(layers.LayerTypeUDP).(*layers.UDP)
	if !ok {
		return nil, nil, false
	}
	return udp, udp.Payload, true
}

// TTL returns the TTL or hop limit of the outermost IP header; 0 for other frames.
func TTL(f testnet.Frame) int {
	switch ip := Packet(f).NetworkLayer().(type) {
	case *layers.IPv4:
		return int(ip.TTL)
	case *layers.IPv6:
		return int(ip.HopLimit)
	}
	return 0
}

// Check finds wrong lengths and checksums in the IP and UDP headers of a frame, by gopacket's independent reading.
// A partial checksum has to be the pseudo-header's sum.
func Check(f testnet.Frame) error {
	packet := Packet(f)
	if e := packet.ErrorLayer(); e != nil {
		return e.Error()
	}
	rest := 0 // the bytes after the link-layer header
	if link := packet.LinkLayer(); link != nil {
		rest = len(link.LayerPayload())
	}
	var src, dst []byte
	switch ip := packet.NetworkLayer().(type) {
	case *layers.IPv4:
		src, dst = ip.SrcIP.To4(), ip.DstIP.To4()
		if err, result := ip.VerifyChecksum(); err != nil || !result.Valid {
			return fmt.Errorf("IPv4 checksum %#04x, right is %#04x", result.Actual, result.Correct)
		}
		if int(ip.Length) > rest {
			return fmt.Errorf("IPv4 length %d, but the frame has %d", ip.Length, rest)
		}
		rest = int(ip.Length) - 4*int(ip.IHL)
	case *layers.IPv6:
		src, dst = ip.SrcIP, ip.DstIP
		if int(ip.Length)+40 > rest {
			return fmt.Errorf("IPv6 length %d, but the frame has %d", ip.Length, rest-40)
		}
		rest = int(ip.Length)
	default:
		return nil
	}
	udp, ok := packet.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if !ok {
		return nil
	}
	if int(udp.Length) != rest {
		return fmt.Errorf("UDP length %d, but the IP header says %d", udp.Length, rest)
	}
	if f.Partial {
		if want := pseudoSum(src, dst, udp.Length); udp.Checksum != want {
			return fmt.Errorf("partial UDP checksum %#04x, the pseudo-header's sum is %#04x", udp.Checksum, want)
		}
		return nil
	}
	if udp.Checksum == 0 && len(src) == 16 {
		return errors.New("UDP checksum 0 over IPv6")
	}
	if err := udp.SetNetworkLayerForChecksum(packet.NetworkLayer()); err != nil {
		return err
	}
	if err, result := udp.VerifyChecksum(); err != nil || !result.Valid {
		return fmt.Errorf("UDP checksum %#04x, right is %#04x", result.Actual, result.Correct)
	}
	return nil
}

// pseudoSum is what the kernel leaves in the checksum field of a UDP header for a device to complete: the folded sum of
// the pseudo-header (RFC 768, RFC 8200 §8.1), not inverted.
func pseudoSum(src, dst []byte, length uint16) uint16 {
	sum := uint32(length) + unix.IPPROTO_UDP
	for _, addr := range [][]byte{src, dst} {
		for i := 0; i+1 < len(addr); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(addr[i:]))
		}
	}
	for sum > 0xFFFF {
		sum = sum&0xFFFF + sum>>16
	}
	return uint16(sum)
}

// WritePcap writes frames as a capture file that tshark reads.
func WritePcap(w io.Writer, frames []testnet.Frame) error {
	const longest = 256 << 10
	out := pcapgo.NewWriter(w)
	err := out.WriteFileHeader(longest, layers.LinkTypeEthernet)
	for _, f := range frames {
		if err == nil {
			ci := gopacket.CaptureInfo{Timestamp: f.At, CaptureLength: len(f.Data), Length: len(f.Data)}
			err = out.WritePacket(ci, f.Data)
		}
	}
	return err
}

// Tshark has tshark look for wrong checksums and lengths in frames whose checksums are complete. Its error
// names the first frame that tshark objects to.
func Tshark(frames []testnet.Frame) error {
	file, err := os.CreateTemp("", "dissect-*.pcap")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	var complete []testnet.Frame
	for _, f := range frames {
		if !f.Partial {
			complete = append(complete, f)
		}
	}
	if err := errors.Join(WritePcap(file, complete), file.Close()); err != nil {
		return err
	}
	const bad = `ip.checksum.status == "Bad" || ip.bogus_ip_length || udp.checksum.status == "Bad" || ` +
		`udp.checksum.zero || udp.length.bad || udp.length.bad_zero`
	args := []string{
		"-n", "-r", file.Name(), "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-Y", bad,
	}
	out, err := exec.Command("tshark", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("tshark: %w: %s", err, out)
	}
	var objections []string
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "Running as user") {
			objections = append(objections, strings.TrimSpace(line))
		}
	}
	if len(objections) > 0 {
		return fmt.Errorf("tshark objects to %d of %d frames, such as %s", len(objections), len(complete),
			objections[0])
	}
	return nil
}
