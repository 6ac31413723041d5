package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/turn/turnrelay"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/netdev"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// frames is a line whose relay runs at XDP, with an open channel. Frames are put on its cables as they are.
type frames struct {
	*testing.T
	line  *testnet.Line
	relay *turnrelay.Relay

	toPeer, toClient []byte // a frame in each direction
}

// xdpLine makes such a line; hook is what all attachments ask for.
func xdpLine(t *testing.T, opt turnrelay.Options, hook runtime.Hook) *frames {
	t.Helper()
	needs.Root(t)
	f := &frames{T: t, line: line(t)}
	l := f.line
	check(t, errors.Join(offloads.GRO(l.ClientDev, true), offloads.GRO(l.PeerDev, true),
		l.RelayIn.AddNeighbour(l.ClientAddr.V4, l.ClientDev.MAC),
		l.RelayOut.AddNeighbour(l.PeerAddr.V4, l.PeerDev.MAC)))
	f.load(opt)
	t.Cleanup(func() { f.relay.Close() })
	for _, dev := range []*testnet.Dev{l.RelayIn, l.RelayOut} {
		f.attach(dev, hook)
	}
	channelOf := turnrelay.Channel{
		Client: at(l.ClientAddr.V4, 40000), Server: at(l.RelayInAddr.V4, turnPort), Number: channel,
		Relayed: at(l.RelayOutAddr.V4, 50000), Peer: at(l.PeerAddr.V4, 7000),
	}
	_, err := f.relay.Channel.Open(channelOf)
	check(t, err)
	f.toPeer, err = turnlab.UDPFrame(l.ClientDev.MAC, l.RelayIn.MAC, channelOf.Client, channelOf.Server,
		turnlab.ChannelData(channel, turnlab.Payload(32)))
	check(t, err)
	f.toClient, err = turnlab.UDPFrame(l.PeerDev.MAC, l.RelayOut.MAC, channelOf.Peer, channelOf.Relayed,
		turnlab.Payload(32))
	check(t, err)
	return f
}

func (f *frames) load(opt turnrelay.Options) {
	f.Helper()
	check(f.T, f.line.Relay.Do(func() (err error) {
		f.relay, err = turnrelay.Load(opt)
		return err
	}))
}

// attach attaches both programs to a device.
func (f *frames) attach(dev *testnet.Dev, hook runtime.Hook) {
	f.Helper()
	o := runtime.AttachOptions{Hook: hook}
	check(f.T, errors.Join(f.relay.ToPeer.AttachAt(dev.Name, o), f.relay.ToClient.AttachAt(dev.Name, o)))
}

// places are where a program is attached on a device.
func (f *frames) place(dev *testnet.Dev) runtime.Attachment {
	f.Helper()
	for _, a := range f.relay.ToPeer.Attachments() {
		if a.Interface == dev.Name {
			return a
		}
	}
	f.Fatalf("to_peer isn't attached to %s", dev.Name)
	return runtime.Attachment{}
}

// sent is how many packets were sent, and how many of them from XDP.
func (f *frames) sent() (all, atXDP uint64) {
	f.Helper()
	for _, p := range []*runtime.AnyProgram{f.relay.ToPeer.AnyProgram, f.relay.ToClient.AnyProgram} {
		counts, err := p.Counts()
		check(f.T, err)
		first, err := p.XDPCounts()
		check(f.T, err)
		for i, r := range p.Desc().Reasons {
			if r.Name == "sent" {
				all, atXDP = all+counts[i].Packets, atXDP+first[i].Packets
			}
		}
	}
	return all, atXDP
}

