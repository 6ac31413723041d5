package relay

import (
	"slices"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// A trackKey names a track: a scope, and a full track name's text.
type trackKey struct{ scope, name string }

// A track is one of a scope, with its subscriptions in both directions. It has one alias in all sessions of
// subscribers, so the bytes of a subgroup are the same for all of them.
type track struct {
	relay *Relay
	key   trackKey
	name  wire.Track
	alias uint64
	users int // guarded by the relay's mutex

	mu        sync.Mutex
	sources   []*source                    // upstream subscriptions that are established
	asking    map[*session]*source         // publishers that were sent SUBSCRIBE, and haven't answered
	tried     map[*upstream]struct{}       // upstream relays that have refused
	questions chan struct{}                // that upstream relays haven't answered
	held      *time.Timer                  // while subscriptions wait for an upstream relay to be connected
	ending    *wire.PublishDone            // how a client's publication has ended, while another publisher is sought
	waiting   []*subscription              // subscriptions that aren't answered yet
	subs      []*subscription              // those that are established
	largest   wire.Optional[wire.Location] // of all objects (§3.1.3)
	denied    spans                        // what doesn't exist, as objects of subscriptions say
	missing   spans                        // what doesn't exist, as fetches say
	fetches   map[*fetching]struct{}       // that are being served
	wanted    wire.Optional[uint64]        // a NEW_GROUP_REQUEST that is outstanding
	settings  settings                     // from the track's properties
	groups    []*group                     // that are kept, in the order in which they came
	byID      map[uint64]*group            // the same
	cached    int                          // bytes of them
	closed    bool                         // nothing is kept any more
	recent    recent
	received  ReceivedStats
	sent      SubscriptionStats // the sum of all subscriptions
	final     Totals            // what both were when the track was closed
}

// settings are the properties of a track that a relay goes by (§10).
type settings struct {
	properties      wire.Properties
	priority        uint8
	order           wire.GroupOrder
	objectTimeout   time.Duration // 0: none
	subgroupTimeout time.Duration
	cacheDuration   time.Duration
	dynamicGroups   bool
}

func settingsOf(p wire.Properties) settings {
	number := func(t, absent uint64) uint64 {
		if v, ok := p.Uint(t); ok {
			return v
		}
		return absent
	}
	return settings{
		properties: p, priority: uint8(number(wire.PropertyPublisherPriority, 128)),
		order:           wire.GroupOrder(number(wire.PropertyGroupOrder, uint64(wire.Ascending))),
		objectTimeout:   milliseconds(number(wire.PropertyObjectDeliveryTimeout, 0)),
		subgroupTimeout: milliseconds(number(wire.PropertySubgroupDeliveryTimeout, 0)),
		cacheDuration:   milliseconds(number(wire.PropertyMaxCacheDuration, 0)),
		dynamicGroups:   number(wire.PropertyDynamicGroups, 0) == 1,
	}
}

// milliseconds returns a duration, of at most a century.
func milliseconds(n uint64) time.Duration {
	const most = 100 * 365 * 24 * time.Hour
	return time.Duration(min(n, uint64(most/time.Millisecond))) * time.Millisecond
}

// use returns a track, for a caller that releases it.
func (r *Relay) use(scope string, name wire.Track) *track {
	key := trackKey{scope, name.String()}
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tracks[key]
	if t == nil {
		t = &track{
			relay: r, key: key, name: name, alias: r.nextAlias,
			asking: map[*session]*source{}, questions: make(chan struct{}, maxQuestions),
			fetches: map[*fetching]struct{}{}, settings: settingsOf(nil), byID: map[uint64]*group{},
		}
		r.nextAlias++
		r.tracks[key] = t
	}
	t.users++
	return t
}

func (r *Relay) release(t *track) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.mu.Lock()
	t.users--
	last := t.users == 0
	if last {
		delete(r.tracks, t.key)
		t.final = Totals{t.received, t.sent}
		r.past.add(&t.final)
	}
	r.mu.Unlock()
	if last {
		t.forget()
	}
}

// list returns all tracks.
func (r *Relay) list() []*track {
	r.mu.Lock()
	defer r.mu.Unlock()
	tracks := make([]*track, 0, len(r.tracks))
	for _, t := range r.tracks {
		tracks = append(tracks, t)
	}
	return tracks
}

// see notes that an object's first bytes have come.
func (t *track) see(at wire.Location) {
	if t.largest.Present && !t.largest.Value.Less(at) {
		return
	}
	if t.wanted.Present && (!t.largest.Present || at.Group > t.largest.Value.Group) {
		t.wanted = wire.Optional[uint64]{}
	}
	t.largest = wire.Some(at)
}

// learn takes what an upstream publisher says of the track (§7.6, §9.20.18).
func (t *track) learn(p wire.Properties, largest wire.Optional[wire.Location]) {
	t.settings = settingsOf(p)
	if largest.Present {
		t.see(largest.Value)
	}
}

// subscribe establishes a subscription, or has it wait for a publisher. A rejection is the answer.
func (t *track) subscribe(u *subscription, rendezvous time.Duration) *wire.Rejection {
	t.mu.Lock()
	defer t.mu.Unlock()
	if rejection := duplicate(u.session, t.subscribed(u.session)); rejection != nil {
		return rejection
	}
	if t.serves(u.session) {
		t.accept(u)
		return nil
	}
	if rendezvous > 0 {
		u.until = time.Now().Add(rendezvous)
	}
	t.waiting = append(t.waiting, u)
	for _, p := range t.relay.publishers(t) {
		t.ask(p)
	}
	if !t.provided() {
		t.tried = nil
		t.seek()
	}
	switch {
	case t.awaits(u.session):
	case rendezvous > 0:
		u.timer = time.AfterFunc(rendezvous, func() { t.giveUp(u) })
	default:
		t.stopWaiting(u)
		return &wire.Rejection{Code: wire.DoesNotExist, Text: "the track has no publisher"}
	}
	return nil
}

