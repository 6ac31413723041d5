package relay

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// maxGaps is how many gaps of request IDs are remembered. A request that was reset before it came leaves one.
const maxGaps = 1024

// ids are the request IDs that a peer has used, as ranges that ascend and don't touch. Requests may come in any order.
type ids []idRange

// An idRange is the numbers from first to before end, of which each counts for two IDs.
type idRange struct{ first, end uint64 }

// use notes a request ID; it reports whether it was new. If there are too many gaps, the lowest count as used.
func (s *ids) use(id uint64) bool {
	n := id / 2
	i, _ := slices.BinarySearchFunc(*s, n, func(r idRange, n uint64) int {
		switch {
		case r.end <= n:
			return -1
		case r.first > n:
			return 1
		}
		return 0
	})
	if i < len(*s) && (*s)[i].first <= n {
		return false
	}
	before := i > 0 && (*s)[i-1].end == n
	after := i < len(*s) && (*s)[i].first == n+1
	switch {
	case before && after:
		(*s)[i-1].end = (*s)[i].end
		*s = slices.Delete(*s, i, i+1)
	case before:
		(*s)[i-1].end++
	case after:
		(*s)[i].first--
	default:
		*s = slices.Insert(*s, i, idRange{n, n + 1})
	}
	if len(*s) > maxGaps {
		(*s)[1].first = 0
		*s = slices.Delete(*s, 0, 1)
	}
	return true
}

// useID notes the request ID of a message of the peer's (§6.4.2.1).
func (s *session) useID(id uint64) *wire.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id%2 == s.nextID%2 || !s.used.use(id) {
		return &wire.Error{Code: wire.InvalidRequestID, Text: "a request ID of the relay's, or one that was used"}
	}
	return nil
}

// newID returns the next request ID of ours.
func (s *session) newID() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.nextID
	s.nextID += 2
	return id
}
