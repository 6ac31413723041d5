package main

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/pion/rtcp"
	"github.com/pion/rtp"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/sfu/lab"
	"github.com/fastrelay/fastrelay-gen/examples/sfu/server"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// first is the number of the first frame that subscribers get who were there before the publisher.
const first = lab.KeyInterval

// Two real decoders and two receivers of ours get the stream, one each with the base layer alone. All pictures are the
// encoder's; no receiver's numbers have a gap, as tshark sees it; and the kernel has sent all of it.
func TestStream(t *testing.T) {
	needs.Root(t)
	for _, family := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
			b := newBed(t, family, 4)
			full, base := b.receiver(0), b.receiver(1)
			all, quarter := b.wanted(2, first, len(b.video.Frames)), b.wanted(0, first, len(b.video.Frames))
			fullPort, basePort := netip.AddrPortFrom(b.star.Receivers[2].Addr.Of(family), 6000),
				netip.AddrPortFrom(b.star.Receivers[3].Addr.Of(family), 6000)
			fullDecoder, err := lab.StartDecoder(b.star.Receivers[2].Host, fullPort, 97, len(all))
			b.check(err)
			defer fullDecoder.Kill()
			baseDecoder, err := lab.StartDecoder(b.star.Receivers[3].Host, basePort, 97, len(quarter))
			b.check(err)
			defer baseDecoder.Kill()
			c0, c1, c2, c3 := b.capture(0), b.capture(1), b.capture(2), b.capture(3)
			b.subscribe("full", full.Addr, 2)
			b.subscribe("base", base.Addr, 0)
			b.subscribe("full-decoder", fullPort, 2)
			b.subscribe("base-decoder", basePort, 0)
			b.until(b.video.Frames)
			b.settled("full", full)
			b.settled("base", base)
			b.same("full", b.pictures("full", full), all)
			b.same("base", b.pictures("base", base), quarter)
			for _, d := range []struct {
				name    string
				decoder *lab.Decoder
				want    []string
			}{{"full-decoder", fullDecoder, all}, {"base-decoder", baseDecoder, quarter}} {
				sums, said, err := d.decoder.Wait(wait)
				b.check(err)
				b.same(d.name, sums, d.want)
				if said != "" {
					t.Errorf("%s objects: %s", d.name, said)
				}
			}
			b.seen("full", c0, full.Addr.Port())
			b.seen("base", c1, base.Addr.Port())
			b.seen("full-decoder", c2, 6000)
			b.seen("base-decoder", c3, 6000)
			for _, name := range []string{"full", "base", "full-decoder", "base-decoder"} {
				if st := b.subscriber(name); !st.Kernel || st.Packets != st.InKernel || st.Packets == 0 {
					t.Errorf("%s: %+v", name, st)
				}
			}
		})
	}
}

// Without the kernel, and from one family to the other, user space does the same.
func TestUserSpace(t *testing.T) {
	needs.Root(t)
	for _, c := range []struct {
		name  string
		flags []string
		to    int
	}{{"off", []string{"--no-offload"}, 4}, {"families", nil, 6}} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, 4, 2, c.flags...)
			b.family = c.to
			full, base := b.receiver(0), b.receiver(1)
			c0, c1 := b.capture(0), b.capture(1)
			b.subscribe("full", full.Addr, 2)
			b.subscribe("base", base.Addr, 0)
			end := 2*first + 8
			b.until(b.video.Frames[:end])
			b.settled("full", full)
			b.settled("base", base)
			b.same("full", b.pictures("full", full), b.wanted(2, first, end))
			b.same("base", b.pictures("base", base), b.wanted(0, first, end))
			b.seen("full", c0, full.Addr.Port())
			b.seen("base", c1, base.Addr.Port())
			if st := b.subscriber("full"); st.Kernel || st.InKernel != 0 {
				t.Errorf("full: %+v", st)
			}
		})
	}
}

