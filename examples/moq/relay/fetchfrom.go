package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

const (
	// maxFetching is how many fetch streams of a publisher are read at a time. A subscriber that reads slowly holds one
	// up, and with it a stream's window, of which a session has four (Config.Window): so the rest goes on.
	maxFetching = 2
	// maxFetched is how many bytes an object may have that is kept when it was fetched.
	maxFetched = 1 << 20
)

// errPublisher says that a publisher has failed, so that others may be asked for the rest.
var errPublisher = errors.New("the publisher's answer was cut off")

// ask asks publishers for a range of which it isn't known what it has, one after the other until one says it, and sends
// what there is (§7.5, §9.11). What none of them says is marked.
func (f *fetching) ask(ctx context.Context, first, last wire.Location) error {
	c := newCourse(first, last, f.descending())
	if f.asks == nil {
		f.skip(c.at)
		end := c.end()
		defer func() {
			if f.course.ahead(end) {
				f.course.pass(end)
				f.course.step()
			}
		}()
	}
	refused := &wire.RequestError{Code: wire.DoesNotExist, Reason: "the track has no publisher"}
	for (len(f.publishers) > 0 || f.climb(&refused)) && f.budget > 0 && !c.over {
		e, err := f.askOne(ctx, f.publishers[0], &c)
		switch {
		case err == nil && e == nil:
			return nil
		case err != nil && !errors.Is(err, errPublisher):
			return err
		case e != nil:
			refused = e
		}
		if f.budget > 0 { // it isn't asked again
			f.publishers = f.publishers[1:]
		}
		if f.asks != nil && f.isAnswered() {
			break
		}
	}
	return f.giveUp(ctx, &c, refused)
}

// climb has upstream relays be asked, once, when the relay isn't subscribed to the track and no client publishes it.
func (f *fetching) climb(refused **wire.RequestError) bool {
	if f.asks == nil || f.climbed || f.session.upstream != nil || f.isAnswered() {
		return false
	}
	f.climbed = true
	relays, some := f.session.relay.aboves(f.session.ctx, f.session.scope)
	if some && len(relays) == 0 {
		*refused = unreachable()
	}
	f.publishers = relays
	return len(relays) > 0
}

// giveUp says that it isn't known what is left of a range.
func (f *fetching) giveUp(ctx context.Context, c *course, refused *wire.RequestError) error {
	kind := wire.Unknown
	if f.budget <= 0 {
		kind = wire.TimedOut
	}
	switch {
	case f.isAnswered():
	case f.asks != nil || kind == wire.Unknown:
		return refusal{downstream(refused, f.session)}
	default:
		f.answer(nil)
	}
	if f.of != nil && kind == wire.Unknown && f.stream == nil && len(f.pieces) == 0 {
		return errUnknown
	}
	if c.over {
		return nil
	}
	return f.mark(ctx, kind, c.marker())
}

func (f *fetching) isAnswered() bool {
	f.track.mu.Lock()
	defer f.track.mu.Unlock()
	return f.answered
}

// spend takes time from what there is for waiting, unless it is a publisher that has to look to that.
func (f *fetching) spend(since time.Time) {
	if f.asks == nil {
		f.budget = max(0, f.budget-time.Since(since))
	}
}

// askOne asks a publisher for what is left of a range, and sends it. It returns the publisher's refusal.
func (f *fetching) askOne(ctx context.Context, p *session, c *course) (*wire.RequestError, error) {
	failed := &wire.RequestError{Code: wire.RequestTimeout, Reason: "the publisher didn't answer"}
	begin := time.Now()
	waits, cancel := context.WithTimeout(ctx, f.budget)
	defer cancel()
	select {
	case p.fetching <- struct{}{}:
		defer func() { <-p.fetching }()
	case <-waits.Done():
		f.spend(begin)
		return failed, ctx.Err()
	}
	answered, ok := f.track.question(p)
	if !ok {
		f.spend(begin)
		return failed, ctx.Err()
	}
	defer answered()
	request, err := p.open(true)
	if err != nil {
		f.spend(begin)
		return failed, nil
	}
	defer request.close()
	stop := context.AfterFunc(waits, func() {
		request.stream.CancelRead(quic.StreamErrorCode(wire.ResetCancelled))
	})
	id := p.newID()
	streams := p.expectFetch(id)
	defer p.forgetFetch(id, streams)
	if request.send(f.upstream(p, id, c)) != nil {
		return failed, nil
	}
	answer, err := request.next()
	answered()
	f.spend(begin)
	if !stop() || err != nil {
		return failed, ctx.Err()
	}
	var end wire.Location
	switch answer := answer.(type) {
	case *wire.RequestError:
		return answer, nil
	case *wire.FetchOK:
		if e, err := f.agreed(p, answer, c); e != nil || err != nil {
			return e, err
		}
		end = answer.End
	default:
		p.fail(violated("%v in answer to FETCH", answer.Type()))
		return failed, nil
	}
	begin = time.Now()
	select {
	case in := <-streams:
		f.spend(begin)
		return nil, f.take(ctx, in, c, end)
	case <-waits.Done():
	case <-p.ctx.Done():
	}
	f.spend(begin)
	return failed, ctx.Err()
}

