package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/testkernel"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/netdev"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// The TURN relay between two devices whose drivers have XDP. What comes out is compared byte by byte, and counted: all
// of it is sent from XDP where the kernel says what its devices can do there, and otherwise from tc/ingress.

// frameKinds are the kinds of devices. The two ports that make returns are the client's and the peer's.
var frameKinds = []struct {
	kind string
	hook runtime.Hook // that has frames come to programs at XDP
	make func(l *frameLab) (client, peer *framePort, err error)
	more func(l *frameLab) error // tried with this kind only, at XDP, or nil
}{
	{"veth", runtime.HookXDP, (*frameLab).veth, (*frameLab).dropped},
	{"virtio", runtime.HookAuto, (*frameLab).virtio, nil},
	{"tap", runtime.HookAuto, (*frameLab).tap, nil},
}

// framePort is a device of the relay, and what is beyond it.
type framePort struct {
	dev  *testnet.Dev
	far  net.HardwareAddr
	addr testnet.Addrs // of the relay
	host testnet.Addrs // beyond it

	wire     *testnet.Dev // beyond it; nil: a tap, of which this process has the file
	capture  *testnet.Capture
	tap      *os.File
	mu       sync.Mutex
	received [][]byte // from the tap
}

// frameLab is a relay between two ports.
type frameLab struct {
	network      *testnet.Net
	host         *testnet.Host
	relay        *runtime.Relay
	client, peer *framePort
	sent, first  uint64 // frames that were to be sent, and those from XDP
}

// checkFrames relays frames between devices of each kind.
func checkFrames(rep *reporter, dir string, whole bool) {
	for _, k := range frameKinds {
		rep.check(dir, "frames", func() (_ string, err error) {
			r, err := read(dir)
			if err != nil {
				return "", err
			}
			l := &frameLab{}
			defer func() { err = errors.Join(err, l.close()) }()
			if l.network, err = testnet.New(); err != nil {
				return "", err
			}
			if l.host, err = l.network.Host("relay"); err != nil {
				return "", err
			}
			l.client, l.peer, err = k.make(l)
			if errors.Is(err, unix.EOPNOTSUPP) && !whole {
				return "this machine has no " + k.kind, nil
			}
			if err == nil {
				err = l.run(r, k.hook)
			}
			if err == nil && l.first > 0 && k.more != nil {
				err = k.more(l)
			}
			if err != nil {
				return "", fmt.Errorf("%s: %w", k.kind, err)
			}
			return fmt.Sprintf("%s: %d frames, %d of them from XDP", k.kind, l.sent, l.first), nil
		})
	}
}

func (l *frameLab) close() error {
	var errs []error
	if l.relay != nil {
		errs = append(errs, l.relay.Close())
	}
	for _, p := range []*framePort{l.client, l.peer} {
		switch {
		case p == nil:
		case p.tap != nil:
			errs = append(errs, p.tap.Close())
		case p.capture != nil:
			_, err := p.capture.Stop()
			errs = append(errs, err)
		}
	}
	if l.network != nil {
		errs = append(errs, l.network.Close())
	}
	return errors.Join(errs...)
}

func (l *frameLab) veth() (client, peer *framePort, err error) {
	return l.ports(func(host *testnet.Host, i int) (here, there *testnet.Dev, err error) {
		name := fmt.Sprintf("v%d", i)
		if here, there, err = l.network.Join(l.host, name, host, name); err != nil {
			return nil, nil, err
		}
		return here, there, offloads.GRO(there, true) // else it takes no frames from XDP
	})
}

func (l *frameLab) virtio() (client, peer *framePort, err error) {
	return l.ports(func(host *testnet.Host, i int) (here, there *testnet.Dev, err error) {
		name := fmt.Sprintf("v%d", i)
		macs := testkernel.WireMACs[2+2*i:]
		if here, err = take(macs[0], l.host, name); err != nil {
			return nil, nil, err
		}
		there, err = take(macs[1], host, name)
		return here, there, err
	})
}

// ports makes two ports of cables.
func (l *frameLab) ports(join func(host *testnet.Host, i int) (here, there *testnet.Dev, err error)) (
	client, peer *framePort, err error) {
	var all [2]*framePort
	for i, name := range []string{"client", "peer"} {
		host, err := l.network.Host(name)
		if err != nil {
			return nil, nil, err
		}
		here, there, err := join(host, i)
		if err != nil {
			return nil, nil, err
		}
		all[i] = &framePort{dev: here, wire: there, far: there.MAC}
		if all[i].capture, err = there.Capture(); err != nil {
			return nil, nil, err
		}
	}
	return all[0], all[1], nil
}