// Packets get lost on the way to the server and from there, and some overtake others. In the end each receiver has
// everything that it wants, under numbers without a gap.
func TestLoss(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 2)
	full, base := b.receiver(0), b.receiver(1)
	// The key frame that all begin with comes well, and so does the end, after which no one
	// could know what is missing.
	var sent, toFull, toBase int
	b.pub.Lose = func(n uint16) bool { sent++; return sent > 150 && sent < 280 && n%13 == 7 }
	b.pub.Shuffle = func(n uint16) bool { return sent > 150 && sent < 280 && n%7 == 3 }
	full.Lose(func(n uint16) bool { toFull++; return toFull < 180 && n%11 == 0 })
	base.Lose(func(n uint16) bool { toBase++; return toBase < 60 && n%5 == 0 })
	b.subscribe("full", full.Addr, 2)
	b.subscribe("base", base.Addr, 0)
	end := 3 * first
	b.until(b.video.Frames[:end])
	wantFull, wantBase := b.wanted(2, first, end), b.wanted(0, first, end)
	for name, of := range map[string]struct {
		*lab.Receiver
		pictures int
	}{"full": {full, len(wantFull)}, "base": {base, len(wantBase)}} {
		pause := time.NewTicker(20 * time.Millisecond)
		defer pause.Stop()
		b.await(wait, name+" has all packets", func() bool {
			<-pause.C
			all := of.Pictures()
			return of.AskAgain() == 0 && len(all) >= of.pictures && all[len(all)-1].Whole
		})
	}
	b.same("full", b.pictures("full", full), wantFull)
	b.same("base", b.pictures("base", base), wantBase)
	again, _ := b.pub.Asked()
	fullStats, baseStats, pub := b.subscriber("full"), b.subscriber("base"), b.publisher()
	t.Logf("full: %+v\nbase: %+v\npublisher: %+v", fullStats, baseStats, pub)
	if lost := full.Tally().Lost; lost == 0 || fullStats.Resent < uint64(lost) {
		t.Errorf("of %d packets that full lost, %d were sent again", lost, fullStats.Resent)
	}
	if lost := base.Tally().Lost; lost == 0 || baseStats.Resent < uint64(lost) {
		t.Errorf("of %d packets that base lost, %d were sent again", lost, baseStats.Resent)
	}
	if again == 0 || pub.AskedFor == 0 || pub.Late == 0 || fullStats.Filled == 0 || baseStats.Padded == 0 {
		t.Errorf("what the publisher lost and what came late was not made good: %d sent again", again)
	}
}

// A subscriber's layers change up and down between two frames, without a gap.
func TestLayers(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 1)
	r := b.receiver(0)
	c := b.capture(0)
	b.subscribe("u", r.Addr, 2)
	stop := b.loop(b.pub)
	b.check(r.Await(wait, "pictures come", func(n lab.Tally) bool { return n.Packets > 20 }))
	const step = lab.Clock / lab.FramesPerSecond
	apart := [...]uint32{4 * step, 2 * step, step} // pictures, by layer
	steps := func() map[uint32]int {
		steps, pictures := map[uint32]int{}, r.Pictures()
		for i := 1; i < len(pictures); i++ {
			steps[pictures[i].Timestamp-pictures[i-1].Timestamp]++
		}
		return steps
	}
	for _, layer := range []uint8{0, 2, 1, 2} {
		was := steps()[apart[layer]]
		b.check(b.server.Change(server.Subscribe{Name: "u", Layer: &layer}))
		b.await(wait, "pictures of the layer come", func() bool { return steps()[apart[layer]] >= was+6 })
	}
	stop()
	b.settled("u", r)
	sums := b.pictures("u", r)
	b.seen("u", c, r.Addr.Port())
	pictures := r.Pictures()
	if len(sums) != len(pictures) {
		t.Errorf("%d frames make %d pictures", len(pictures), len(sums))
	}
	// Each picture is the encoder's, since layers begin with a frame of the base layer.
	known := map[string]bool{}
	for _, s := range b.video.Sums {
		known[s] = true
	}
	for i, s := range sums {
		if !known[s] {
			t.Errorf("picture %d, of layer %d, is none of the encoder's", i, pictures[i].Layer)
		}
	}
	if all := steps(); len(all) != len(apart) {
		t.Errorf("the steps from picture to picture are %v: layers were changed inside of a pattern", all)
	}
}

