package main

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/turn/turnrelay"
	"github.com/fastrelay/fastrelay-gen/internal/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/netdev"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// randomFrames sends random packets through channels of all pairs of IP versions, in both directions.
type randomFrames struct {
	*frames
	random   *rand.Rand
	channels []turnrelay.Channel
	captures map[*testnet.Dev]*testnet.Capture
	want     map[*testnet.Dev]map[string]int // frames that have to come out, and how often
	seen     map[*testnet.Dev]int            // frames that were judged
	sockets  map[*testnet.Dev]int            // that send frames
	sent     int
	got      int
	left     uint64 // of those that were sent, those that XDP leaves to tc/ingress
}

// Random packets of clients and peers: each comes out, once, with the bytes that it has to have, and no other; all are
// sent from XDP, but for those whose checksum looks like one that is left to a device, and those of peers that are
// shorter than a header of channel data, which the first program looks for. gopacket builds what has to come out, and
// checks what does.
func TestXDPRandom(t *testing.T) {
	f := xdpLine(t, turnrelay.Options{}, runtime.HookXDP)
	l := f.line
	check(t, errors.Join(l.RelayIn.AddNeighbour(l.ClientAddr.V6, l.ClientDev.MAC),
		l.RelayOut.AddNeighbour(l.PeerAddr.V6, l.PeerDev.MAC)))
	r := &randomFrames{
		frames: f, random: rand.New(rand.NewPCG(needs.Seed(t), 0)), captures: map[*testnet.Dev]*testnet.Capture{},
		seen: map[*testnet.Dev]int{}, sockets: map[*testnet.Dev]int{},
		want: map[*testnet.Dev]map[string]int{l.ClientDev: {}, l.PeerDev: {}},
	}
	for i := range 16 {
		number := uint16(channel + 1 + i)
		c := turnrelay.Channel{
			Client: at(l.ClientAddr.Of(4+2*(i&1)), 41000+number), Server: at(l.RelayInAddr.Of(4+2*(i&1)), turnPort),
			Number: number, Relayed: at(l.RelayOutAddr.Of(4+i&2), 51000+number), Peer: at(l.PeerAddr.Of(4+i&2), 7000),
		}
		_, err := f.relay.Channel.Open(c)
		check(t, err)
		r.channels = append(r.channels, c)
	}
	check(t, testnet.Until(wait, "all next hops are known", func() bool {
		return !slices.ContainsFunc(f.relay.Runtime().NextHops(), func(h runtime.NextHop) bool {
			return h.State != runtime.HopDirect
		})
	}))
	for dev := range r.want {
		c, err := dev.Capture()
		check(t, err)
		fd, err := dev.PacketSocket(0)
		check(t, err)
		defer unix.Close(fd)
		r.captures[dev], r.sockets[dev] = c, fd
	}
	before, first := f.sent()
	const window = 64 // fewer than the rings of a veth hold
	for range needs.Of(50, 500) {
		for range window {
			r.send()
		}
		r.await()
	}
	for _, c := range r.captures {
		_, err := c.Stop()
		check(t, err)
	}
	r.take()
	all, atXDP := f.sent()
	if r.got != r.sent {
		t.Errorf("%d packets came of %d", r.got, r.sent)
	}
	if n := uint64(r.sent); all-before != n || atXDP-first != n-r.left {
		t.Errorf("%d packets were sent of %d, and from XDP %d of %d", all-before, n, atXDP-first, n-r.left)
	}
	t.Logf("%d packets; XDP left %d", r.sent, r.left)
	f.dropped()
}

// send sends a packet, of which the relay sends one on, or none.
func (r *randomFrames) send() {
	r.Helper()
	l, c := r.line, r.channels[r.random.IntN(len(r.channels))]
	payload := make([]byte, r.random.IntN(1440))
	for i := range payload {
		payload[i] = byte(r.random.Uint32())
	}
	if r.random.IntN(2) == 0 {
		frame, err1 := turnlab.UDPFrame(l.PeerDev.MAC, l.RelayOut.MAC, c.Peer, c.Relayed, payload)
		want, err2 := turnlab.UDPFrame(l.RelayIn.MAC, l.ClientDev.MAC, c.Server, c.Client,
			turnlab.ChannelData(c.Number, payload))
		check(r.T, errors.Join(err1, err2))
		r.inject(l.PeerDev, frame, l.ClientDev, want, len(payload) < 4)
		return
	}
	padding := make([]byte, r.random.IntN(4)) // RFC 8656 allows it
	number := c.Number
	if r.random.IntN(8) == 0 {
		number += 100 // which isn't open: it is the server's
	}
	frame, err1 := turnlab.UDPFrame(l.ClientDev.MAC, l.RelayIn.MAC, c.Client, c.Server,
		append(turnlab.ChannelData(number, payload), padding...))
	want, err2 := turnlab.UDPFrame(l.RelayOut.MAC, l.PeerDev.MAC, c.Relayed, c.Peer, payload)
	check(r.T, errors.Join(err1, err2))
	if number != c.Number {
		want = nil
	}
	r.inject(l.ClientDev, frame, l.PeerDev, want, false)
}

