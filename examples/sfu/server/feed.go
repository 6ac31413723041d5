package server

import (
	"time"

	"github.com/pion/rtcp"
)

// row is what a feed looks like in the kernel, and the decision that both take for each packet.
type row struct {
	first         uint16 // the number of the first packet
	timestamp     uint32 // added to timestamps
	layer, before uint8  // the highest layer, from since on and before it
	since         uint32 // a timestamp of the publisher's
}

// allows returns the highest layer that is wanted of the frame with a timestamp. Changes happen between two frames.
func (r row) allows(timestamp uint32) uint8 {
	if timestamp-r.since < 1<<31 {
		return r.layer
	}
	return r.before
}

// kernelGroup is a stream's group of receivers in the kernel.
type kernelGroup interface {
	add(f *feed, r row, rate int) (receiver, error) // in force when it returns
	// the stream's numbers continue after this one, whatever came before
	begin(highest uint16) error
	close() error
}

// receiver is a feed's receiver in the kernel.
type receiver interface {
	set(row) error           // in force when it returns
	limit(bitsPerSecond int) // 0: no limit
	spend(bytes int) bool    // what user space sends counts, too
	sent() Sent              // what the kernel has sent, also after remove
	remove() error           // nothing reaches the receiver any more when it returns
}

// feed is one publisher's stream on its way to one subscriber. Its publisher's lock guards it.
type feed struct {
	pub *Publisher
	sub *Subscriber
	row row

	kernel receiver // nil: user space sends
	limit  bucket   // if user space sends

	history history
	gaps    []gap
	begun   time.Time
	asked   int    // how many times a key frame was asked for again
	events  uint64 // packets that the kernel reported
	lost    uint64 // events of all feeds, at the last gap
	resumed bool   // from a former server, which events may still be about
	skipped int64  // as the kernel counts it: the number that the first packet came with, and what was left out since

	stats Sent // by user space
}

// Sent is what a subscriber was sent, and why.
type Sent struct {
	Packets  uint64 `json:"packets"`
	Octets   uint64 `json:"octets"`    // of payloads
	InKernel uint64 `json:"in_kernel"` // packets that the kernel sent; user space sent the others
	Resent   uint64 `json:"resent"`    // packets that the subscriber had missed
	// packets that were late or that the kernel declined, sent under the number that was free
	Filled     uint64 `json:"filled"`
	Padded     uint64 `json:"padded"`     // free numbers taken by padding, since the subscriber doesn't want the packet
	AskedFor   uint64 `json:"asked_for"`  // packets that were not there either, and that the publisher was asked for
	Unanswered uint64 `json:"unanswered"` // packets that are not known any more
	LeftOut    uint64 `json:"left_out"`   // by layer
	Refused    uint64 `json:"refused"`    // by the limit
}

func (n *Sent) add(m Sent) {
	n.Packets += m.Packets
	n.Octets += m.Octets
	n.InKernel += m.InKernel
	n.Resent += m.Resent
	n.Filled += m.Filled
	n.Padded += m.Padded
	n.AskedFor += m.AskedFor
	n.Unanswered += m.Unanswered
	n.LeftOut += m.LeftOut
	n.Refused += m.Refused
}

// waits reports whether it is time to ask for a key frame again: first after half a second, then less and less often,
// since every key frame costs all subscribers, and this one may not be reachable.
func (f *feed) waits(now time.Time) bool {
	if f.history.count > 0 || now.Sub(f.begun) < period<<min(f.asked, 20) {
		return false
	}
	f.asked++
	return true
}

// out says how a packet goes out under a number.
func (f *feed) out(p *packet, number int64) copyTo {
	return copyTo{
		ssrc: f.sub.ssrc, payloadType: f.sub.payloadType, sequence: uint16(number),
		timestamp: p.timestamp + f.row.timestamp,
	}
}

// wants reports whether a packet is in the layers that the subscriber gets.
func (f *feed) wants(p *packet) bool { return p.layer <= f.row.allows(p.timestamp) }