// giveUp refuses a subscription for which no publisher came in time.
func (t *track) giveUp(u *subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.awaits(u.session) && t.stopWaiting(u) {
		u.request.refuse(&wire.Rejection{Code: wire.RequestTimeout, Text: "no publisher came in time"})
	}
}

// stopWaiting reports whether a subscription was waiting.
func (t *track) stopWaiting(u *subscription) bool {
	u.stopTimer()
	i := slices.Index(t.waiting, u)
	if i < 0 {
		return false
	}
	t.waiting = slices.Delete(t.waiting, i, i+1)
	return true
}

func (u *subscription) stopTimer() {
	if u.timer != nil {
		u.timer.Stop()
	}
}

// accept establishes a subscription: it is answered, and gets objects from now on.
func (t *track) accept(u *subscription) {
	u.established = true
	close(u.settled)
	u.answer()
	t.subs = append(t.subs, u)
	for _, src := range t.sources {
		t.relay.kernel.prepare(u.session, src.session.upstream)
	}
	u.begin()
	t.steer()
}

// leave removes a subscription, whose request is over.
func (t *track) leave(u *subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopWaiting(u)
	u.gone = true
	for o := range u.outgoing {
		o.drop(droppedCancelled)
	}
	for f := range u.fills {
		f.cancel(errCancelled)
	}
	t.remove(u)
	t.unsubscribe()
}

// remove removes an established subscription.
func (t *track) remove(u *subscription) {
	if i := slices.Index(t.subs, u); i >= 0 {
		t.subs = slices.Delete(t.subs, i, i+1)
		t.steer()
	}
}

// unsubscribe cancels the relay's subscriptions if there is no subscriber for them any more. What was published
// remains; of an upstream relay, while clients follow it.
func (t *track) unsubscribe() {
	above := t.needed()
	here := above || len(t.subs) > 0 || len(t.waiting) > 0
	if !above {
		t.release()
	}
	t.abandonIf(func(p *session) bool { return !here || !above && p.upstream != nil })
	for _, src := range slices.Clone(t.sources) {
		switch {
		case src.session.upstream == nil && !here && !src.published,
			src.session.upstream != nil && !above && !((src.published || src.followed) && t.relay.follows(t)):
			src.cancel()
		}
	}
}

// wantsForward reports whether a subscriber wants objects of a publisher now.
func (t *track) wantsForward(p *session) bool {
	wants := func(u *subscription) bool { return u.forward && reaches(p, u.session) }
	return slices.ContainsFunc(t.subs, wants) || slices.ContainsFunc(t.waiting, wants)
}

// steer has publishers forward objects while there is a subscriber for them (§7.2).
func (t *track) steer() {
	for _, src := range t.sources {
		src.setForward(t.wantsForward(src.session))
	}
}

// established adds an upstream subscription, which those that wait are glad of.
func (t *track) established(src *source) {
	if t.asking[src.session] == src {
		delete(t.asking, src.session)
	}
	t.sources = append(t.sources, src)
	t.tried, t.ending = nil, nil
	t.release()
	waiting := t.waiting
	t.waiting = nil
	for _, u := range waiting {
		if !reaches(src.session, u.session) {
			t.waiting = append(t.waiting, u)
			continue
		}
		u.stopTimer()
		t.accept(u)
	}
	t.steer()
	t.succeed(src)
	t.unsubscribe() // all may have left meanwhile
}

// refused takes note of a publisher that has refused a subscription, or is gone.
func (t *track) refused(src *source, e *wire.RequestError) {
	p := src.session
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asking[p] != src { // it was abandoned
		return
	}
	delete(t.asking, p)
	absent := p.upstream != nil && isAbsent(e)
	if p.upstream != nil {
		t.refusedBy(src, absent)
	}
	t.seek()
	done := wire.PublishDone{Code: wire.DoneInternalError, Reason: "the track has no publisher any more"}
	if t.ending != nil {
		done = *t.ending
	}
	t.settle(e, absent, done.Code, done.Reason)
}

// endAll ends all subscriptions, each after what it is being sent.
func (t *track) endAll(code wire.DoneCode, reason string) {
	subs := t.subs
	t.subs = nil
	for _, u := range subs {
		u.end(code, reason)
	}
}

// ended removes an upstream subscription. If it was the last one, all subscriptions end as it did, after what they are
// being sent.
func (t *track) ended(src *source, code wire.DoneCode, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if src.stop() {
		t.lost(src, code, reason)
	}
}

// requestGroup passes a NEW_GROUP_REQUEST on (§9.20.20).
func (t *track) requestGroup(n wire.Optional[uint64]) {
	if !n.Present || !t.settings.dynamicGroups || t.wanted.Present && t.wanted.Value >= n.Value ||
		n.Value > 0 && t.largest.Present && n.Value <= t.largest.Value.Group {
		return
	}
	t.wanted = n
	for _, src := range t.sources {
		src.requestGroup(n)
	}
}
