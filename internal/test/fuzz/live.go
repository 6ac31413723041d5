//go:build linux

package fuzz

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/sample"
	"github.com/fastrelay/fastrelay-gen/internal/test/testlive"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// RunLive compares the model and the kernel on devices: what each program gets is what a device gave it, with
// checksums that are left to a device, tags in the metadata and GSO packets, and what is compared is what the next
// program and the other end of a cable get. Offload says whether the device that packets leave through takes
// checksums as they are; else the kernel completes them, and cuts GSO packets up. Programs that send copies are not
// compared here.
func RunLive(ctx context.Context, c Config, offload bool) (*Report, error) {
	if c.Packets == 0 && c.Duration == 0 {
		return nil, errors.New("fuzz: neither a number of packets nor a duration is given")
	}
	f := &fuzzer{Config: c, rng: sample.NewSource(c.Seed), headers: packet.NewHeaders(c.Spec)}
	f.report.Verdicts = map[sim.Verdict]int{}
	defer f.close()
	unpin, err := testrun.Pin()
	if err != nil {
		return nil, err
	}
	if f.net, err = testrun.Enter(c.Plan, false); err != nil {
		return nil, err
	}
	if err := f.net.Devices(); err != nil {
		return nil, errors.Join(err, f.net.Leave())
	}
	defer func() {
		if f.net.Leave() == nil {
			unpin() // else the thread ends with its goroutine
		}
	}()
	f.rng.Wire = f.net.Out()
	if c.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Duration)
		defer cancel()
	}
	start := time.Now()
	l := &live{fuzzer: f, offload: offload}
	defer l.leave()
	err = l.run(ctx)
	f.report.Elapsed = time.Since(start)
	return &f.report, err
}

type live struct {
	*fuzzer
	devices *testlive.Live
	of      *bench // whose programs are on the devices
	running string // the program that a packet was sent to
	lost    int    // GSO packets in a row that have entered a tunnel and didn't arrive
	next    *testlive.Shot
	offload bool
}

func (l *live) leave() {
	if l.devices != nil {
		l.devices.Close()
	}
}

func (l *live) run(ctx context.Context) error {
	for round := 0; !l.done(ctx); round++ {
		if round%sample.SettingRounds == 0 {
			if err := l.load(round / sample.SettingRounds); err != nil {
				return err
			}
			if l.of != l.bench {
				l.leave()
				var err error
				if l.devices, err = testlive.Open(l.net, l.bench.plan, l.bench.kernel, l.offload); err != nil {
					return err
				}
				l.of = l.bench
			}
		}
		if err := l.round(ctx); err != nil {
			return err
		}
	}
	l.collect()
	return nil
}

// round runs packets on one random state.
func (l *live) round(ctx context.Context) error {
	b := l.bench
	l.state()
	if err := b.start(); err != nil {
		return err
	}
	var frame *packet.Frame
	var g *sample.Generator
	for n := range sample.RoundPackets {
		if n%16 == 0 && l.done(ctx) {
			break
		}
		if n%8 == 0 {
			g, frame, _ = l.frame()
		}
		program, shot := g.Program.Name.Value, l.next
		again := shot != nil // to the same program
		if again {
			program = l.running
		} else {
			shot = newShot(g, frame, !l.program(program).L2)
		}
		text, err := l.try(program, shot)
		if err != nil {
			return err
		}
		if again {
			l.next = nil
		}
		if text != "" {
			text = fmt.Sprintf("%s\nprogram %s, sent %s", text, program, showShot(shot))
			l.report.Difference = &Difference{Text: text}
			return nil
		}
	}
	text, err := b.finish()
	if err == nil && text != "" {
		l.report.Difference = &Difference{Text: text}
	}
	return err
}

func showShot(s *testlive.Shot) string {
	return fmt.Sprintf("%x, checksum %+v, gso type %d size %d, linear %d, mark %d",
		s.Data, s.Partial, s.GSOType, s.GSOSize, s.Linear, s.Mark)
}

// missing is a difference that may be the machine's.
const missing = "the packet doesn't arrive"