func (l *frameLab) tap() (client, peer *framePort, err error) {
	var all [2]*framePort
	for i := range all {
		p := &framePort{far: net.HardwareAddr{2, 0, 0, 0, 1, byte(i)}}
		err := l.host.Do(func() error {
			name := fmt.Sprintf("v%d", i)
			fd, err := lab.OpenTap(name)
			if err != nil {
				return err
			}
			if err := unix.SetNonblock(fd, true); err != nil { // the driver runs XDP only for those who don't wait
				return errors.Join(err, unix.Close(fd))
			}
			p.tap = os.NewFile(uintptr(fd), name)
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			a := link.Attrs()
			p.dev = &testnet.Dev{Host: l.host, Name: name, Index: a.Index, MAC: a.HardwareAddr}
			return netlink.LinkSetUp(link)
		})
		if err != nil {
			return nil, nil, err
		}
		go p.read()
		all[i] = p
	}
	return all[0], all[1], nil
}

// offload is how long the header is that a tap's frames have in front (struct virtio_net_hdr).
const offload = 10

// read keeps what the relay sends to a tap, until that is closed.
func (p *framePort) read() {
	buf := make([]byte, 1<<16)
	for {
		n, err := p.tap.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.received = append(p.received, bytes.Clone(buf[offload:n]))
		p.mu.Unlock()
	}
}

func (p *framePort) send(frame []byte) error {
	if p.tap == nil {
		return p.wire.Inject(frame)
	}
	_, err := p.tap.Write(append(make([]byte, offload), frame...))
	return err
}

// arrived are the frames of UDP that the relay has sent to a port.
func (p *framePort) arrived() (list [][]byte) {
	p.mu.Lock()
	all := slices.Clone(p.received)
	p.mu.Unlock()
	if p.capture != nil {
		for _, f := range p.capture.Frames() {
			if !f.Outgoing {
				all = append(all, f.Data)
			}
		}
	}
	for _, frame := range all {
		if _, _, ok := dissect.UDP(testnet.Frame{Data: frame}); ok {
			list = append(list, frame)
		}
	}
	return list
}

// run relays between the two ports.
func (l *frameLab) run(r *relay, hook runtime.Hook) error {
	for i, p := range []*framePort{l.client, l.peer} {
		p.addr, p.host = addrsOf(byte(i), 1), addrsOf(byte(i), 2)
		if err := errors.Join(
			p.dev.AddAddr(p.addr.V4.String()+"/24"), p.dev.AddAddr(p.addr.V6.String()+"/64"),
			p.dev.AddNeighbour(p.host.V4, p.far), p.dev.AddNeighbour(p.host.V6, p.far),
		); err != nil {
			return err
		}
	}
	desc := glue.Desc(r.plan)
	if err := l.host.Do(func() (err error) {
		opt := runtime.Options{Lease: time.Minute, Logger: slog.New(slog.DiscardHandler)}
		l.relay, err = runtime.Load(&desc, r.object, opt)
		return err
	}); err != nil {
		return err
	}
	none := netdev.Known()
	if none != nil {
		hook = runtime.HookAuto
	}
	for program, p := range map[string]*framePort{"to_peer": l.client, "to_client": l.peer} {
		prog := l.relay.Program(program)
		if err := prog.AttachAt(p.dev.Name, runtime.AttachOptions{Hook: hook}); err != nil {
			return err
		}
		if a := prog.Attachments()[0]; a.XDP != (none == nil) || !errors.Is(a.NoXDP, none) {
			return fmt.Errorf("%s is attached as %+v, and the kernel says: %v", program, a, none)
		}
	}
	for _, c := range []struct{ client, peer int }{{4, 4}, {6, 6}, {4, 6}, {6, 4}} {
		if err := l.relayed(c.client, c.peer, none == nil); err != nil {
			return fmt.Errorf("client IPv%d, peer IPv%d: %w", c.client, c.peer, err)
		}
	}
	return nil
}

// addrsOf are the addresses of a host in the network of a port.
func addrsOf(port, host byte) testnet.Addrs {
	return testnet.Addrs{
		V4: netip.AddrFrom4([4]byte{198, 51, 100 + port, host}),
		V6: netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, port, 15: host}),
	}
}

// path is one direction: a frame to the relay, and the one that the relay has to send.
type path struct {
	from, to    *framePort
	frame, want func(payload []byte) ([]byte, error)
}

