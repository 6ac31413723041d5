package testnet

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// noiseVariable in the environment makes every cable carry, at random moments, what kernels send on their own: a
// test that counts packets of others then fails always, and not once in a thousand runs.
//
//	FASTRELAY_TEST_NOISE=2ms go test -count=1 ./runtime ./gen/bpf …
const noiseVariable = "FASTRELAY_TEST_NOISE"

// noise sends such frames from a device, each so long after the last on average, until the network is closed.
func (n *Net) noise(d *Dev, pause time.Duration) error {
	fd, err := d.PacketSocket(0)
	if err != nil {
		return err
	}
	frames := noiseFrames()
	go func() {
		defer unix.Close(fd)
		for {
			select {
			case <-n.closed:
				return
			case <-time.After(time.Duration(rand.Int64N(2 * int64(pause)))):
			}
			// A device that is down or gone sends nothing.
			_ = unix.Sendto(fd, frames[rand.IntN(len(frames))], 0, &unix.SockaddrLinklayer{Ifindex: d.Index})
		}
	}()
	return nil
}

func (n *Net) noises(devs ...*Dev) error {
	text := os.Getenv(noiseVariable)
	if text == "" {
		return nil
	}
	pause, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	for _, d := range devs {
		if err := n.noise(d, max(pause, time.Microsecond)); err != nil {
			return err
		}
	}
	return nil
}

// noiseFrames are an address probe of IPv4 (RFC 5227), duplicate address detection of IPv6 (RFC 4862 §5.4) and a
// report of a multicast listener (RFC 3810 §5.2), which no host answers and which change nothing.
// Their sender's address has UDP's number where IP headers have their protocol.
func noiseFrames() [][]byte {
	const udp = unix.IPPROTO_UDP
	mac := []byte{0x02, udp, udp, udp, udp, udp}
	multicast := []byte{0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0xff, 0, 0, 0x99} // of target
	target := []byte{0x20, 0x01, 0x0d, 0xb8, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x99}
	listeners := []byte{0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x16}

	probe := frame([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac, unix.ETH_P_ARP)
	probe = append(probe, 0, 1, 8, 0, 6, 4, 0, 1)
	probe = append(append(probe, mac...), 0, 0, 0, 0)
	probe = append(probe, 0, 0, 0, 0, 0, 0, 198, 18, 0, 99)

	solicitation := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target...)
	report := append([]byte{143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0}, multicast...) // a record: exclude nothing
	alert := []byte{unix.IPPROTO_ICMPV6, 0, 5, 2, 0, 0, 1, 0}                    // hop-by-hop options
	return [][]byte{
		probe,
		append(frame([]byte{0x33, 0x33, 0xff, 0, 0, 0x99}, mac, unix.ETH_P_IPV6),
			icmp6(multicast, 255, nil, solicitation)...),
		append(frame([]byte{0x33, 0x33, 0, 0, 0, 0x16}, mac, unix.ETH_P_IPV6),
			icmp6(listeners, 1, alert, report)...),
	}
}

func frame(to, from []byte, protocol uint16) []byte {
	return binary.BigEndian.AppendUint16(append(append([]byte(nil), to...), from...), protocol)
}

// icmp6 is a packet from the unspecified address.
func icmp6(to []byte, hops byte, options, message []byte) []byte {
	sum := uint32(unix.IPPROTO_ICMPV6 + len(message))
	for _, b := range [][]byte{to, message} {
		for i := 0; i+1 < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(message[2:], ^uint16(sum))
	next := byte(unix.IPPROTO_ICMPV6)
	if options != nil {
		next = unix.IPPROTO_HOPOPTS
	}
	p := []byte{0x60, 0, 0, 0, 0, byte(len(options) + len(message)), next, hops}
	p = append(append(p, make([]byte, 16)...), to...)
	return append(append(p, options...), message...)
}