// expected is what the model makes of a packet that came to a program.
type expected struct {
	received testlive.Seen
	res      sim.Result
}

// try sends a packet to a program, and returns how what happens to it differs from the model's word.
func (l *live) try(program string, s *testlive.Shot) (string, error) {
	b := l.bench
	l.running = program
	seen, err := l.devices.Send(program, s)
	if err != nil && !errors.Is(err, testrun.ErrRefused) {
		return "", err
	}
	bare := !l.program(program).L2
	var want []expected
	var passed, left []testlive.Seen
	if err := b.setClock(b.model); err != nil {
		return "", err
	}
	for _, p := range seen {
		switch p.Where {
		case testlive.SeenPassed:
			if bare {
				p.Packet = framed(p.Packet, p.Packet.Proto)
			}
			passed = append(passed, p)
		case testlive.SeenLeaving:
			left = append(left, p)
		default:
			res, err := b.model.Run(program, p.Packet)
			if err != nil {
				return fmt.Sprintf("%v: %s", err, show(&p.Packet)), nil
			}
			if bare {
				l.frameResult(program, &p, &res)
			}
			want = append(want, expected{p, res})
			b.events = append(b.events, res.Events...)
		}
	}
	l.report.Packets++
	if len(want) == 0 {
		l.report.Refused++
	}
	for _, w := range want {
		l.report.Verdicts[w.res.Verdict]++
		if w.received.Packet.Partial != (sim.Partial{}) {
			l.report.Partial++
		}
		if w.received.Packet.GSO != 0 {
			l.report.Super++
		}
		text := ""
		switch w.res.Verdict {
		case sim.VerdictPunt, sim.VerdictPass:
			passed, text = l.stays(program, &w, passed)
		case sim.VerdictSent:
			left, text = l.leaves(&w, left, len(want) > 1)
			l.atMTU(&w, s)
		}
		if text == "" {
			text, err = l.counted(program, w.res.Reason)
		}
		if text == missing {
			if lost, err := l.devices.Dropped(); err != nil || lost && !l.refused(&w) {
				return "", err
			}
		} else if w.enters() {
			l.lost = 0
		}
		if text != "" || err != nil {
			text += l.reason(program)
			return fmt.Sprintf("%s (%s, %s)\ncame %s\nwant %s",
				text, w.res.Verdict, w.res.Reason, show(&w.received.Packet), show(&w.res.Packet)), err
		}
	}
	for what, rest := range map[string][]testlive.Seen{"passed to the stack": passed, "left": left} {
		if len(rest) == 0 {
			continue
		}
		text := fmt.Sprintf("one more packet %s: %s", what, show(&rest[0].Packet))
		for _, w := range want {
			text += fmt.Sprintf("\ncame %s, and the model says %s, %s", show(&w.received.Packet), w.res.Verdict,
				w.res.Reason)
		}
		return text, nil
	}
	return b.readEvents(), nil
}

// framed returns a packet that has no link-layer header with one: those that compare and judge then need to know of
// frames only.
func framed(p sim.Packet, proto uint16) sim.Packet {
	p.Data = slices.Concat(make([]byte, linkHeader), p.Data)
	binary.BigEndian.PutUint16(p.Data[linkHeader-2:], proto)
	if p.Partial != (sim.Partial{}) {
		p.Partial.Start += linkHeader
		p.Partial.Field += linkHeader
	}
	return p
}

// frameResult does this for a packet that came, and for what happens to it: what goes on is of the IP version that its
// first header says, and what is sent has the addresses of its next hop.
func (l *live) frameResult(program string, received *testlive.Seen, res *sim.Result) {
	proto := received.Packet.Proto
	if out := res.Packet.Data; res.Verdict != sim.VerdictPunt && len(out) > 0 {
		switch out[0] >> 4 {
		case 4:
			proto = unix.ETH_P_IP
		case 6:
			proto = unix.ETH_P_IPV6
		}
	}
	received.Packet = framed(received.Packet, received.Packet.Proto)
	res.Packet = framed(res.Packet, proto)
	res.Packet.Proto = 0
	if res.Hop != nil {
		res.Hop = l.found(program, res)
		copy(res.Packet.Data, res.Hop.Dst[:])
		copy(res.Packet.Data[6:], res.Hop.Src[:])
	}
}