// paths opens a channel, and returns both directions.
func (l *frameLab) paths(clientFamily, peerFamily int) (session *runtime.AnySession, paths []path, err error) {
	at := func(a testnet.Addrs, family int, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(a.Of(family), port)
	}
	c, p := l.client, l.peer
	client, server := at(c.host, clientFamily, clientPort), at(c.addr, clientFamily, serverPort)
	relayed, peer := at(p.addr, peerFamily, relayedPort), at(p.host, peerFamily, peerPort)
	session, err = l.relay.Open("channel", client, server, channel, relayed, peer)
	if err != nil {
		return nil, nil, err
	}
	framed := func(src, dst net.HardwareAddr, from, to netip.AddrPort, inChannel bool) func([]byte) ([]byte, error) {
		return func(payload []byte) ([]byte, error) {
			if inChannel {
				payload = turnlab.ChannelData(channel, payload)
			}
			return turnlab.UDPFrame(src, dst, from, to, payload)
		}
	}
	return session, []path{
		{c, p, framed(c.far, c.dev.MAC, client, server, true), framed(p.dev.MAC, p.far, relayed, peer, false)},
		{p, c, framed(p.far, p.dev.MAC, peer, relayed, false), framed(c.dev.MAC, c.far, server, client, true)},
	}, nil
}

// relayed sends frames of several sizes in both directions.
func (l *frameLab) relayed(clientFamily, peerFamily int, atXDP bool) error {
	session, paths, err := l.paths(clientFamily, peerFamily)
	if err != nil {
		return err
	}
	for i, p := range paths {
		if err == nil {
			err = l.pass(p, atXDP)
		}
		if err != nil {
			err = fmt.Errorf("direction %d: %w", i+1, err)
			break
		}
	}
	return errors.Join(err, session.Close())
}

// pass sends frames one after the other. If they are to be sent from XDP, the first ones may come before the relay
// knows that the device takes them: they leave from tc/ingress.
func (l *frameLab) pass(p path, atXDP bool) error {
	settled := !atXDP
	for deadline := time.Now().Add(patience); !settled; {
		before := l.first
		if err := l.one(p, 20); err != nil {
			return err
		}
		if settled = l.first > before; !settled && time.Now().After(deadline) {
			return errors.New("no frame is sent from XDP")
		}
	}
	all, first := l.sent, l.first
	sizes := []int{1, 32, 33, 1200, 1400}
	for _, size := range sizes {
		if err := l.one(p, size); err != nil {
			return fmt.Errorf("%d bytes: %w", size, err)
		}
	}
	want := uint64(0)
	if atXDP {
		want = uint64(len(sizes))
	}
	if l.sent-all != uint64(len(sizes)) || l.first-first != want {
		return fmt.Errorf("%d frames were sent of %d, and from XDP %d of %d", l.sent-all, len(sizes), l.first-first,
			want)
	}
	return nil
}

// one sends a frame, compares what comes out, and counts.
func (l *frameLab) one(p path, size int) error {
	payload := bytes.Repeat([]byte{byte(size)}, size) // so that no checksum looks like one that is left to a device
	frame, err1 := p.frame(payload)
	want, err2 := p.want(payload)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	before := len(p.to.arrived())
	if err := p.from.send(frame); err != nil {
		return err
	}
	err := testnet.Until(patience, "a frame comes out", func() bool { return len(p.to.arrived()) > before })
	if err != nil {
		return err
	}
	want = turnlab.Unpadded(want)
	got := p.to.arrived()[before:]
	if len(got) > 1 || !bytes.Equal(got[0], want) {
		return fmt.Errorf("%x came out for %x, expected was %x", got, frame, want)
	}
	l.sent, l.first = 0, 0
	for _, name := range []string{"to_peer", "to_client"} {
		prog := l.relay.Program(name)
		all, err1 := prog.Counts()
		first, err2 := prog.XDPCounts()
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		for i, r := range prog.Desc().Reasons {
			if r.Name == "sent" {
				l.sent, l.first = l.sent+all[i].Packets, l.first+first[i].Packets
			}
		}
	}
	return nil
}

// dropped sends frames that the peer's end of a veth doesn't take, and awaits that they are counted.
func (l *frameLab) dropped() error {
	list, err := l.relay.XDPDrops()
	if err == nil && len(list) > 0 {
		err = fmt.Errorf("dropped were %v", list)
	}
	if err != nil {
		return err
	}
	session, paths, err := l.paths(4, 4)
	if err != nil {
		return err
	}
	defer session.Close()
	frame, err := paths[0].frame(make([]byte, 1200))
	if err == nil {
		err = l.peer.wire.SetMTU(1000)
	}
	const n = 5
	for range n {
		if err == nil {
			err = l.client.send(frame)
		}
	}
	if err != nil {
		return err
	}
	want := []runtime.XDPDrop{{Interface: l.peer.dev.Name, Reason: "full", Packets: n}}
	var failed error
	err = testnet.Until(patience, "the drops are counted", func() bool {
		list, failed = l.relay.XDPDrops()
		return failed != nil || slices.Equal(list, want)
	})
	return errors.Join(err, failed)
}
