package relay

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// maxLearnt is how many namespaces a SUBSCRIBE_NAMESPACE of the relay's may have, of an upstream relay.
const maxLearnt = 1 << 16

// below reports whether a client publishes the namespace. The relay's mutex is held.
func (p *publishedNamespace) below() bool {
	for s := range p.by {
		if s.upstream == nil {
			return true
		}
	}
	return false
}

// announce publishes a namespace to an upstream relay until it is withdrawn. The relay's mutex is held.
func (s *session) announce(p *publishedNamespace) {
	if _, ok := p.announced[s]; ok {
		return
	}
	ctx, withdraw := context.WithCancel(s.asks)
	p.announced[s] = withdraw
	s.relay.running.Go(func() {
		defer withdraw()
		err := s.request(ctx, &wire.PublishNamespace{RequestID: s.newID(), Namespace: p.name}, nil)
		if err != nil && ctx.Err() == nil && s.ctx.Err() == nil {
			s.relay.log.Warn("the upstream relay doesn't take a namespace", "upstream", s.upstream.name,
				"namespace", p.name.String(), "error", err)
		}
	})
}

// withdraw withdraws a namespace that no client publishes any more. The relay's mutex is held.
func (p *publishedNamespace) withdraw() {
	for _, withdraw := range p.announced {
		withdraw()
	}
	clear(p.announced)
}

// A refusal is a REQUEST_ERROR as an error.
type refusal struct{ *wire.RequestError }

func (r refusal) Error() string { return r.Reason }

// request sends a request, and takes what follows REQUEST_OK: take reports whether a message is expected, and gets nil
// for REQUEST_OK. It returns when the request is over, or, cancelled, when ctx ends.
func (s *session) request(ctx context.Context, m wire.Message, take func(*request, wire.Message) bool) error {
	r, err := s.open(true)
	if err != nil {
		return err
	}
	defer r.close()
	stop := context.AfterFunc(ctx, func() {
		r.reset(wire.ResetCancelled) // the peer ends its half as soon as it knows
		_ = r.stream.SetReadDeadline(time.Now().Add(lateStreams))
	})
	defer stop()
	if err := r.send(m); err != nil {
		return err
	}
	if ctx.Err() == nil {
		_ = r.stream.SetReadDeadline(time.Now().Add(s.relay.config.Patience))
	}
	answer, err := r.next()
	if err != nil {
		return err
	}
	switch answer := answer.(type) {
	case *wire.RequestOK:
	case *wire.RequestError:
		r.finish()
		return refusal{answer}
	default:
		s.fail(violated("%v in answer to %v", answer.Type(), m.Type()))
		return errors.New("the answer isn't expected")
	}
	if ctx.Err() == nil {
		_ = r.stream.SetReadDeadline(time.Time{})
	}
	if take != nil {
		take(r, nil)
	}
	for {
		m, err := r.next()
		if err != nil {
			return err
		}
		if take == nil || !take(r, m) {
			s.fail(violated("%v isn't expected on this request", m.Type()))
			return errors.New("a message isn't expected")
		}
	}
}

// A want is what clients follow: namespaces or tracks under a prefix.
type want struct {
	tracks  bool
	prefix  wire.Namespace
	forward bool // of tracks: a client wants objects
}

// wants returns what clients of a scope follow, by kind and prefix. A prefix covers longer ones, which a session may
// not have as well (§9.15). The relay's mutex is held.
func (r *Relay) wants(scope string) map[string]want {
	var all []want
	for w := range r.watchers {
		if w.session.scope == scope && w.session.upstream == nil {
			all = append(all, want{prefix: w.prefix})
		}
	}
	for f := range r.followers {
		if f.session.scope == scope && f.session.upstream == nil {
			all = append(all, want{tracks: true, prefix: f.prefix, forward: f.parameters.Forward.Or(true)})
		}
	}
	slices.SortFunc(all, func(a, b want) int { return len(a.prefix) - len(b.prefix) })
	wants := map[string]want{}
	for _, w := range all {
		key := ""
		for k, other := range wants {
			if other.tracks == w.tracks && w.prefix.HasPrefix(other.prefix) {
				key = k
			}
		}
		if key == "" {
			wants[kinds[w.tracks]+w.prefix.String()] = w
		} else if w.forward {
			other := wants[key]
			other.forward = true
			wants[key] = other
		}
	}
	return wants
}

var kinds = map[bool]string{false: "namespaces ", true: "tracks "}

// interested has upstream relays be asked for what clients follow now. The relay's mutex is held.
func (r *Relay) interested() {
	close(r.interests)
	r.interests = make(chan struct{})
}

// An interest is the relay's SUBSCRIBE_NAMESPACE or SUBSCRIBE_TRACKS at an upstream relay, one for all clients.
type interest struct {
	want
	session  *session
	request  *request // once it is accepted
	cancel   context.CancelFunc
	answered chan struct{}
	ended    chan struct{}
	again    atomic.Bool // it may be sent again
	replaced atomic.Bool
	learnt   map[string]wire.Namespace
}