// found is the hop that the kernel finds for a packet that it writes the link-layer header of, by its own routes and
// neighbours: whatever a row holds, the program has left that to it.
func (l *live) found(program string, res *sim.Result) *sim.Hop {
	hop := *res.Hop
	hop.State = ir.HopNeighbour // which may or may not be resolved
	for s := range ir.Stmts(l.program(program).Body) {
		c, ok := s.(*ir.CheckHop)
		if ok && c.Hop.Row != nil && c.Hop.Member.Type.Kind == ir.NextHop {
			return &hop
		}
	}
	var ends [2]netip.Addr
	switch b := res.Packet.Data[linkHeader:]; {
	case len(b) >= 20 && b[0]>>4 == 4:
		ends = [2]netip.Addr{netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))}
	case len(b) >= 40 && b[0]>>4 == 6:
		ends = [2]netip.Addr{netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))}
	}
	odd := func(a netip.Addr) bool { return !a.IsGlobalUnicast() || a.Is4In6() || a.Is4() && a.As4()[0] == 0 }
	if !slices.ContainsFunc(ends[:], odd) {
		hop = l.net.Route(ends[0], ends[1])
	}
	return &hop
}

// linkHeader is the size of an Ethernet header.
const linkHeader = 14

func show(p *sim.Packet) string {
	text := fmt.Sprintf("%x", p.Data)
	if p.VLAN != nil {
		text += fmt.Sprintf(", tag %04x:%04x", p.VLAN.Proto, p.VLAN.TCI)
	}
	if p.Partial != (sim.Partial{}) {
		text += fmt.Sprintf(", checksum left at %d from %d", p.Partial.Field, p.Partial.Start)
	}
	if p.Verified != 0 {
		text += fmt.Sprintf(", %d checksums verified", p.Verified)
	}
	if p.GSO != 0 {
		text += fmt.Sprintf(", segments of %d (tunnel %v)", p.GSO, p.Tunnel)
	}
	return text + fmt.Sprintf(", protocol %04x, mark %d", p.Proto, p.Mark)
}

// counted compares how often the reason was counted so far.
func (l *live) counted(program, reason string) (string, error) {
	p := l.program(program)
	i := slices.IndexFunc(p.Reasons, func(r *ir.Reason) bool { return r.Name == reason })
	at := l.bench.model.Tally(p, i)
	got, err := l.bench.kernel.Counted(at)
	if want := l.bench.model.Reasons[at].Packets; err == nil && got != want {
		return fmt.Sprintf("the kernel has counted %d packets under %q, the model %d", got, reason, want), nil
	}
	return "", err
}

// reason says under which reason the kernel has counted a packet that the model counts elsewhere.
func (l *live) reason(program string) (text string) {
	p := l.program(program)
	for i, r := range p.Reasons {
		at := l.bench.model.Tally(p, i)
		if got, err := l.bench.kernel.Counted(at); err == nil && got > l.bench.model.Reasons[at].Packets {
			text += fmt.Sprintf("; the kernel counts it as %q", r.Name)
		}
	}
	return text
}

func (l *live) program(name string) *ir.Program {
	all := l.bench.plan.Programs
	return all[slices.IndexFunc(all, func(p *ir.Program) bool { return p.Name == name })]
}