// agreed takes a publisher's FETCH_OK.
func (f *fetching) agreed(p *session, ok *wire.FetchOK, c *course) (*wire.RequestError, error) {
	if kind, is := ok.Properties.Mandatory(); is {
		if f.isAnswered() {
			return nil, errCancelled // §3.6
		}
		return unsupported(kind), nil
	}
	if ok.End.Less(c.first) && !f.descending() {
		p.fail(violated("FETCH_OK with an end before the start"))
		return nil, errPublisher
	}
	if f.asks == nil {
		if f.request != nil {
			f.answer(nil)
		}
		return nil, nil
	}
	f.last = earlier(f.last, ok.End)
	f.course = newCourse(f.first, f.last, f.descending())
	*c = f.course
	f.answer(&wire.FetchOK{EndOfTrack: ok.EndOfTrack, End: ok.End, Properties: ok.Properties})
	return nil, nil
}

// take sends what a publisher has of a range, and keeps it. What it goes over doesn't exist. It returns errPublisher if
// the rest is to be asked for elsewhere.
func (f *fetching) take(ctx context.Context, in *incoming, c *course, end wire.Location) error {
	stop := context.AfterFunc(ctx, func() { in.stream.CancelRead(quic.StreamErrorCode(wire.ResetCancelled)) })
	defer stop()
	defer in.stream.CancelRead(quic.StreamErrorCode(wire.ResetCancelled))
	parser := wire.Fetched{Draft: in.session.draft, Descending: f.descending()}
	for {
		o, err := f.header(in, &parser)
		switch {
		case errors.Is(err, io.EOF):
			return f.finish(c, end)
		case f.lost != nil:
			return f.lost
		case err != nil:
			in.session.ended(err)
			return errPublisher
		}
		at := wire.Location{Group: o.Group, Object: o.ID}
		ahead := c.ahead(at)
		switch {
		case o.EndOfRange == wire.NoEndOfRange:
			err = f.takeObject(ctx, in, c, o)
		case !ahead:
		case o.EndOfRange == wire.NonExistent:
			f.over(c.through(at))
		default:
			c.pass(at)
			if c.step(); f.descending() && at == c.first {
				c.over = true
			}
			err = f.mark(ctx, o.EndOfRange, at)
		}
		if errors.Is(err, errMalformed) {
			f.track.mu.Lock()
			f.track.malformed(in.session)
			f.track.mu.Unlock()
		}
		if err != nil {
			return err
		}
	}
}

// finish takes the end of a publisher's stream: what it has gone over, up to the end that it has named.
func (f *fetching) finish(c *course, end wire.Location) error {
	if c.over {
		return nil
	}
	if !f.descending() && end.Less(c.last) {
		if c.ahead(end) {
			f.over(c.through(end))
		}
		return errPublisher
	}
	f.over(c.through(c.end()))
	return nil
}

// over takes note of what doesn't exist.
func (f *fetching) over(spans []span) {
	if len(spans) == 0 {
		return
	}
	f.absent = wire.Some(spans[len(spans)-1].last)
	if f.asks != nil {
		return // nothing is remembered of a track that the relay isn't subscribed to
	}
	f.track.mu.Lock()
	defer f.track.mu.Unlock()
	for _, s := range spans {
		f.track.missing.add(s.first, s.last)
	}
}