// pass sends a frame in each direction n times, wants each to come out right, and once, and as many of them as are said
// to be sent from XDP.
func (f *frames) pass(what string, n int, atXDP bool) {
	f.Helper()
	l := f.line
	all, first := f.sent()
	for _, c := range []struct {
		in, out, relay *testnet.Dev
		frame          []byte
	}{{l.ClientDev, l.PeerDev, l.RelayOut, f.toPeer}, {l.PeerDev, l.ClientDev, l.RelayIn, f.toClient}} {
		capture, err := c.out.Capture()
		check(f.T, err)
		for range n {
			check(f.T, c.in.Inject(c.frame))
		}
		got := func() (list []testnet.Frame) {
			for _, g := range capture.Frames() {
				if !g.Outgoing && len(g.Data) > 12 && net.HardwareAddr(g.Data[6:12]).String() == c.relay.MAC.String() {
					if _, _, ok := dissect.UDP(g); ok {
						list = append(list, g)
					}
				}
			}
			return list
		}
		err = testnet.Until(wait, what+": all frames come out", func() bool { return len(got()) >= n })
		if err != nil {
			f.Fatalf("%v: %d of %d; %+v", err, len(got()), n, f.place(l.RelayIn))
		}
		_, err = capture.Stop()
		check(f.T, err)
		if len(got()) != n {
			f.Errorf("%s: %d frames came out of %d", what, len(got()), n)
		}
		for _, g := range got() {
			check(f.T, dissect.Check(g))
		}
	}
	nowAll, nowFirst := f.sent()
	want := uint64(0)
	if atXDP {
		want = uint64(2 * n)
	}
	if nowAll-all != uint64(2*n) || nowFirst-first != want {
		f.Errorf("%s: %d packets were sent, %d of them from XDP; want %d, %d", what, nowAll-all, nowFirst-first, 2*n,
			want)
	}
}

// until waits until a program runs at XDP on a device, or doesn't.
func (f *frames) until(dev *testnet.Dev, atXDP bool) {
	f.Helper()
	check(f.T, testnet.Until(wait, fmt.Sprintf("at XDP on %s: %t", dev.Name, atXDP), func() bool {
		return f.place(dev).XDP == atXDP
	}))
}

// Frames go out as from tc/ingress, from both programs of a device; asked for or not, they can be changed while packets
// flow.
func TestXDP(t *testing.T) {
	f := xdpLine(t, turnrelay.Options{}, runtime.HookXDP)
	f.pass("at XDP", 20, true)
	f.attach(f.line.RelayIn, runtime.HookTC)
	f.attach(f.line.RelayOut, runtime.HookTC)
	f.pass("at tc/ingress", 20, false)
	f.attach(f.line.RelayIn, runtime.HookXDP)
	f.attach(f.line.RelayOut, runtime.HookXDP)
	f.pass("at XDP again", 20, true)
	check(t, f.relay.ToClient.Detach(f.line.RelayIn.Name))
	check(t, f.relay.ToPeer.Detach(f.line.RelayOut.Name))
	f.pass("one program at each", 20, true)
}

// A device whose far end takes no frames from XDP gets them from tc/ingress, and again from XDP when it does.
func TestXDPWayOut(t *testing.T) {
	f := xdpLine(t, turnrelay.Options{}, runtime.HookXDP)
	f.pass("GRO on", 5, true)
	devices := mapOf(t, f.line.RelayIn, "fr_devmap")
	for range 3 {
		for _, on := range []bool{false, true} {
			check(t, errors.Join(offloads.GRO(f.line.ClientDev, on), offloads.GRO(f.line.PeerDev, on)))
			takes := func(dev *testnet.Dev) bool {
				var value [2]uint32
				return devices.Lookup(uint32(dev.Index), &value) == nil
			}
			check(t, testnet.Until(wait, "the table of devices is up to date", func() bool {
				return takes(f.line.RelayIn) == on && takes(f.line.RelayOut) == on
			}))
			f.pass(fmt.Sprintf("GRO %t", on), 5, on)
		}
	}
}

// mapOf opens a map of what runs at XDP on a device.
func mapOf(t *testing.T, dev *testnet.Dev, name string) *ebpf.Map {
	t.Helper()
	p, err := ebpf.NewProgramFromID(idAtXDP(t, dev))
	check(t, err)
	defer p.Close()
	info, err := p.Info()
	check(t, err)
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		check(t, err)
		if info, err := m.Info(); err == nil && info.Name == name {
			t.Cleanup(func() { m.Close() })
			return m
		}
		m.Close()
	}
	t.Fatalf("no map %s", name)
	return nil
}

