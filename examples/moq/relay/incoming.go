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
	head    int    // the size of its header

	source   *source
	parser   wire.Subgroup
	payload  uint64 // bytes of the current object that are to come
	forwards bool   // the current object is forwarded
	subgroup *subgroup
	together bool                  // what it has begun (socket.Begin) ends with the stream
	size     uint64                // bytes of the subgroup that were forwarded
	last     uint64                // the ID of the last object that was forwarded
	cut      bool                  // objects after it weren't
	final    wire.Optional[uint64] // the ID of the last object that isn't a mark
	compare  comparison            // of the current payload with the one that is kept; nil: there is none

	// The track's mutex guards these.
	settled bool     // all of the last object was forwarded
	before  progress // before the last object
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
			in.head = n
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
	in.leave()
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
			if n, err = in.stream.Read(buf); n > 0 && errors.Is(err, io.EOF) {
				in.together = true // the end of the stream leaves with these bytes
				in.source.track.relay.socket.Begin()
			}
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

// leave has what was begun leave.
func (in *incoming) leave() {
	if in.together {
		in.together = false
		in.source.track.relay.socket.End()
	}
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
			t.relay.socket.Begin()
			in.subgroup.append(out, objects, now)
			t.mu.Unlock()
			t.relay.socket.End()
		}
	}()
	for len(data) > 0 {
		if in.payload > 0 {
			n := min(in.payload, uint64(len(data)))
			if in.forwards {
				out = append(out, data[:n]...)
				in.size += n
			} else if !in.same(data[:n]) {
				return nil, errMalformed
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
		if in.forwards, err = in.accept(&o, first); err != nil {
			return nil, err
		}
		if in.forwards {
			_, id := wire.ParseVarint(data)
			one := object{id: o.ID, at: in.size, time: now, ends: o.Status != wire.Normal}
			before := len(out)
			switch {
			case in.size > 0 && in.cut:
				out = wire.AppendVarint(out, o.ID-in.last-1)
			case first || in.size > 0:
				out = append(out, data[:id]...)
			default: // what it was counted from isn't forwarded
				out = wire.AppendVarint(out, o.ID)
			}
			in.last, in.cut = o.ID, false
			one.body = in.size + uint64(len(out)-before)
			out = append(out, data[id:n]...)
			in.size += uint64(len(out) - before)
			one.end = in.size + o.Length
			objects = append(objects, one)
		} else {
			in.cut = true
		}
		in.payload = o.Length
		data = data[n:]
	}
	return nil, nil
}

// accept reports whether an object is forwarded: no other stream has it, or is going to have it.
func (in *incoming) accept(o *wire.Object, first bool) (bool, error) {
	t := in.source.track
	t.mu.Lock()
	defer t.mu.Unlock()
	if in.source.over.Load() {
		return false, nil
	}
	in.takeOver(o)
	if in.source.over.Load() {
		return false, nil
	}
	g, p := in.progress()
	if err := in.check(g, p, o, first); err != nil {
		return false, err
	}
	if p.whole || p.live != nil && p.live != in || p.began && o.ID <= p.last ||
		t.missing.has(wire.Location{Group: g.id, Object: o.ID}) {
		t.received.Duplicates++
		in.differ()
		return false, nil
	}
	if in.subgroup == nil {
		h := in.parser.Header
		if !first || p.began {
			h.FirstObject = h.FirstObject && first && !p.began
			h.SubgroupIsFirst = false
		}
		p.live = in
		in.subgroup = g.newSubgroup(t, h, o.Properties)
		if first && !p.began {
			in.subgroup.above = in.copyable()
		}
	}
	in.settled, in.before = false, *p
	p.began, p.last = true, o.ID
	if o.Status == wire.Normal {
		p.normal = wire.Some(o.ID)
	}
	return true, nil
}

// copyable returns the stream if the kernel may copy it: it is an upstream relay's, without protection.
func (in *incoming) copyable() *above {
	s := in.session
	if s.relay.kernel == nil || s.upstream == nil || s.notForKernel() != "" {
		return nil
	}
	return &above{session: s, id: in.stream.(*quic.ReceiveStream).StreamID(), head: in.head}
}

// differ notes that subscribers don't get the same bytes as the relay: what the kernel has begun to copy is given up.
func (in *incoming) differ() {
	if in.subgroup == nil || in.subgroup.above == nil {
		return
	}
	in.subgroup.above = nil
	for o := range in.subgroup.outgoing {
		if o.above != nil {
			o.drop(droppedCancelled)
		}
	}
}

// same reports whether bytes of a payload that isn't forwarded are those that are kept.
func (in *incoming) same(data []byte) bool {
	if in.compare == nil {
		return true
	}
	t := in.source.track
	t.mu.Lock()
	defer t.mu.Unlock()
	return in.compare(data)
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
	if fin && in.parser.Started && !in.source.over.Load() {
		if malformed := in.checkEnd(); malformed != nil {
			err, fin = malformed, false
		}
	}
	in.stop(err)
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
