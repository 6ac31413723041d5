package relay

import (
	"errors"
	"io"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// readSize is how much of a stream is read at a time.
const readSize = 8 << 10

// An incoming is a subgroup stream of a publisher's, as it comes. Headers of objects are forwarded when they are whole
// and valid, payloads as they come.
type incoming struct {
	session *session
	stream  receiveStream
	held    []byte // what has come, and can't be parsed yet

	source   *source
	parser   wire.Subgroup
	payload  uint64 // bytes of the current object that are to come
	forwards bool   // the current object is forwarded
	subgroup *subgroup
	size     uint64 // bytes of the subgroup that were forwarded

	// The track's mutex guards these.
	settled bool                  // all of the last object was forwarded
	began   bool                  // progress before the last object
	last    uint64                // the same
	after   wire.Optional[uint64] // the object before, if that was another stream's
}

// more reads more of the stream. Its end is io.EOF, or io.ErrUnexpectedEOF within a header.
func (in *incoming) more() error {
	var b [512]byte
	n, err := in.stream.Read(b[:])
	in.held = append(in.held, b[:n]...)
	if n > 0 {
		return nil
	}
	return err
}

// kind returns what the stream carries, whose type stays in front of what is held.
func (in *incoming) kind() (wire.StreamKind, error) {
	for {
		kind, err := wire.ParseStreamType(in.held)
		if !errors.Is(err, wire.ErrIncomplete) {
			return kind, err
		}
		if err := in.more(); err != nil {
			return 0, err
		}
	}
}

// receiveSubgroup forwards a subgroup stream.
func (in *incoming) receiveSubgroup() {
	for {
		h, n, err := wire.ParseSubgroupHeader(in.held)
		if err == nil {
			in.parser.Header = h
			in.held = in.held[n:]
			break
		}
		if errors.Is(err, wire.ErrIncomplete) {
			err = in.more()
		}
		if err != nil {
			in.session.ended(err)
			return
		}
	}
	if in.source = in.session.source(in.parser.Header.TrackAlias); in.source == nil {
		in.session.relay.counters.unknown.Add(1)
		in.stream.CancelRead(quic.StreamErrorCode(wire.ResetCancelled))
		return
	}
	t := in.source.track
	t.mu.Lock()
	if in.source.over.Load() {
		in.stream.CancelRead(quic.StreamErrorCode(wire.ResetCancelled))
	}
	in.source.streams++
	in.source.open[in] = struct{}{}
	t.received.Streams++
	t.mu.Unlock()
	err := in.read()
	t.mu.Lock()
	in.end(err)
	delete(in.source.open, in)
	in.source.complete()
	in.source.depart()
	t.mu.Unlock()
	in.session.ended(err)
}

// read forwards objects until the stream ends, which is io.EOF.
func (in *incoming) read() error {
	buf := make([]byte, readSize)
	n := copy(buf, in.held)
	in.held = in.held[n:]
	var err error
	for {
		data := buf[:n]
		if len(in.held) > 0 {
			in.held = append(in.held, data...)
			data = in.held
		}
		rest, invalid := in.forward(data)
		if invalid != nil {
			return invalid
		}
		in.held = append(in.held[:0:0], rest...)
		if err == nil {
			n, err = in.stream.Read(buf)
		} else {
			n = 0
		}
		if n == 0 && err != nil {
			break
		}
	}
	if errors.Is(err, io.EOF) && (in.payload > 0 || len(in.held) > 0) {
		return violated("a subgroup stream that ends within an object")
	}
	return err
}

// forward forwards what can be of data, and returns the beginning of a header that isn't whole.
func (in *incoming) forward(data []byte) (rest []byte, err error) {
	now := time.Now()
	out := make([]byte, 0, len(data)+wire.MaxVarint)
	var objects []object
	defer func() {
		if len(out) > 0 {
			t := in.source.track
			t.mu.Lock()
			in.settled = in.payload == 0
			in.subgroup.append(out, objects, now)
			t.mu.Unlock()
		}
	}()
	for len(data) > 0 {
		if in.payload > 0 {
			n := min(in.payload, uint64(len(data)))
			if in.forwards {
				out = append(out, data[:n]...)
				in.size += n
			}
			in.payload -= n
			data = data[n:]
			continue
		}
		first := !in.parser.Started
		o, n, err := in.parser.Next(data)
		if errors.Is(err, wire.ErrIncomplete) {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
		if err := in.check(&o); err != nil {
			return nil, err
		}
		if in.forwards = in.accept(&o, first); in.forwards {
			_, id := wire.ParseVarint(data)
			one := object{id: o.ID, at: in.size, time: now}
			before := len(out)
			if in.after.Present {
				out = wire.AppendVarint(out, o.ID-in.after.Value-1)
				in.after = wire.Optional[uint64]{}
			} else if first || in.size > 0 {
				out = append(out, data[:id]...)
			} else { // what it was counted from isn't forwarded
				out = wire.AppendVarint(out, o.ID)
			}
			one.body = in.size + uint64(len(out)-before)
			out = append(out, data[id:n]...)
			in.size += uint64(len(out) - before)
			one.end = in.size + o.Length
			objects = append(objects, one)
		}
		in.payload = o.Length
		data = data[n:]
	}
	return nil, nil
}

// errMalformed says that the track is malformed (§12.1).
var errMalformed = errors.New("the track is malformed")

// check looks at what an object says of its track.
func (in *incoming) check(o *wire.Object) error {
	if len(o.Properties) == 0 {
		return nil
	}
	if o.Properties.CheckObject(wire.Location{Group: in.parser.Header.Group, Object: o.ID}) != nil {
		return errMalformed
	}
	return nil
}

// accept reports whether an object is forwarded: no other stream has it, or is going to have it.
func (in *incoming) accept(o *wire.Object, first bool) bool {
	t := in.source.track
	t.mu.Lock()
	defer t.mu.Unlock()
	if in.source.over.Load() {
		return false
	}
	in.takeOver(o)
	if in.source.over.Load() {
		return false
	}
	g, p := in.progress()
	if p.whole || p.live != nil && p.live != in || p.began && o.ID <= p.last {
		t.received.Duplicates++
		return false
	}
	if in.subgroup == nil {
		h := in.parser.Header
		if !first || p.began {
			h.FirstObject = h.FirstObject && first && !p.began
			h.SubgroupIsFirst = false
		}
		p.live = in
		in.subgroup = g.newSubgroup(t, h, o.Properties)
	}
	in.settled, in.began, in.last = false, p.began, p.last
	p.began, p.last = true, o.ID
	return true
}

// progress returns the stream's group, and how far its subgroup was forwarded.
func (in *incoming) progress() (*group, *progress) {
	if in.subgroup != nil {
		g := in.subgroup.group
		return g, g.known[in.parser.Header.Subgroup]
	}
	g := in.source.track.group(in.parser.Header.Group)
	p := g.known[in.parser.Header.Subgroup]
	if p == nil {
		p = &progress{}
		g.known[in.parser.Header.Subgroup] = p
	}
	return g, p
}

// end ends the stream for the subscribers as it has ended here.
func (in *incoming) end(err error) {
	t := in.source.track
	fin := errors.Is(err, io.EOF)
	if errors.Is(err, errMalformed) {
		in.stream.CancelRead(quic.StreamErrorCode(wire.ResetMalformedTrack))
		t.malformed(in.source)
	}
	if errors.Is(err, wire.ErrLimit) {
		in.stream.CancelRead(quic.StreamErrorCode(wire.ResetExcessiveLoad))
	}
	h := in.parser.Header
	if fin && !in.parser.Started && !h.SubgroupIsFirst && !in.source.over.Load() { // an empty subgroup (§9.9)
		if g, p := in.progress(); p.live == nil && !p.began && !p.whole {
			p.live = in
			in.subgroup = g.newSubgroup(t, h, nil)
		}
	}
	if in.subgroup == nil {
		return
	}
	_, p := in.progress()
	p.live, p.whole = nil, fin
	if !fin {
		in.unfinish(p)
	}
	in.subgroup.finish(fin, resetCode(err))
}

// resetCode returns the code of a stream that was cut off: the publisher's, if it has reset it.
func resetCode(err error) wire.ResetCode {
	var reset *quic.StreamError
	switch {
	case errors.As(err, &reset) && reset.Remote:
		return wire.ResetCode(reset.ErrorCode)
	case errors.Is(err, errMalformed):
		return wire.ResetMalformedTrack
	case errors.Is(err, wire.ErrLimit):
		return wire.ResetExcessiveLoad
	}
	return wire.ResetCancelled
}

// malformed ends a malformed track (§12.1).
func (t *track) malformed(src *source) {
	src.cancel()
	for _, u := range t.subs {
		for o := range u.outgoing {
			o.drop(droppedMalformed)
		}
	}
	t.endAll(wire.DoneMalformedTrack, "an object of the track is malformed")
	t.unsubscribe()
}