// forward does in user space what the spec's rules do.
func (f *feed) forward(p *packet) {
	begun := f.history.count > 0
	switch {
	case !begun && !p.key:
		return
	case !f.wants(p):
		f.skipped++
		f.stats.LeftOut++
		return
	case !f.limit.spend(len(p.data), int(p.layer)*reserve, p.at):
		if begun {
			f.skipped++
		}
		f.stats.Refused++
		return
	}
	if !begun {
		f.skipped = p.number
	}
	number := uint16(int64(f.row.first) + p.number - f.skipped)
	if !f.send(p.rewrite(f.pub.scratch[:0], f.out(p, int64(number))), p.header) {
		return
	}
	f.note(p.number, number)
}

// send sends a packet, with a header of so many bytes, from user space, and keeps the buffer.
func (f *feed) send(data []byte, header int) bool {
	f.pub.scratch = data
	if err := f.sub.write(data); err != nil {
		return false // a receiver that isn't there: what it would have got is a loss, and it may ask for it
	}
	f.stats.Packets++
	f.stats.Octets += uint64(len(data) - header)
	return true
}

// reported notes what the kernel sent. Lost says how many events were lost so far: if any were since the last gap,
// this one may be no gap at all, and the subscriber will ask for what it misses.
func (f *feed) reported(original, number uint16, lost func() uint64) {
	f.events++
	g, found := f.history.add(f.pub.cache.numbers.near(original), number)
	if !found {
		return
	}
	was := f.lost
	f.lost = lost()
	if f.lost == was {
		f.open(g)
	}
}

func (f *feed) note(original int64, number uint16) {
	if g, found := f.history.add(original, number); found {
		f.open(g)
	}
}

// open notes a gap, whose packets may be there already or come late.
func (f *feed) open(g gap) {
	f.gaps = append(f.gaps, g)
	f.repair()
}

// patience is how many packets later a gap is given up.
const patience = window / 4

// repair sends what belongs into the gaps and has arrived meanwhile.
func (f *feed) repair() {
	kept := f.gaps[:0]
	for _, g := range f.gaps {
		holes, known := g.holes(f.leftOut)
		missing := !known
		for _, hole := range holes {
			if _, done := f.history.ofNumber(hole.number); !done && !f.fill(hole) {
				missing = true
			}
		}
		if missing && f.history.last.original-g.to.original < patience {
			kept = append(kept, g)
		}
	}
	f.gaps = kept
}

// leftOut reports whether the packet was seen in its turn and not wanted.
func (f *feed) leftOut(original int64) bool {
	p := f.pub.cache.get(original)
	return p != nil && !p.late && !f.wants(p)
}

// fill sends a packet under a number that is free. A packet that the subscriber doesn't want is replaced by padding,
// so that it doesn't ask for the number for ever.
func (f *feed) fill(hole sent) bool {
	p := f.pub.cache.get(hole.original)
	if p == nil || !f.admits(p) {
		return false
	}
	hole.padding = !f.wants(p)
	if !f.repeat(p, hole) {
		return false
	}
	if hole.padding {
		f.stats.Padded++
	} else {
		f.stats.Filled++
	}
	f.history.fill(hole)
	return true
}

// repeat sends a packet as it was sent, or has to be.
func (f *feed) repeat(p *packet, s sent) bool {
	to := f.out(p, s.number)
	if s.padding {
		return f.send(p.padding(f.pub.scratch[:0], to), rtpHeader)
	}
	return f.send(p.rewrite(f.pub.scratch[:0], to), p.header)
}

// admits spends what a packet costs that user space sends on top of what is forwarded.
func (f *feed) admits(p *packet) bool {
	var ok bool
	if f.kernel != nil {
		ok = f.kernel.spend(len(p.data))
	} else {
		ok = f.limit.spend(len(p.data), 0, time.Now())
	}
	if !ok {
		f.stats.Refused++
	}
	return ok
}