// A limited subscriber gets the layers that fit, chosen by what they take.
func TestBandwidth(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 1)
	r := b.receiver(0)
	c := b.capture(0)
	b.subscribe("u", r.Addr, 2)
	stop := b.loop(b.pub)
	b.check(r.Await(wait, "pictures come", func(n lab.Tally) bool { return n.Packets > 0 }))
	base := 0 // bits of the base layer; what the server measures depends on when the publisher could run
	for _, f := range b.video.Frames {
		if f.Layer == 0 {
			base += 8 * len(f.Data)
		}
	}
	limit := base * lab.FramesPerSecond / len(b.video.Frames) * 5 / 3 // room for its peaks, not for all layers
	b.check(b.server.Change(server.Subscribe{Name: "u", Bandwidth: &limit}))
	b.await(wait, "layers are left out", func() bool { return b.subscriber("u").Layer < 2 })
	was := r.Tally().Packets
	b.check(r.Await(wait, "the others go on", func(n lab.Tally) bool { return n.Packets > was+20 }))
	stop()
	b.settled("u", r)
	b.pictures("u", r)
	b.seen("u", c, r.Addr.Port())
}

// A subscriber changes from one publisher to another and back: its numbers go on, and so does its time.
func TestSwitch(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 1)
	other := b.publish("slides")
	other.Sequence, other.SSRC = 100, 2000
	r := b.receiver(0)
	c := b.capture(0)
	b.subscribe("u", r.Addr, 2)
	stop, stopOther := b.loop(b.pub), b.loop(other)
	for _, name := range []string{"slides", "cam", "slides"} {
		was := r.Tally().Packets
		b.check(r.Await(wait, "pictures come", func(n lab.Tally) bool { return n.Packets > was+15 }))
		b.check(b.server.Change(server.Subscribe{Name: "u", Publisher: &name}))
	}
	was := r.Tally().Packets
	b.check(r.Await(wait, "pictures come", func(n lab.Tally) bool { return n.Packets > was+15 }))
	stop()
	stopOther()
	b.settled("u", r)
	b.pictures("u", r)
	list := b.seen("u", c, r.Addr.Port())
	for i := 1; i < len(list); i++ {
		if step := list[i].Timestamp - list[i-1].Timestamp; step > 2*lab.Clock {
			t.Errorf("the time jumps by %d at packet %d", step, i)
		}
	}
	if _, keys := other.Asked(); keys == 0 {
		t.Error("no one asked for a key frame")
	}
}

// Subscribers join and leave while the stream flows, and the others notice nothing.
func TestJoinAndLeave(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 2)
	steady, guest := b.receiver(0), b.receiver(1)
	c := b.capture(0)
	b.subscribe("steady", steady.Addr, 2)
	stop := b.loop(b.pub)
	for range 2 {
		was := guest.Tally().Packets
		b.subscribe("guest", guest.Addr, 2)
		b.check(guest.Await(wait, "the guest gets packets", func(n lab.Tally) bool {
			return n.Packets+n.Foreign > was+3
		}))
		b.check(b.server.Call("DELETE", "/subscribers/guest", nil, nil))
		gone := guest.Tally()
		at := steady.Tally().Packets
		b.check(steady.Await(wait, "packets go on", func(n lab.Tally) bool { return n.Packets > at+10 }))
		if n := guest.Tally(); n.Packets+n.Foreign > gone.Packets+gone.Foreign+1 { // one may have been on its way
			t.Errorf("the guest has left, and %d more packets came", n.Packets+n.Foreign-gone.Packets-gone.Foreign)
		}
	}
	stop()
	b.settled("steady", steady)
	got := b.pictures("steady", steady)
	all := b.wanted(2, first, len(b.video.Frames)) // the first frames had no receiver; later they come again
	for len(all) < len(got) {
		all = append(all, b.video.Sums...)
	}
	b.same("steady", got, all[:len(got)])
	b.seen("steady", c, steady.Addr.Port())
	b.check(b.server.Call("DELETE", "/publishers/cam", nil, nil))
	if st, err := b.server.Stats(); err != nil || len(st.Publishers) != 0 || len(st.Subscribers) != 1 ||
		st.Subscribers[0].Publisher != "" {
		t.Errorf("after the publisher has left: %+v, %v", st, err)
	}
	b.check(b.server.Stop())
}