// stays compares a packet that went on to the next program with what the model says.
func (l *live) stays(program string, w *expected, passed []testlive.Seen) ([]testlive.Seen, string) {
	if len(passed) == 0 && w.received.Packet.GSO != 0 && !w.right() && l.program(program).Hook == "tc/egress" {
		return passed, "" // the device in front of the next program can't cut it up
	}
	if len(passed) == 0 {
		return passed, missing
	}
	got, want := passed[0].Packet, w.res.Packet
	if w.res.Verdict == sim.VerdictPunt {
		want = w.received.Packet
	}
	p := l.program(program)
	egress := p.Hook == "tc/egress" && p.L2
	if egress { // it has gone through a cable, after which its priority is undefined
		want.Priority, want.Proto = got.Priority, 0
	}
	if egress || want.VLAN == nil && w.received.Packet.VLAN != nil { // the kernel moves the next tag into the metadata
		untag(&want)
	}
	switch {
	case !bytes.Equal(got.Data, want.Data):
		return passed[1:], "the next program gets other bytes: " + firstByte(got.Data, want.Data) + ": " + show(&got)
	case got.Priority != want.Priority:
		return passed[1:], fmt.Sprintf("priority %d, the model says %d", got.Priority, want.Priority)
	case got.Proto != protocol(&want):
		return passed[1:], fmt.Sprintf("the kernel takes the packet for protocol %04x, it has %04x", got.Proto,
			protocol(&want))
	}
	return passed[1:], l.beside(w, &got, &want)
}

// untag moves the outermost tag into the metadata.
func untag(p *sim.Packet) {
	if p.VLAN != nil || !sample.Tagged(p.Data) {
		return
	}
	p.Data, p.Proto = slices.Clone(p.Data), 0
	sample.IntoMetadata(p)
	if p.Partial != (sim.Partial{}) {
		p.Partial.Start -= 4
		p.Partial.Field -= 4
	}
}

// protocol is skb->protocol: eth_type_trans in net/ethernet/eth.c.
func protocol(p *sim.Packet) uint16 {
	if p.Proto != 0 || len(p.Data) < 14 {
		return p.Proto
	}
	switch t := binary.BigEndian.Uint16(p.Data[12:]); {
	case t >= 0x600:
		return t
	case len(p.Data) >= 16 && p.Data[14] == 0xff && p.Data[15] == 0xff:
		return 0x0001
	}
	return 0x0004
}

// beside compares what is not in a packet's bytes, and what happens to it when its checksum is completed.
func (l *live) beside(w *expected, got, want *sim.Packet) string {
	switch {
	case got.Mark != want.Mark:
		return fmt.Sprintf("mark %d, the model says %d", got.Mark, want.Mark)
	case (got.VLAN == nil) != (want.VLAN == nil) || got.VLAN != nil && *got.VLAN != *want.VLAN:
		return fmt.Sprintf("the tag in the metadata: the kernel has %+v, the model %+v", got.VLAN, want.VLAN)
	case got.Partial != want.Partial:
		return fmt.Sprintf("a checksum is left to a device: the kernel says %+v, the model %+v: %s",
			got.Partial, want.Partial, show(got))
	case got.Verified != want.Verified:
		return fmt.Sprintf("%d checksums are verified, the model says %d: %s", got.Verified, want.Verified, show(got))
	case got.GSO != want.GSO || got.Tunnel != want.Tunnel:
		return fmt.Sprintf("segments of %d bytes (tunnel %v), the model says %d (%v)",
			got.GSO, got.Tunnel, want.GSO, want.Tunnel)
	}
	return l.right(w, got)
}

// right has a packet that goes on, and was right when it came, decoded by those who don't know the plan, with its
// checksum completed.
func (l *live) right(w *expected, got *sim.Packet) string {
	// What a tunnel holds may be wrong. A packet for the next program may have headers that only that program knows.
	_, before := datagram(w.received.Packet.Data)
	_, after := datagram(got.Data)
	other := func(proto byte) bool { return proto != 6 && proto != 17 }
	shorter := len(w.received.Packet.Data) - len(got.Data)
	if w.res.Verdict != sim.VerdictSent && shorter != 0 {
		return ""
	}
	if other(before) || other(after) || shorter >= outerHeaders || !w.right() || w.cut(got) {
		return ""
	}
	if wrong, known := l.judge(complete(got)); wrong != "" {
		return "the packet that came was right, the one that goes on is not: " + wrong + ": " + show(got)
	} else if known {
		l.report.Decoded++
	}
	return ""
}

// judge asks those who don't know the plan about a packet that goes on, but for checksums that its program leaves out.
func (l *live) judge(frame []byte) (wrong string, known bool) {
	if wrong, known = judge(frame); wrong == noSum && l.leavesOut(l.running) {
		wrong = ""
	}
	return wrong, known
}