// A program of somebody else at XDP keeps its place: its name is said, and packets come at tc/ingress. When it goes,
// what was asked for at XDP is there.
func TestXDPForeign(t *testing.T) {
	f := xdpLine(t, turnrelay.Options{}, runtime.HookTC)
	in := f.line.RelayIn
	foreign := f.foreign(in.Name)
	err := f.relay.ToPeer.AttachAt(in.Name, runtime.AttachOptions{Hook: runtime.HookXDP})
	if err == nil || !strings.Contains(err.Error(), "somebodys (program ") {
		t.Errorf("the error is %v", err)
	}
	if a := f.place(in); a.XDP || a.NoXDP != nil {
		t.Errorf("an error has left it with %+v", a)
	}
	f.pass("behind another one", 5, false)
	check(t, foreign.Close())

	// A device that comes back with such a program.
	extra := &testnet.Dev{Name: "extra"}
	ip := func(args ...string) { check(t, f.line.Relay.Run("ip", append([]string{"link"}, args...)...)) }
	ip("add", extra.Name, "type", "veth", "peer", "name", "far")
	f.attach(extra, runtime.HookXDP)
	f.until(extra, true)
	ip("del", extra.Name)
	ip("add", "new", "type", "veth", "peer", "name", "far")
	foreign = f.foreign("new")
	ip("set", "new", "name", extra.Name)
	check(t, testnet.Until(wait, "it is attached behind another one", func() bool {
		a := f.place(extra)
		return a.Lost == nil && !a.XDP && a.NoXDP != nil && strings.Contains(a.NoXDP.Error(), "somebodys")
	}))
	check(t, foreign.Close())
	f.until(extra, true)
}

// foreign attaches a program of somebody else at XDP.
func (f *frames) foreign(name string) (l link.Link) {
	f.Helper()
	check(f.T, f.line.Relay.Do(func() error {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: "somebodys", Type: ebpf.XDP, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
		})
		if err != nil {
			return err
		}
		defer p.Close()
		dev, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		l, err = link.AttachXDP(link.XDPOptions{
			Program: p, Interface: dev.Attrs().Index, Flags: link.XDPDriverMode,
		})
		return err
	}))
	return l
}

// On a veth XDP has to be asked for: what sockets send costs less at tc/ingress.
func TestXDPAuto(t *testing.T) {
	f := xdpLine(t, turnrelay.Options{}, runtime.HookAuto)
	for _, dev := range []*testnet.Dev{f.line.RelayIn, f.line.RelayOut} {
		if a := f.place(dev); a.XDP || !errors.Is(a.NoXDP, netdev.ErrVeth) {
			t.Errorf("%+v", a)
		}
	}
	f.pass("auto", 5, false)
}

// What another process takes away from XDP isn't attached again by itself.
func TestXDPTakenAway(t *testing.T) {
	f := xdpLine(t, turnrelay.Options{}, runtime.HookXDP)
	in := f.line.RelayIn
	check(t, detachXDP(in))
	f.until(in, false)
	if why := f.place(in).NoXDP; why == nil || !strings.Contains(why.Error(), "another process") {
		t.Errorf("why: %v", why)
	}
	f.attach(f.line.RelayOut, runtime.HookTC)
	f.pass("taken away", 5, false)
	f.attach(in, runtime.HookXDP)
	f.attach(f.line.RelayOut, runtime.HookXDP)
	f.pass("attached again", 5, true)
}

// A device that goes comes back with all its programs at XDP; one that gets another address is one still.
func TestXDPDevice(t *testing.T) {
	f := xdpLine(t, turnrelay.Options{}, runtime.HookXDP)
	l := f.line
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 77}
	check(t, l.Relay.Run("ip", "link", "set", l.RelayIn.Name, "address", mac.String()))
	l.RelayIn.MAC = mac
	copy(f.toPeer, mac)
	m := mapOf(t, l.RelayIn, "fr_macs")
	check(t, testnet.Until(wait, "the address is known", func() bool {
		var known [8]byte
		return m.Lookup(uint32(l.RelayIn.Index), &known) == nil && net.HardwareAddr(known[:6]).String() == mac.String()
	}))
	check(t, l.RelayIn.AddNeighbour(l.ClientAddr.V4, l.ClientDev.MAC))
	check(t, testnet.Until(wait, "the neighbour is known again", func() bool {
		for _, h := range f.relay.Runtime().NextHops() {
			if h.State != runtime.HopDirect || h.Ifindex == l.RelayIn.Index && net.HardwareAddr(h.Src[:]).String() !=
				mac.String() {
				return false
			}
		}
		return true
	}))
	f.pass("another address", 5, true)
}