// missed answers a subscriber that didn't get a number. It reports false if the number is not one of this feed's.
func (f *feed) missed(sequence uint16, ask *[]uint16) bool {
	number := f.history.numbers.near(sequence)
	if f.history.count == 0 || number < f.history.first.number || number > f.history.last.number {
		return false
	}
	if s, ok := f.history.ofNumber(number); ok {
		p := f.pub.cache.get(s.original)
		switch {
		case p == nil:
			f.stats.Unanswered++
		case f.admits(p) && f.repeat(p, s):
			f.stats.Resent++
		}
		return true
	}
	g, ok := f.history.gapAt(number)
	if !ok {
		f.stats.Unanswered++
		return true
	}
	holes, _ := g.holes(f.leftOut)
	for _, hole := range holes {
		if hole.number != number {
			continue
		}
		if f.pub.cache.get(hole.original) == nil {
			f.stats.AskedFor++
			*ask = append(*ask, uint16(hole.original))
		} else {
			f.fill(hole)
		}
		return true
	}
	f.stats.Unanswered++
	return true
}

// report translates a subscriber's report into the publisher's numbers (RFC 3550 §7.2).
func (f *feed) report(r rtcp.ReceptionReport) (rtcp.ReceptionReport, bool) {
	number := f.history.numbers.near(uint16(r.LastSequenceNumber))
	s, ok := f.history.ofNumber(number)
	switch {
	case f.history.count > 0 && number > f.history.last.number: // the kernel will report it in a moment
		s = f.history.last
	case !ok:
		return r, false
	}
	r.SSRC = f.pub.ssrc
	r.LastSequenceNumber = uint32(s.original - f.pub.firstCycle)
	return r, true
}

// sent returns what the subscriber was sent in all.
func (f *feed) sent() Sent {
	n := f.stats
	if f.kernel != nil {
		n.add(f.kernel.sent())
	}
	return n
}

// change gives the feed another highest layer, from the next boundary on.
func (f *feed) change(layer uint8, now time.Time) row {
	r := f.row
	if since := f.pub.present(now); since-r.since < 1<<31 { // the last change has come into force
		r.before = r.layer
	}
	r.layer, r.since = layer, f.pub.boundary(now)
	f.row = r
	return r
}

// settle forgets what was before a change: timestamps wrap.
func (f *feed) settle(now time.Time) (row, bool) {
	const past = time.Second
	if f.row.before == f.row.layer || f.pub.present(now)-f.pub.ticks(past)-f.row.since >= 1<<31 {
		return f.row, false
	}
	f.row.before = f.row.layer
	return f.row, true
}

// last returns what the subscriber's next feed goes on from.
func (f *feed) last() (next uint16, c clock) {
	next = f.row.first
	if f.history.count > 0 {
		next = uint16(f.history.last.number + 1)
	}
	if p := f.pub.newest; p != nil {
		c = clock{p.timestamp + f.row.timestamp, p.at}
	}
	return next, c
}

// reserve is the part of a limit's burst, in bytes and times the layer, that is left to more urgent layers.
const reserve = 3000

// bucket is the limit of a feed that user space sends, as the kernel's (fastrelay's "bucket").
type bucket struct {
	rate, burst float64 // bytes a second, bytes; a rate of 0 doesn't limit
	level       float64
	at          time.Time
}

func (b *bucket) set(rate, burst int) {
	b.rate, b.burst = float64(rate), float64(burst)
	b.level = min(b.level, b.burst)
	if b.at.IsZero() {
		b.level = b.burst
	}
}

func (b *bucket) spend(bytes, floor int, now time.Time) bool {
	if b.rate == 0 {
		return true
	}
	if !b.at.IsZero() {
		b.level = min(b.burst, b.level+max(0, now.Sub(b.at).Seconds())*b.rate)
	}
	b.at = now
	if b.level-float64(bytes) < float64(floor) {
		return false
	}
	b.level -= float64(bytes)
	return true
}

// allowance returns the bucket for a limit in bits a second: a quarter of a second's worth at once, and never less than
// the reserves of all layers and some packets.
func allowance(bitsPerSecond int) (rate, burst int) {
	rate = bitsPerSecond / 8
	return rate, max(rate/4, Layers*reserve+4*1500)
}