// cut reports whether bytes that are not 0 were cut off which a checksum covered that is left to a device. No host
// sends such a packet, and none knows what its checksum should be.
func (w *expected) cut(got *sim.Packet) bool {
	received := &w.received.Packet
	if received.Partial == (sim.Partial{}) {
		return false
	}
	if end, _ := datagram(received.Data); !isZero(received.Data[end:]) {
		return true
	}
	// Of what a header calls its content, up to 3 bytes may be padding.
	end := len(got.Data) - (w.res.Packet.Partial.Start - received.Partial.Start)
	return end < len(received.Data) && end >= len(received.Data)-3 && !isZero(received.Data[end:])
}

// outerHeaders is what a tunnel has at least.
const outerHeaders = 28

func isZero(b []byte) bool { return !slices.ContainsFunc(b, func(x byte) bool { return x != 0 }) }

// right reports whether a packet was right when it came, with its checksum completed.
func (w *expected) right() bool {
	received := &w.received.Packet
	wrong, known := judge(complete(received))
	end, _ := datagram(received.Data)
	// The kernel cuts up all that there is.
	return wrong == "" && known && (received.GSO == 0 || end == len(received.Data))
}

// datagram finds the end of the IP datagram in a frame, and its protocol; 0 if there is none.
func datagram(b []byte) (end int, proto byte) {
	at := 14
	for len(b) >= at+24 && sample.Tagged(b[at-14:]) {
		at += 4
	}
	switch {
	case len(b) < at+20:
	case b[at]>>4 == 4:
		return min(at+int(binary.BigEndian.Uint16(b[at+2:])), len(b)), b[at+9]
	case b[at]>>4 == 6:
		return min(at+40+int(binary.BigEndian.Uint16(b[at+4:])), len(b)), b[at+6]
	}
	return len(b), 0
}

// leaves compares what came out of the other end of a cable with what the model sends. Others says that packets
// before or after this one may be missing.
func (l *live) leaves(w *expected, left []testlive.Seen, others bool) ([]testlive.Seen, string) {
	want := w.res.Packet
	resolved := w.res.Hop.State == ir.HopDirect
	if len(left) == 0 {
		switch {
		case !resolved: // the kernel finds no neighbour, or no route
			return left, ""
		case want.GSO != 0 && !w.right(): // no one can cut it up
			return left, ""
		}
		return left, missing
	}
	if want.VLAN == nil && w.received.Packet.VLAN != nil {
		untag(&want)
	}
	if !resolved && others {
		return nil, ""
	}
	from := 0
	if !resolved {
		from = 12 // the kernel writes the link-layer addresses
	}
	if want.GSO != 0 && !l.offload {
		if !w.right() {
			return nil, ""
		}
		l.report.Left++
		return nil, l.cutUp(w, left, from)
	}
	l.report.Left++
	got := left[0].Packet
	if !l.offload {
		want.Data, want.Partial = complete(&want), sim.Partial{}
	}
	if len(got.Data) != len(want.Data) || !bytes.Equal(got.Data[from:], want.Data[from:]) {
		return left[1:], "what leaves has other bytes: " + firstByte(got.Data, want.Data) + ": " + show(&got)
	}
	if text := l.beside(w, &got, &want); text != "" {
		return left[1:], text
	}
	return left[1:], in(w, &left[0])
}

// complete returns a packet's bytes with the checksum that is left to a device (skb_checksum_help in net/core/dev.c).
func complete(p *sim.Packet) []byte {
	if p.Partial == (sim.Partial{}) {
		return p.Data
	}
	data := slices.Clone(p.Data)
	sum := ^add(data[p.Partial.Start:], 0)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(data[p.Partial.Field:], sum)
	return data
}

// add adds 16-bit words to a sum (RFC 1071).
func add(b []byte, sum uint16) uint16 {
	total := uint64(sum)
	for i := 0; i < len(b); i += 2 {
		total += uint64(b[i]) << 8
		if i+1 < len(b) {
			total += uint64(b[i+1])
		}
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}