// header returns the next header of a publisher's stream, which stays before the payload.
func (f *fetching) header(in *incoming, parser *wire.Fetched) (o wire.FetchObject, err error) {
	for {
		o, n, err := parser.Next(in.held)
		if err == nil {
			o.Properties = append(wire.Properties(nil), o.Properties...)
			in.held = in.held[n:]
			return o, nil
		}
		if !errors.Is(err, wire.ErrIncomplete) {
			return o, err
		}
		if err := f.read(in); err != nil {
			if errors.Is(err, io.EOF) && len(in.held) > 0 {
				err = violated("a fetch stream that ends within an object")
			}
			return o, err
		}
	}
}

// read reads more of a publisher's stream, while there is time.
func (f *fetching) read(in *incoming) error {
	if f.stream != nil {
		if err := f.flush(); err != nil {
			return err
		}
	}
	begin := time.Now()
	_ = in.stream.SetReadDeadline(begin.Add(f.budget))
	held := len(in.held)
	in.held = append(in.held, make([]byte, readSize)...)
	n, err := in.stream.Read(in.held[held:])
	in.held = in.held[:held+n]
	f.spend(begin)
	if errors.Is(err, os.ErrDeadlineExceeded) && f.asks == nil {
		f.budget = 0
	}
	if n > 0 {
		return nil
	}
	return err
}

// takeObject sends an object of a publisher's stream as it comes, unless it isn't asked for.
func (f *fetching) takeObject(ctx context.Context, in *incoming, c *course, o wire.FetchObject) error {
	at := wire.Location{Group: o.Group, Object: o.ID}
	if err := o.Properties.CheckObject(at); err != nil {
		in.session.ended(err)
		return errMalformed
	}
	ahead := c.ahead(at)
	if ahead {
		f.over(c.pass(at))
		c.step()
	}
	sends := ahead && f.objects.passesObject(&o)
	if sends {
		if err := f.begin(ctx, o); err != nil {
			return err
		}
	}
	one := &single{FetchObject: o, time: time.Now()}
	for left := o.Length; left > 0; {
		if len(in.held) == 0 {
			if err := f.read(in); err != nil {
				return f.cutOff(in, sends, err)
			}
		}
		data := in.held[:min(left, uint64(len(in.held)))]
		in.held = in.held[len(data):]
		left -= uint64(len(data))
		if sends {
			f.b = append(f.b, data...)
		}
		if ahead && o.Length <= maxFetched {
			one.payload = append(one.payload, data...)
		}
	}
	if ahead && uint64(len(one.payload)) == o.Length && f.asks == nil {
		f.track.mu.Lock()
		defer f.track.mu.Unlock()
		if !f.track.holdFetched(one) {
			return errMalformed
		}
	}
	return nil
}

// cutOff returns what it means that a publisher's stream was cut off within an object.
func (f *fetching) cutOff(in *incoming, sends bool, err error) error {
	if f.lost != nil {
		return f.lost
	}
	if errors.Is(err, io.EOF) {
		err = violated("a fetch stream that ends within an object")
	}
	in.session.ended(err)
	if !sends {
		return errPublisher
	}
	return fmt.Errorf("within an object: %w", err)
}

// expectFetch has a fetch stream of the peer's be handed over.
func (s *session) expectFetch(id uint64) <-chan *incoming {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan *incoming, 1)
	s.fetches[id] = c
	return c
}

// forgetFetch has a fetch stream be stopped that wasn't taken.
func (s *session) forgetFetch(id uint64, streams <-chan *incoming) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.fetches, id)
	select {
	case in := <-streams:
		in.stream.CancelRead(quic.StreamErrorCode(wire.ResetCancelled))
	default:
	}
}

// receiveFetch takes a fetch stream of the peer's, whose request the relay has sent.
func (in *incoming) receiveFetch() {
	for {
		id, n, err := wire.ParseFetchHeader(in.held)
		if errors.Is(err, wire.ErrIncomplete) {
			err = in.more()
		} else if err == nil {
			in.held = in.held[n:]
			s := in.session
			s.mu.Lock()
			c, ours := s.fetches[id], id%2 == s.nextID%2 && id < s.nextID
			delete(s.fetches, id)
			if c != nil {
				c <- in // it has room for the one stream that there is
			}
			s.mu.Unlock()
			switch {
			case c != nil:
			case ours: // it was cancelled
				in.stream.CancelRead(quic.StreamErrorCode(wire.ResetCancelled))
			default:
				s.fail(violated("a fetch stream for a FETCH that wasn't sent"))
			}
			return
		}
		if err != nil {
			in.session.ended(err)
			return
		}
	}
}
