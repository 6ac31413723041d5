package server

import (
	"slices"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quic/outside"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A stream is a unidirectional stream of a feed's publisher. A stream's end counts as a byte after its data, so that
// spans say whether it was sent as well.
type stream struct {
	number uint64 // its ID and the base of its publisher
	level  int    // of priority, from 0, the most urgent
	chunks []chunk
	have   outside.Spans
	size   uint64 // of the data, if ended
	ended  bool   // the size is known
	reset  bool
}

// A chunk is data of a stream as it came, with the stream's end after it or not.
type chunk struct {
	offset uint64
	data   []byte
	fin    bool
	at     time.Time
}

// dataEnd is where the data ends.
func (c *chunk) dataEnd() uint64 { return c.offset + uint64(len(c.data)) }

// end is where the chunk ends.
func (c *chunk) end() uint64 { return end(c.offset, uint64(len(c.data)), c.fin) }

func end(offset, length uint64, fin bool) uint64 {
	if fin {
		length++
	}
	return offset + length
}

// add adds a frame, whose data is copied, and returns how many bytes of data are new.
func (st *stream) add(f *quic.StreamFrame) (c *chunk, added uint64) {
	one := chunk{offset: f.Offset, data: slices.Clone(f.Data), fin: f.Fin, at: f.Time}
	if f.Fin {
		st.size, st.ended = one.dataEnd(), true
	}
	before := st.bytes()
	st.have.Add(one.offset, one.end())
	i := len(st.chunks)
	for i > 0 && st.chunks[i-1].offset > one.offset {
		i--
	}
	st.chunks = slices.Insert(st.chunks, i, one)
	return &st.chunks[i], st.bytes() - before
}

// dataEnd is where the data of a span ends.
func (st *stream) dataEnd(s outside.Span) uint64 {
	if st.ended {
		return min(s.To, st.size)
	}
	return s.To
}

// bytes is how many bytes of data came so far.
func (st *stream) bytes() (n uint64) {
	for _, s := range st.have {
		n += s.To - s.From
	}
	if st.ended && len(st.have) > 0 && st.have[len(st.have)-1].To > st.size {
		n--
	}
	return n
}

// whole reports whether all of the stream came.
func (st *stream) whole() bool {
	return st.ended && len(st.have) == 1 && st.have[0] == outside.Span{To: st.size + 1}
}

// fromStart reports whether the stream is kept from its beginning, without a gap.
func (st *stream) fromStart() bool {
	return !st.reset && len(st.have) == 1 && len(st.chunks) > 0 && st.chunks[0].offset == 0
}

// slice returns the parts of a span, whose stream ID the caller fills in; ok is false if they aren't kept any more.
func (st *stream) slice(s outside.Span) (parts []quic.StreamData, ok bool) {
	for i := range st.chunks {
		c := &st.chunks[i]
		if c.end() <= s.From {
			continue
		}
		if c.offset > s.From {
			return nil, false
		}
		to := min(s.To, c.end())
		parts = append(parts, quic.StreamData{
			Offset: s.From, Data: c.data[s.From-c.offset : max(s.From, min(to, c.dataEnd()))-c.offset],
			Fin: c.fin && to == c.end(), Urgency: int8(st.level * 8 / levels),
		})
		if s.From = to; s.From == s.To {
			return parts, true
		}
	}
	return nil, false
}

// expire drops what is older than keep.
func (st *stream) expire(now time.Time, keep time.Duration) {
	st.chunks = slices.DeleteFunc(st.chunks, func(c chunk) bool { return now.Sub(c.at) > keep })
}
