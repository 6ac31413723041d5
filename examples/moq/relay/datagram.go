package relay

import (
	"slices"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// maxEarly is how many datagrams a session keeps whose track isn't known yet.
const maxEarly = 64

// A datagram is one for a subscriber.
type datagram struct {
	data    []byte
	at      time.Time     // when it came
	timeout time.Duration // after which it isn't sent; 0: none
	of      *subscription
}

// An earlyDatagram is one that came before the message that names its track.
type earlyDatagram struct {
	wire.Datagram
	at time.Time
}

// receiveDatagrams takes the publisher's datagrams.
func (s *session) receiveDatagrams() {
	for {
		b, err := s.conn.ReceiveDatagram(s.ctx)
		if err != nil {
			return
		}
		d, padding, err := wire.ParseDatagram(b)
		switch {
		case err != nil:
			s.ended(err)
			return
		case padding:
			continue
		}
		one := earlyDatagram{d, time.Now()}
		s.mu.Lock()
		src := s.aliases[d.TrackAlias]
		if src == nil {
			s.early = append(s.early, one)
			if len(s.early) > maxEarly {
				s.early = slices.Delete(s.early, 0, 1)
				s.relay.counters.unknown.Add(1)
			}
		}
		s.mu.Unlock()
		if src != nil {
			src.datagram(one)
		}
	}
}

// takeEarly returns the datagrams of an alias that is known now.
func (s *session) takeEarly(alias uint64) (early []earlyDatagram) {
	s.early = slices.DeleteFunc(s.early, func(d earlyDatagram) bool {
		if d.TrackAlias == alias && time.Since(d.at) < lateStreams {
			early = append(early, d)
		}
		return d.TrackAlias == alias || time.Since(d.at) > lateStreams
	})
	return early
}

// datagram takes a datagram of the track's. Subscribers get it with the track's alias; each at once, or not at all.
func (src *source) datagram(d earlyDatagram) {
	t := src.track
	t.mu.Lock()
	defer t.mu.Unlock()
	at := wire.Location{Group: d.Group, Object: d.Object}
	if src.over.Load() {
		return
	}
	if !t.checkDatagram(&d.Datagram) {
		t.malformed(src.session)
		return
	}
	several := len(t.sources) > 1 || src.session.upstream != nil // one after the other
	if several && t.recent.seen(at) || t.missing.has(at) {
		return
	}
	t.see(at)
	t.received.Datagrams++
	t.holdDatagram(&d)
	t.received.Bytes += uint64(len(d.Payload))
	t.received.DatagramBytes += uint64(len(d.Payload))
	d.TrackAlias = t.alias
	data, err := d.Append(nil)
	if err != nil {
		return // what was parsed can be appended
	}
	for _, u := range t.subs {
		if !u.forward || !u.passes(at) || !u.objects.passesDatagram(&d.Datagram, t.settings.priority) {
			continue
		}
		one := datagram{
			data: data, at: d.at, of: u,
			timeout: least(u.objectTimeout, u.subgroupTimeout, t.settings.objectTimeout, t.settings.subgroupTimeout),
		}
		select {
		case u.session.datagrams <- one:
		default:
			u.count(func(st *SubscriptionStats) { st.DroppedDatagrams++ })
		}
	}
}

// sendDatagrams sends datagrams to a subscriber, whose library may take its time.
func (s *session) sendDatagrams() {
	for {
		select {
		case d := <-s.datagrams:
			late := d.timeout > 0 && time.Since(d.at) > d.timeout
			sent := !late && s.conn.SendDatagram(d.data) == nil // it may be too large for the path
			d.of.track.mu.Lock()
			d.of.count(func(st *SubscriptionStats) {
				if sent {
					st.Datagrams++
					st.DatagramBytes += uint64(len(d.data))
				} else {
					st.DroppedDatagrams++
				}
			})
			d.of.track.mu.Unlock()
		case <-s.ctx.Done():
			return
		}
	}
}

// recent are the latest locations of datagrams, of a track with several publishers.
type recent struct {
	ring []wire.Location
	set  map[wire.Location]struct{}
	next int
}

// seen notes a location; it reports whether it was among the latest.
func (r *recent) seen(at wire.Location) bool {
	if _, ok := r.set[at]; ok {
		return true
	}
	if r.set == nil {
		r.set, r.ring = map[wire.Location]struct{}{}, make([]wire.Location, 1024)
	}
	if len(r.set) == len(r.ring) {
		delete(r.set, r.ring[r.next])
	}
	r.ring[r.next] = at
	r.next = (r.next + 1) % len(r.ring)
	r.set[at] = struct{}{}
	return false
}
