package fanout

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Variant is a path from the publisher to its receivers.
type Variant string

const (
	Forwarding Variant = "forwarding" // the kernel's own routing, to one receiver: the unit
	Bare       Variant = "bare clone" // bpf_clone_redirect without any rewrite: the limit
	Relay      Variant = "relay"      // a generated relay that does what the user-space relays do
	SFU        Variant = "SFU"        // the generated relay of the SFU example, which does more
	Mmsg       Variant = "mmsg"       // a user-space relay with recvmmsg and sendmmsg
	GSO        Variant = "mmsg + gso" // the same, with UDP_SEGMENT
)

// Variants are all of them, in the order of reports.
var Variants = []Variant{Forwarding, Bare, Relay, SFU, Mmsg, GSO}

// Where packets go: the publisher sends RTP to the relay, receivers are ports of one host from firstPort on.
const (
	relayPort = 5004
	firstPort = 10000
	ssrc      = 7
	sequence  = 2  // where a packet's number is
	stampAt   = 16 // where a time stamp may be, after the RTP header and the VP8 descriptor
)

// role is the environment variable that makes a copy of the running program a relay.
const role = "FASTRELAY_FANOUT"

// ready is what a relay's process prints once it relays.
const ready = "ready"

// Main lets the program that calls it be started again as a relay. In these cases it doesn't return.
func Main() {
	var err error
	switch os.Getenv(role) {
	case "":
		return
	case "user":
		err = userMain(os.Args[1:], os.Stdout)
	case "generated":
		err = generatedMain(os.Args[1:], os.Stdout)
	default:
		err = errors.New("no such role")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// packet is the payload of a datagram of so many bytes: an RTP packet (RFC 3550 §5.1) with a frame of VP8 whose
// descriptor has a temporal layer, 0 (RFC 7741 §4.2).
func packet(size int) []byte {
	b := make([]byte, size)
	b[0], b[1] = 2<<6, 96
	binary.BigEndian.PutUint32(b[8:], ssrc)
	b[12], b[13] = 0x90, 0x20 // extended, start of a partition; a layer follows
	return b
}

// path is a line of hosts with one variant set up on it.
type path struct {
	variant   Variant
	receivers int
	net       *testnet.Net
	line      *testnet.Line
	publisher int // socket
	to        netip.AddrPort
	bare      *bare
	process   *exec.Cmd
	last      uint16 // number of the last packet that was published
}

// newPath sets up a variant. Packets come as from a network card, with complete checksums. With offload, the relay's
// device takes GSO packets (tx-udp-segmentation); without, the kernel cuts them before.
func newPath(v Variant, receivers int, offload bool) (_ *path, err error) {
	p := &path{variant: v, receivers: receivers, publisher: -1}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.net, err = testnet.New(); err != nil {
		return nil, err
	}
	l, err := p.net.Line()
	if err != nil {
		return nil, err
	}
	p.line = l
	err = errors.Join(
		l.RelayIn.SetReceiveCPU(measure.RelayCPU), l.PeerDev.SetReceiveCPU(measure.LoadCPU),
		offloads.Segmentation(l.ClientDev, false), offloads.Segmentation(l.RelayOut, offload),
		offloads.TxChecksum(l.ClientDev, false),
		// The sink answers no questions for neighbours.
		l.RelayIn.AddNeighbour(l.ClientAddr.V4, l.ClientDev.MAC), l.RelayOut.AddNeighbour(l.PeerAddr.V4, l.PeerDev.MAC),
		l.ClientDev.AddNeighbour(l.RelayInAddr.V4, l.RelayIn.MAC),
		l.PeerDev.AddNeighbour(l.RelayOutAddr.V4, l.RelayOut.MAC),
	)
	if err != nil {
		return nil, err
	}
	if p.publisher, _, err = measure.BlockingSocket(l.Client,
		netip.AddrPortFrom(l.ClientAddr.V4, publisherPort)); err != nil {
		return nil, err
	}
	listen := netip.AddrPortFrom(l.RelayInAddr.V4, relayPort)
	first := netip.AddrPortFrom(l.PeerAddr.V4, firstPort)
	p.to = listen
	args := []string{"--listen", listen.String(), "--to", first.String(), "--receivers", strconv.Itoa(receivers)}
	switch v {
	case Forwarding:
		p.to = first
		return p, l.Relay.SetForwarding(true)
	case Bare:
		if p.bare, err = loadBare(receivers, relayPort, l.RelayOut, l.PeerDev.MAC); err != nil {
			return nil, err
		}
		p.bare.detach, err = attach(l.RelayIn, p.bare.program(), ebpf.AttachTCXIngress)
		return p, err
	case Relay, SFU:
		publisher := netip.AddrPortFrom(l.ClientAddr.V4, publisherPort)
		return p, p.start("generated", append(args, "--variant", string(v), "--publisher", publisher.String(),
			"--device", l.RelayIn.Name)...)
	case GSO:
		return p, p.start("user", append(args, "--gso")...)
	default:
		return p, p.start("user", args...)
	}
}

// start starts a copy of this program as a relay, on the relay's processor, and waits until it relays.
func (p *path) start(as string, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p.process = p.line.Relay.Command(context.Background(), self, args...)
	// Nothing is preempted but by the kernel: as for any relay that wants to be fast.
	p.process.Env = append(os.Environ(), role+"="+as, "GODEBUG=asyncpreemptoff=1")
	p.process.Stderr = os.Stderr
	out, err := p.process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := testnet.StartChild(p.process); err != nil {
		p.process = nil
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != ready+"\n" {
		return fmt.Errorf("%s: the relay's process ended: %w", p.variant, err)
	}
	go io.Copy(io.Discard, out)
	if err := measure.Prefer(p.process.Process.Pid, measure.RelayCPU); err != nil {
		return err
	}
	return measure.SetRealTime(p.process.Process.Pid, relayPriority)
}

func (p *path) close() {
	if p.process != nil {
		_ = p.process.Process.Kill()
		_ = p.process.Wait()
	}
	if p.bare != nil {
		p.bare.close()
	}
	if p.publisher >= 0 {
		unix.Close(p.publisher)
	}
	if p.net != nil {
		_ = p.net.Close() // what stays is swept away by the next network
	}
}

const (
	publisherPort = 40000
	relayPriority = 2 // above what measures, see measure.SetRealTime
)

// sender makes a sender of packets to the relay, numbered one by one.
func (p *path) sender(size int) *measure.Sender {
	s := measure.NewSender(p.publisher, p.to, packet(size))
	s.SetNumber(sequence, &p.last)
	return s
}