// Reports go both ways, in the numbers, times and names of the other side; requests for key frames and byes reach the
// publisher and the server.
func TestReports(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 1)
	r := b.receiver(0)
	b.subscribe("u", r.Addr, 2)
	b.loop(b.pub)
	b.check(r.Await(wait, "a report comes", func(n lab.Tally) bool { return len(n.Reports) > 0 && n.Packets > 0 }))
	_, keys := b.pub.Asked()
	pace := time.NewTicker(50 * time.Millisecond)
	defer pace.Stop()
	b.await(wait, "the publisher gets the request and the report", func() bool {
		r.Send(&rtcp.PictureLossIndication{SenderSSRC: 1, MediaSSRC: r.Tally().SSRC})
		r.Report(77)
		<-pace.C
		_, now := b.pub.Asked()
		return now > keys && len(b.pub.Reports()) > 0
	})
	report, highest := b.pub.Reports()[0], b.pub.Highest()
	if behind := highest - uint16(report.LastSequenceNumber); report.SSRC != b.pub.SSRC || report.FractionLost != 77 ||
		report.Jitter != 7 || behind > 100 {
		t.Errorf("the publisher got %+v, %d packets behind", report, behind)
	}
	n := r.Tally()
	last := n.Reports[len(n.Reports)-1]
	if last.SSRC != n.SSRC || last.PacketCount == 0 || last.OctetCount == 0 {
		t.Errorf("the subscriber got %+v", last)
	}
	if ahead := r.Pictures()[0].Timestamp - last.RTPTime; int32(ahead) > 2*lab.Clock || int32(ahead) < -20*lab.Clock {
		t.Errorf("the report's time is %d away from the pictures'", int32(ahead))
	}
	r.Send(&rtcp.Goodbye{Sources: []uint32{1}})
	b.await(wait, "the subscriber has left", func() bool {
		st, err := b.server.Stats()
		return err == nil && len(st.Subscribers) == 0
	})
}

// A publisher that begins anew, with other numbers, gets a new beginning; its subscribers' numbers go on.
func TestRestart(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 1)
	r := b.receiver(0)
	c := b.capture(0)
	b.subscribe("u", r.Addr, 2)
	b.until(b.video.Frames[:first+10])
	b.settled("u", r)
	b.pub.Sequence -= 20000
	b.until(b.video.Frames[first+10:])
	b.settled("u", r)
	b.pictures("u", r)
	b.seen("u", c, r.Addr.Port())
	if st := b.publisher(); st.Restarts != 1 {
		t.Errorf("restarts: %+v", st)
	}
	if n := r.Tally().Packets; n < 100 {
		t.Errorf("only %d packets came", n)
	}
}

// A server that is killed leaves programs behind, but its lease lapses within a second.
func TestKilled(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 1)
	r := b.receiver(0)
	b.subscribe("u", r.Addr, 2)
	b.loop(b.pub)
	b.check(r.Await(wait, "pictures come", func(n lab.Tally) bool { return n.Packets > 0 }))
	c := b.capture(0)
	b.server.Kill()
	killed := time.Now()
	last := killed // when the last packet came
	b.await(wait, "packets end", func() bool {
		for _, f := range c.Frames() {
			if udp, _, ok := dissect.UDP(f); ok && udp.DstPort == layers.UDPPort(r.Addr.Port()) && f.At.After(last) {
				last = f.At
			}
		}
		return time.Since(last) > time.Second
	})
	if took := last.Sub(killed); took > 1050*time.Millisecond {
		t.Errorf("packets were forwarded for %v after the server's death", took)
	}
}