// aggregate has an upstream relay be asked for what clients follow, until the session's requests end. It closes synced
// when it has asked once.
func (s *session) aggregate(synced chan<- struct{}) {
	r := s.relay
	current := map[string]*interest{}
	for {
		r.mu.Lock()
		changed, wants := r.interests, r.wants(s.scope)
		r.mu.Unlock()
		s.reconcile(current, wants)
		if synced != nil {
			close(synced)
			synced = nil
		}
		select {
		case <-changed:
		case <-s.asks.Done():
			return
		}
	}
}

// reconcile ends the interests that aren't wanted, and then begins those that are new: a prefix must not be there
// beside a longer one.
func (s *session) reconcile(current map[string]*interest, wants map[string]want) {
	for key, i := range current {
		if _, ok := wants[key]; ok {
			continue
		}
		delete(current, key)
		i.replaced.Store(true)
		i.cancel()
		<-i.ended                                   // after a while at most
		defer time.AfterFunc(lateStreams, i.forget) // when another one may have learnt the same
	}
	for key, w := range wants {
		i := current[key]
		if i == nil || i.again.Load() {
			current[key] = s.interest(w)
			continue
		}
		if i.forward != w.forward && i.request != nil {
			i.forward = w.forward
			_ = i.request.send(&wire.RequestUpdate{RequestID: s.newID(), Parameters: wire.Parameters{
				Forward: wire.Some(w.forward)}})
		}
	}
}

// interest asks for what clients want; it returns when it is answered.
func (s *session) interest(w want) *interest {
	ctx, cancel := context.WithCancel(s.asks)
	i := &interest{
		want: w, session: s, cancel: cancel, answered: make(chan struct{}), ended: make(chan struct{}),
		learnt: map[string]wire.Namespace{},
	}
	var m wire.Message = &wire.SubscribeNamespace{RequestID: s.newID(), Prefix: w.prefix}
	if w.tracks {
		t := &wire.SubscribeTracks{RequestID: s.newID(), Prefix: w.prefix}
		if !w.forward {
			t.Parameters.Forward = wire.Some(false)
		}
		m = t
	}
	s.relay.running.Go(func() {
		defer cancel()
		err := s.request(ctx, m, i.take)
		var no refusal
		if refused := errors.As(err, &no); ctx.Err() == nil && s.ctx.Err() == nil {
			if !refused || no.Retry > 0 || no.Code == wire.PrefixOverlap {
				time.AfterFunc(lateStreams, func() {
					i.again.Store(true)
					s.relay.mu.Lock()
					defer s.relay.mu.Unlock()
					s.relay.interested()
				})
			}
			s.relay.log.Warn("the upstream relay doesn't say what it has", "upstream", s.upstream.name,
				"prefix", w.prefix.String(), "error", err)
		}
		if !i.replaced.Load() {
			i.forget()
		}
		close(i.ended)
	})
	select {
	case <-i.answered:
	case <-i.ended:
	}
	return i
}

// take takes a message of the upstream relay's.
func (i *interest) take(q *request, m wire.Message) bool {
	switch m := m.(type) {
	case nil:
		i.request = q
		close(i.answered)
		return true
	case *wire.NamespaceAvailable:
		name := slices.Concat(i.prefix, m.Suffix)
		key := name.String()
		if _, ok := i.learnt[key]; i.tracks || ok || len(i.learnt) == maxLearnt {
			return false
		}
		i.learnt[key] = name
		i.session.relay.learn(i.session, name)
		return true
	case *wire.NamespaceDone:
		name := slices.Concat(i.prefix, m.Suffix)
		key := name.String()
		if _, ok := i.learnt[key]; !ok {
			return false
		}
		delete(i.learnt, key)
		i.session.relay.removeNamespace(i.session, name)
		return true
	case *wire.PublishSkipped:
		if i.tracks {
			i.skipped(wire.Track{Namespace: slices.Concat(i.prefix, m.Suffix.Namespace), Name: m.Suffix.Name})
		}
		return i.tracks
	case *wire.RequestOK:
		return i.tracks
	}
	return false
}

// skipped hands down that a track isn't published to those that follow it.
func (i *interest) skipped(t wire.Track) {
	r := i.session.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	for f := range r.followers {
		if f.session.upstream == nil && f.session.scope == i.session.scope && t.Namespace.HasPrefix(f.prefix) {
			suffix := wire.Track{Namespace: t.Namespace[len(f.prefix):], Name: t.Name}
			_ = f.request.send(&wire.PublishSkipped{Suffix: suffix})
		}
	}
}

// forget forgets what was learnt, after the request's end.
func (i *interest) forget() {
	for name := range maps.Values(i.learnt) {
		i.session.relay.removeNamespace(i.session, name)
	}
	clear(i.learnt)
}

// learn has an upstream relay be one that has a namespace.
func (r *Relay) learn(s *session, name wire.Namespace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publishAs(s, name)
}

// follows reports whether a client follows a track's namespace.
func (r *Relay) follows(t *track) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for f := range r.followers {
		if f.session.upstream == nil && f.session.scope == t.key.scope && t.name.Namespace.HasPrefix(f.prefix) {
			return true
		}
	}
	return false
}

// unfollow ends what upstream relays have published, if no client follows it any more.
func (r *Relay) unfollow() {
	if len(r.upstreams) == 0 {
		return
	}
	for _, t := range r.list() {
		t.mu.Lock()
		t.unsubscribe()
		t.mu.Unlock()
	}
}