// A device goes while packets come by it, and with it the program that is bound to it: the relay goes on at the others,
// and with a new one.
func TestXDPDeviceGone(t *testing.T) {
	f := xdpLine(t, turnrelay.Options{}, runtime.HookXDP)
	f.pass("before", 5, true)
	extra := &testnet.Dev{Name: "extra"}
	join := func() {
		ip := func(args ...string) { check(t, f.line.Relay.Run("ip", append([]string{"link"}, args...)...)) }
		ip("add", extra.Name, "type", "veth", "peer", "name", "far")
		ip("set", extra.Name, "up")
		ip("set", "far", "up")
	}
	join()
	f.attach(extra, runtime.HookXDP)
	for range 3 {
		f.until(extra, true)
		check(t, f.line.Relay.Run("ip", "link", "del", extra.Name))
		f.pass("a device less", 5, true)
		join()
	}
	f.until(extra, true)
}

// A tag that the sender's kernel keeps beside the packet is no part of the frame that XDP has: the packet isn't taken
// for one without.
func TestXDPHiddenTag(t *testing.T) {
	f := xdpLine(t, turnrelay.Options{}, runtime.HookXDP)
	l := f.line
	var tagger link.Link
	check(t, l.Client.Do(func() error {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: "tagger", Type: ebpf.SchedCLS, License: "GPL",
			Instructions: asm.Instructions{
				asm.Mov.Imm(asm.R2, int32(binary.NativeEndian.Uint16([]byte{0x81, 0}))), asm.Mov.Imm(asm.R3, 7),
				asm.FnSkbVlanPush.Call(), asm.Mov.Imm(asm.R0, 0), asm.Return(),
			},
		})
		if err != nil {
			return err
		}
		defer p.Close()
		tagger, err = link.AttachTCX(link.TCXOptions{
			Program: p, Interface: l.ClientDev.Index, Attach: ebpf.AttachTCXEgress,
		})
		return err
	}))
	before, _ := f.sent()
	for range 5 {
		check(t, l.ClientDev.Inject(f.toPeer))
	}
	check(t, testnet.Until(wait, "the tagged packets are declined", func() bool {
		n, err := f.relay.ToPeer.AnyProgram.Count("vlan_tag")
		check(t, err)
		return n.Packets >= 5
	}))
	if after, _ := f.sent(); after != before {
		t.Errorf("%d packets were sent without the tag that they came with", after-before)
	}
	check(t, tagger.Close())
	f.pass("without a tag", 5, true)
}

// A successor goes on at XDP: between the two, each packet is sent once, and nothing is attached anew.
func TestXDPSuccessor(t *testing.T) {
	path := filepath.Join("/sys/fs/bpf", fmt.Sprintf("fr-xdp-%d", unix.Getpid()))
	opt := turnrelay.Options{PinPath: path, Linger: 10 * wait}
	f := xdpLine(t, opt, runtime.HookXDP)
	f.pass("the first", 5, true)
	was := idAtXDP(t, f.line.RelayIn)
	check(t, f.relay.Close())
	opt.Linger = 0
	// Nobody is there: the kernel goes on.
	capture, err := f.line.PeerDev.Capture()
	check(t, err)
	for range 10 {
		check(t, f.line.ClientDev.Inject(f.toPeer))
	}
	f.load(opt)
	if !f.relay.Runtime().Adopted() || !f.place(f.line.RelayIn).XDP || !f.place(f.line.RelayOut).XDP {
		t.Errorf("not adopted at XDP: %+v", f.place(f.line.RelayIn))
	}
	if id := idAtXDP(t, f.line.RelayIn); id == was || id == 0 {
		t.Errorf("the program at XDP was %d, and is %d", was, id)
	}
	for range 10 {
		check(t, f.line.ClientDev.Inject(f.toPeer))
	}
	count := func() (n int) {
		for _, g := range capture.Frames() {
			if _, _, ok := dissect.UDP(g); ok && !g.Outgoing {
				n++
			}
		}
		return n
	}
	check(t, testnet.Until(wait, "packets of both times come", func() bool { return count() >= 20 }))
	_, err = capture.Stop()
	check(t, err)
	if n := count(); n != 20 {
		t.Errorf("%d packets came of 20", n)
	}
	f.pass("the second", 5, true)
	check(t, f.relay.Close())
	if id := idAtXDP(t, f.line.RelayIn); id != 0 {
		t.Errorf("program %d is left at XDP", id)
	}
}