// inject sends a frame; want is what has to come out, or nil. A short one is left by XDP.
func (r *randomFrames) inject(in *testnet.Dev, frame []byte, out *testnet.Dev, want []byte, short bool) {
	r.Helper()
	check(r.T, unix.Send(r.sockets[in], frame, 0))
	if want == nil {
		return
	}
	r.want[out][string(turnlab.Unpadded(want))]++
	r.sent++
	if short || dissect.Check(testnet.Frame{Data: frame, Partial: true}) == nil {
		r.left++
	}
}

// take judges what has come out since the last time.
func (r *randomFrames) take() {
	r.Helper()
	for dev, c := range r.captures {
		all := c.Frames()
		for _, g := range all[r.seen[dev]:] {
			if _, _, ok := dissect.UDP(g); !ok || g.Outgoing {
				continue
			}
			check(r.T, dissect.Check(g))
			if r.want[dev][string(g.Data)]--; r.want[dev][string(g.Data)] < 0 {
				r.Fatalf("%s: nothing has to come out as %x", dev.Name, g.Data)
			}
			r.got++
		}
		r.seen[dev] = len(all)
	}
}

// await waits until as many have come as were sent.
func (r *randomFrames) await() {
	r.Helper()
	if err := testnet.Until(wait, "all packets come", func() bool { r.take(); return r.got >= r.sent }); err != nil {
		drops, _ := r.relay.Runtime().XDPDrops()
		r.Fatalf("%v: %d of %d; %v", err, r.got, r.sent, drops)
	}
}

// A tun device has no XDP: packets that leave by it are sent from tc/ingress, and where they would come in by it, the
// program is refused.
func TestXDPTun(t *testing.T) {
	f := xdpLine(t, turnrelay.Options{}, runtime.HookXDP)
	l := f.line
	var tun *os.File
	check(t, l.Relay.Do(func() error {
		fd, err := lab.OpenTun("tun0", false)
		if err != nil {
			return err
		}
		if err := unix.SetNonblock(fd, true); err != nil { // so that reading ends when the file is closed
			return errors.Join(err, unix.Close(fd))
		}
		tun = os.NewFile(uintptr(fd), "tun0")
		dev, err := netlink.LinkByName("tun0")
		if err != nil {
			return err
		}
		all, err := netdev.Devices()
		if err != nil {
			return err
		}
		why := all[dev.Attrs().Index].Refuses(dev, true)
		if why == nil || why.Error() != "its driver (tuntap) has no XDP" {
			t.Errorf("a tun device is refused at XDP since: %v", why)
		}
		return nil
	}))
	defer tun.Close()
	for _, args := range []string{"address add 10.9.0.1/24 dev tun0", "link set tun0 up"} {
		check(t, l.Relay.Run("ip", strings.Fields(args)...))
	}
	err := f.relay.ToClient.AttachAt("tun0", runtime.AttachOptions{Hook: runtime.HookXDP})
	if err == nil || !strings.Contains(err.Error(), "no Ethernet header") {
		t.Errorf("packets that come in by a tun device: %v", err)
	}

	c := turnrelay.Channel{
		Client: at(l.ClientAddr.V4, 40000), Server: at(l.RelayInAddr.V4, turnPort), Number: channel + 1,
		Relayed: netip.MustParseAddrPort("10.9.0.1:50000"), Peer: netip.MustParseAddrPort("10.9.0.2:7000"),
	}
	_, err = f.relay.Channel.Open(c)
	check(t, err)
	buf := make([]byte, 2048)
	before, first := f.sent()
	const n = 20
	for i := range n {
		payload := bytes.Repeat([]byte{byte(i)}, 1+60*i)
		frame, err1 := turnlab.UDPFrame(l.ClientDev.MAC, l.RelayIn.MAC, c.Client, c.Server,
			turnlab.ChannelData(c.Number, payload))
		want, err2 := turnlab.UDPFrame(l.RelayIn.MAC, l.RelayIn.MAC, c.Relayed, c.Peer, payload)
		check(t, errors.Join(err1, err2, l.ClientDev.Inject(frame), tun.SetReadDeadline(time.Now().Add(wait))))
		got := 0
		for got == 0 || buf[0]>>4 != 4 { // the kernel's own are IPv6
			got, err = tun.Read(buf)
			check(t, err)
		}
		const link = 14
		if !bytes.Equal(buf[:got], turnlab.Unpadded(want)[link:]) {
			t.Fatalf("%x came out, expected was %x", buf[:got], want[link:])
		}
	}
	if all, atXDP := f.sent(); all-before != n || atXDP != first {
		t.Errorf("%d packets were sent of %d, and %d from XDP", all-before, n, atXDP-first)
	}
	f.pass("the way that XDP can take", 5, true)
}