// A server that ends and one that follows it look like one to all clients: the kernel forwards meanwhile, and the
// second one knows what the first one knew. It makes no difference whether the first had time to say goodbye.
func TestSuccessor(t *testing.T) {
	needs.Root(t)
	for _, end := range []struct {
		name string
		stop func(*lab.Process) error
	}{{"stopped", (*lab.Process).Stop}, {"killed", func(p *lab.Process) error { p.Kill(); return nil }}} {
		t.Run(end.name, func(t *testing.T) {
			// The server has a /sys of its own, as every program that is run in a namespace; so
			// /sys/fs/bpf isn't the place.
			dir := t.TempDir()
			if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			// The lease outlasts the time without a server, however long this machine takes.
			flags := []string{"--state", filepath.Join(t.TempDir(), "state.json"), "--pins", filepath.Join(dir, "sfu"),
				"--lease", "2m"}
			b := newBed(t, 4, 2, flags...)
			full, base := b.receiver(0), b.receiver(1)
			capture := b.capture(1)
			b.subscribe("full", full.Addr, 2)
			b.subscribe("base", base.Addr, 0)
			stop := b.loop(b.pub)
			b.check(base.Await(wait, "pictures come", func(n lab.Tally) bool { return n.Packets > 8 }))
			b.check(end.stop(b.server))
			b.serve(flags...)
			if st := b.subscriber("full"); !st.Kernel || st.Publisher != "cam" {
				t.Errorf("the successor knows of %+v", st)
			}
			was := base.Tally().Packets
			b.check(base.Await(wait, "pictures go on", func(n lab.Tally) bool { return n.Packets > was+5 }))
			pace := time.NewTicker(20 * time.Millisecond) // what came while there was no server, can't be sent again
			defer pace.Stop()
			b.await(wait, "a packet is sent again", func() bool {
				<-pace.C
				full.Send(&rtcp.TransportLayerNack{
					SenderSSRC: 1, MediaSSRC: 1, Nacks: rtcp.NackPairsFromSequenceNumbers([]uint16{full.Last()}),
				})
				return full.Tally().Twice > 0
			})
			b.check(b.server.Change(server.Subscribe{Name: "base", Layer: new(uint8(1))}))
			was = base.Tally().Packets
			b.check(base.Await(wait, "pictures go on", func(n lab.Tally) bool { return n.Packets > was+20 }))
			stop()
			b.settled("full", full)
			b.settled("base", base)
			b.pictures("full", full)
			b.pictures("base", base)
			b.seen("base", capture, base.Addr.Port())
			b.check(b.server.Call("DELETE", "/subscribers/full", nil, nil))
			b.check(b.server.Stop())
		})
	}
}

// Audio begins at once and has no layers, unless a header extension says one.
func TestAudio(t *testing.T) {
	needs.Root(t)
	const extension = 5
	b := newBed(t, 4, 1, "--extension", fmt.Sprint(extension))
	r := b.receiver(0)
	capture := b.capture(0)
	b.subscribe("u", r.Addr, 1)
	send := func(n uint32, layer byte) {
		q := &rtp.Packet{Header: rtp.Header{PayloadType: 111, Timestamp: n * 960}, Payload: []byte{1, 2, 3}}
		if layer > 0 {
			b.check(q.SetExtension(extension, []byte{layer}))
		}
		b.check(b.pub.Send(q))
	}
	n := uint32(0)
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	b.await(wait, "the first packet comes", func() bool { send(n, 0); n++; <-pace.C; return r.Tally().Packets > 0 })
	b.settled("u", r)
	was, before := r.Tally().Packets, b.subscriber("u")
	for i := range uint32(30) {
		send(n+i, byte(i%3))
	}
	b.check(r.Await(wait, "what is wanted comes", func(now lab.Tally) bool { return now.Packets == was+20 }))
	b.seen("u", capture, r.Addr.Port())
	if st := b.subscriber("u"); st.InKernel-before.InKernel != 20 || st.LeftOut-before.LeftOut != 10 {
		t.Errorf("%+v, before that %+v", st, before)
	}
}
