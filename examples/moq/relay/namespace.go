package relay

import (
	"context"
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// A namespaceKey names a namespace: a scope, and the namespace's text.
type namespaceKey struct{ scope, name string }

// A publishedNamespace is one that at least one session publishes.
type publishedNamespace struct {
	scope string
	name  wire.Namespace
	by    map[*session]int // how many of its requests publish it

	announced map[*session]context.CancelFunc // to upstream relays
}

// maxNamespaces is how many namespaces a SUBSCRIBE_NAMESPACE may match when it comes.
const maxNamespaces = 4096

// publishers returns the clients that publish a namespace which is the track's or a prefix of it (§7.5).
func (r *Relay) publishers(t *track) []*session {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*session
	for i := range len(t.name.Namespace) + 1 {
		if p := r.namespaces[namespaceKey{t.key.scope, t.name.Namespace[:i].String()}]; p != nil {
			all = slices.AppendSeq(all, maps.Keys(p.by))
		}
	}
	return slices.DeleteFunc(all, func(s *session) bool { return s.upstream != nil })
}

// publishNamespace takes a PUBLISH_NAMESPACE until it is withdrawn (§4.2).
func (s *session) publishNamespace(r *request, m *wire.PublishNamespace) *wire.Rejection {
	name := wire.Track{Namespace: m.Namespace}
	if rejection := s.admit(PublishNamespace, name, m.Parameters.Tokens); rejection != nil {
		return rejection
	}
	s.relay.addNamespace(r, m.Namespace)
	r.updates(func(u *wire.RequestUpdate, rejection *wire.Rejection) *wire.Rejection {
		if rejection == nil {
			rejection = s.admit(PublishNamespace, name, u.Parameters.Tokens)
		}
		if rejection != nil {
			_ = r.send(&wire.RequestError{Code: rejection.Code, Reason: rejection.Text})
			r.finish() // §9.5.1
			return nil
		}
		_ = r.send(&wire.RequestOK{})
		return nil
	}, nil)
	s.relay.removeNamespace(s, m.Namespace)
	return nil
}

// addNamespace has a request's session be a publisher of a namespace: of all that is subscribed to in it as well.
func (r *Relay) addNamespace(q *request, name wire.Namespace) {
	s := q.session
	r.mu.Lock()
	r.publishAs(s, name)
	_ = q.send(&wire.RequestOK{})
	var tracks []*track
	for _, t := range r.tracks {
		if t.key.scope == s.scope && t.name.Namespace.HasPrefix(name) {
			t.users++
			tracks = append(tracks, t)
		}
	}
	r.mu.Unlock()
	for _, t := range tracks {
		t.mu.Lock()
		if len(t.subs) > 0 || len(t.waiting) > 0 {
			t.ask(s)
		}
		t.mu.Unlock()
		r.release(t)
	}
}

// publishAs has a session be one that publishes a namespace, and tells those that want to know. The relay's mutex is
// held.
func (r *Relay) publishAs(s *session, name wire.Namespace) {
	key := namespaceKey{s.scope, name.String()}
	p := r.namespaces[key]
	if p == nil {
		p = &publishedNamespace{
			scope: s.scope, name: name, by: map[*session]int{}, announced: map[*session]context.CancelFunc{},
		}
		r.namespaces[key] = p
	}
	p.by[s]++
	for w := range r.watchers {
		w.tell(p)
	}
	for _, u := range r.upstreams {
		if above := u.usable(); above != nil && u.scope == s.scope && s.upstream == nil {
			above.announce(p)
		}
	}
}

func (r *Relay) removeNamespace(s *session, name wire.Namespace) {
	key := namespaceKey{s.scope, name.String()}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.namespaces[key]
	if p.by[s]--; p.by[s] == 0 {
		delete(p.by, s)
	}
	if len(p.by) == 0 {
		delete(r.namespaces, key)
	}
	if !p.below() {
		p.withdraw()
	}
	for w := range r.watchers {
		w.tell(p)
	}
}

// A namespaceWatcher is a SUBSCRIBE_NAMESPACE (§9.15). The relay's mutex guards it.
type namespaceWatcher struct {
	session *session
	request *request
	prefix  wire.Namespace
	told    map[*publishedNamespace]struct{} // what it was told of, under its prefix
}

// tell says that a namespace is published, or isn't any more. An upstream relay isn't told of those of upstream relays.
func (w *namespaceWatcher) tell(p *publishedNamespace) {
	if p.scope != w.session.scope || !p.name.HasPrefix(w.prefix) {
		return
	}
	published := p.below() || len(p.by) > 0 && w.session.upstream == nil
	suffix := p.name[len(w.prefix):]
	_, told := w.told[p]
	switch {
	case published && !told:
		w.told[p] = struct{}{}
		_ = w.request.send(&wire.NamespaceAvailable{Suffix: suffix})
	case !published && told:
		delete(w.told, p)
		_ = w.request.send(&wire.NamespaceDone{Suffix: suffix})
	}
}

// subscribeNamespace takes a SUBSCRIBE_NAMESPACE until it is over (§4.1).
func (s *session) subscribeNamespace(r *request, m *wire.SubscribeNamespace) *wire.Rejection {
	name := wire.Track{Namespace: m.Prefix}
	if rejection := s.admit(SubscribeNamespace, name, m.Parameters.Tokens); rejection != nil {
		return rejection
	}
	w := &namespaceWatcher{session: s, request: r}
	if rejection := s.relay.watch(w, m.Prefix); rejection != nil {
		return rejection
	}
	r.updates(func(u *wire.RequestUpdate, rejection *wire.Rejection) *wire.Rejection {
		prefix := u.Parameters.NamespacePrefix.Or(w.prefix)
		if rejection == nil {
			rejection = s.admit(SubscribeNamespace, wire.Track{Namespace: prefix}, u.Parameters.Tokens)
		}
		if rejection == nil && u.Parameters.NamespacePrefix.Present {
			rejection = s.relay.watch(w, prefix)
		} else if rejection == nil {
			_ = r.send(&wire.RequestOK{})
		}
		if rejection != nil {
			r.refuse(rejection) // which closes the stream (§9.5.1)
		}
		return nil
	}, nil)
	s.relay.mu.Lock()
	delete(s.relay.watchers, w)
	s.relay.interested()
	s.relay.mu.Unlock()
	return nil
}

// watch has a watcher know of the namespaces under a prefix from now on.
func (r *Relay) watch(w *namespaceWatcher, prefix wire.Namespace) *wire.Rejection {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other := range r.watchers {
		if other != w && other.session == w.session && overlap(other.prefix, prefix) {
			return &wire.Rejection{Code: wire.PrefixOverlap, Text: "another SUBSCRIBE_NAMESPACE has such a prefix"}
		}
	}
	var matching []*publishedNamespace
	for _, p := range r.namespaces {
		if p.scope == w.session.scope && p.name.HasPrefix(prefix) {
			matching = append(matching, p)
		}
	}
	if len(matching) > maxNamespaces {
		return &wire.Rejection{Code: wire.NamespaceTooLarge, Text: "too many namespaces have this prefix"}
	}
	r.watchers[w] = struct{}{}
	w.prefix, w.told = prefix, map[*publishedNamespace]struct{}{}
	r.interested()
	_ = w.request.send(&wire.RequestOK{})
	for _, p := range matching {
		w.tell(p)
	}
	return nil
}

// overlap reports whether one prefix is one of the other.
func overlap(a, b wire.Namespace) bool { return a.HasPrefix(b) || b.HasPrefix(a) }

// A trackFollower is a SUBSCRIBE_TRACKS (§9.18). The relay's mutex guards it.
type trackFollower struct {
	session    *session
	request    *request // nil: an upstream relay gets the tracks of clients unasked
	prefix     wire.Namespace
	parameters wire.Parameters
	offered    map[*track]struct{} // that it gets by PUBLISH
}

// subscribeTracks takes a SUBSCRIBE_TRACKS until it is over.
func (s *session) subscribeTracks(r *request, m *wire.SubscribeTracks) *wire.Rejection {
	rejection := s.admit(SubscribeTracks, wire.Track{Namespace: m.Prefix}, m.Parameters.Tokens)
	if rejection == nil {
		rejection = checkFilters(nil, &m.Parameters)
	}
	if rejection != nil {
		return rejection
	}
	f := &trackFollower{
		session: s, request: r, parameters: m.Parameters, offered: map[*track]struct{}{},
	}
	f.parameters.RangeFilters = updateRanges(nil, m.Parameters.RangeFilters)
	if rejection := s.relay.follow(f, m.Prefix); rejection != nil {
		return rejection
	}
	r.updates(func(u *wire.RequestUpdate, rejection *wire.Rejection) *wire.Rejection {
		if rejection == nil {
			rejection = f.update(&u.Parameters)
		}
		if rejection != nil {
			r.refuse(rejection) // which closes the stream (§9.5.1)
		}
		return nil
	}, nil)
	s.relay.mu.Lock()
	delete(s.relay.followers, f)
	s.relay.interested()
	s.relay.mu.Unlock()
	s.relay.unfollow()
	return nil
}

// update changes what tracks that come later are published with.
func (f *trackFollower) update(p *wire.Parameters) *wire.Rejection {
	r := f.session.relay
	prefix := p.NamespacePrefix.Or(f.prefix)
	rejection := f.session.admit(SubscribeTracks, wire.Track{Namespace: prefix}, p.Tokens)
	if rejection == nil {
		rejection = checkFilters(f.parameters.RangeFilters, p)
	}
	if rejection != nil {
		return rejection
	}
	r.mu.Lock()
	if p.Forward.Present {
		f.parameters.Forward = p.Forward
		r.interested()
	}
	f.parameters.RangeFilters = updateRanges(f.parameters.RangeFilters, p.RangeFilters)
	r.mu.Unlock()
	if p.NamespacePrefix.Present || len(p.RangeFilters) > 0 {
		return r.follow(f, prefix)
	}
	_ = f.request.send(&wire.RequestOK{})
	return nil
}

// follow has a follower get PUBLISH for the tracks under a prefix, from now on.
func (r *Relay) follow(f *trackFollower, prefix wire.Namespace) *wire.Rejection {
	if f.session.upstream != nil { // which gets PUBLISH for all that clients publish
		_ = f.request.send(&wire.RequestOK{})
		return nil
	}
	r.mu.Lock()
	for other := range r.followers {
		if other != f && other.session == f.session && overlap(other.prefix, prefix) {
			r.mu.Unlock()
			return &wire.Rejection{Code: wire.PrefixOverlap, Text: "another SUBSCRIBE_TRACKS has such a prefix"}
		}
	}
	r.followers[f] = struct{}{}
	f.prefix = prefix
	r.interested()
	r.mu.Unlock()
	_ = f.request.send(&wire.RequestOK{})
	for _, t := range r.list() {
		t.mu.Lock()
		published := slices.ContainsFunc(t.sources, func(src *source) bool {
			return (src.published || src.followed) && src.session != f.session
		})
		t.mu.Unlock()
		if published {
			f.offer(t)
		}
	}
	return nil
}

// offer offers a track to those that follow its namespace: but for its publisher, and for those that have waited for
// its publisher by SUBSCRIBE (§7.5).
func (r *Relay) offer(src *source, waited []*session) {
	r.mu.Lock()
	followers := slices.DeleteFunc(slices.Collect(maps.Keys(r.followers)), func(f *trackFollower) bool {
		return f.session == src.session || !reaches(src.session, f.session) || slices.Contains(waited, f.session)
	})
	r.mu.Unlock()
	for _, f := range followers {
		f.offer(src.track)
	}
}

// waiters returns the sessions that wait for a publisher of the track.
func (t *track) waiters() (all []*session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, u := range t.waiting {
		all = append(all, u.session)
	}
	return all
}

// offer sends PUBLISH for a track, if it is under the follower's prefix and passes its filters, and the follower
// doesn't get it already.
func (f *trackFollower) offer(t *track) {
	s, r := f.session, f.session.relay
	t.mu.Lock()
	properties := t.settings.properties
	t.mu.Unlock()
	r.mu.Lock()
	_, offered := f.offered[t]
	matches := !offered && t.key.scope == s.scope && t.name.Namespace.HasPrefix(f.prefix) && r.tracks[t.key] == t &&
		!newObjectFilter(f.parameters.RangeFilters, properties).none()
	prefix, parameters := f.prefix, f.parameters
	if matches {
		f.offered[t] = struct{}{}
		t.users++
	}
	r.mu.Unlock()
	if !matches {
		return
	}
	if f.request == nil {
		r.running.Go(func() {
			defer f.forget(t)
			if request, err := s.open(true); err == nil {
				defer request.close()
				s.publishTo(request, t, &parameters)
			}
		})
		return
	}
	request, err := s.open(false)
	if err != nil {
		f.forget(t)
		skipped := wire.Track{Namespace: t.name.Namespace[len(prefix):], Name: t.name.Name}
		_ = f.request.send(&wire.PublishSkipped{Suffix: skipped})
		return
	}
	r.running.Go(func() {
		defer f.forget(t)
		defer request.close()
		s.publishTo(request, t, &parameters)
	})
}

// forget has a track be offered again, if it is published again.
func (f *trackFollower) forget(t *track) {
	r := f.session.relay
	r.mu.Lock()
	delete(f.offered, t)
	r.mu.Unlock()
	r.release(t)
}

// publishTo publishes a track to a follower until it is over.
func (s *session) publishTo(r *request, t *track, p *wire.Parameters) {
	u := newSubscription(r, p)
	u.track, u.offered, u.id = t, true, s.newID()
	t.mu.Lock()
	if duplicate(s, t.subscribed(s)) != nil {
		t.mu.Unlock()
		return
	}
	m := &wire.Publish{
		RequestID: u.id, Track: t.name, TrackAlias: t.alias, Parameters: s.publishParameters(t, p),
	}
	if u.withProperties {
		m.Properties = t.settings.properties
	}
	t.mu.Unlock()
	if r.send(m) != nil {
		return
	}
	answer, err := r.next()
	if err != nil {
		return
	}
	switch answer := answer.(type) {
	case *wire.RequestOK:
		u.acceptedWith(&answer.Parameters)
	case *wire.RequestError:
		r.finish()
		return
	default:
		s.fail(violated("%v in answer to PUBLISH", answer.Type()))
		return
	}
	t.mu.Lock()
	if t.serves(s) {
		t.accept(u)
	} else { // the publisher has left meanwhile
		u.end(wire.TrackEnded, "the track has ended")
	}
	t.mu.Unlock()
	r.updates(u.update, nil)
	t.leave(u)
}