// linkAt is the kernel's link of what runs at XDP on a device; nil: nothing does.
func linkAt(dev *testnet.Dev) (found link.Link, id ebpf.ProgramID, err error) {
	err = dev.Host.Do(func() error {
		l, err := netlink.LinkByName(dev.Name)
		if err == nil && l.Attrs().Xdp != nil {
			id = ebpf.ProgramID(l.Attrs().Xdp.ProgId)
		}
		return err
	})
	var it link.Iterator // of all namespaces
	defer it.Close()
	for id != 0 && err == nil && it.Next() {
		if info, err := it.Link.Info(); err == nil && info.Program == id {
			return it.Take(), id, nil
		}
	}
	return nil, id, errors.Join(err, it.Err())
}

func idAtXDP(t *testing.T, dev *testnet.Dev) ebpf.ProgramID {
	t.Helper()
	l, id, err := linkAt(dev)
	check(t, err)
	if l != nil {
		l.Close()
	}
	return id
}

func detachXDP(dev *testnet.Dev) error {
	l, _, err := linkAt(dev)
	if err != nil || l == nil {
		return errors.Join(err, errors.New("nothing is at XDP"))
	}
	defer l.Close()
	return l.Detach()
}

// Each datagram arrives as it was sent while its sender leaves checksums to its device, and doesn't, in turn: XDP isn't
// told, and takes those that are complete. What arrives wrong, the receiver's kernel drops.
func TestXDPChecksumFlips(t *testing.T) {
	f := xdpLine(t, turnrelay.Options{}, runtime.HookXDP)
	l := f.line
	client := udpSocket(t, l.Client, at(l.ClientAddr.V4, 40000))
	peer := udpSocket(t, l.Peer, at(l.PeerAddr.V4, 7000))
	server := net.UDPAddrFromAddrPort(at(l.RelayInAddr.V4, turnPort))
	stop, stopped := make(chan struct{}), make(chan struct{})
	var flips atomic.Int64
	go func() {
		defer close(stopped)
		for on := false; ; on = !on {
			select {
			case <-stop:
				return
			default:
			}
			err := errors.Join(offloads.TxChecksum(l.ClientDev, on), offloads.TxChecksum(l.PeerDev, !on))
			if err != nil {
				t.Error(err)
				return
			}
			flips.Add(1)
		}
	}()
	defer func() { close(stop); <-stopped }()
	before, first := f.sent()
	buf := make([]byte, 2048)
	enough := func() bool {
		all, atXDP := f.sent()
		atXDP -= first
		return flips.Load() >= 40 && atXDP >= 200 && all-before-atXDP >= 200 || t.Failed()
	}
	count := uint64(0)
	for ; count%100 != 0 || !enough(); count++ {
		payload := turnlab.Payload(1 + int(count)%1200)
		_, err := client.WriteTo(turnlab.ChannelData(channel, payload), server)
		check(t, err)
		check(t, peer.SetReadDeadline(time.Now().Add(wait)))
		n, from, err := peer.ReadFromUDPAddrPort(buf)
		if err != nil || !bytes.Equal(buf[:n], payload) {
			t.Fatalf("datagram %d to the peer: %d bytes: %v", count, n, err)
		}
		_, err = peer.WriteToUDPAddrPort(payload, from)
		check(t, err)
		check(t, client.SetReadDeadline(time.Now().Add(wait)))
		if n, err = client.Read(buf); err != nil || !bytes.Equal(buf[4:n], payload) {
			t.Fatalf("datagram %d to the client: %d bytes: %v", count, n, err)
		}
	}
	all, atXDP := f.sent()
	t.Logf("%d flips; %d packets sent, %d of them from XDP", flips.Load(), all-before, atXDP-first)
	if all-before != 2*count {
		t.Errorf("%d packets were sent of %d", all-before, 2*count)
	}
}
