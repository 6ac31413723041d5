package quic

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/quic-go/quic-go/internal/protocol"
	"github.com/quic-go/quic-go/internal/wire"

	"github.com/stretchr/testify/require"
)

// TestSpans adds random spans, and compares with one boolean for each number.
func TestSpans(t *testing.T) {
	for range 500 {
		var s spans
		var have [64]bool
		for range 30 {
			first := rand.Uint64N(64)
			end := first + rand.Uint64N(min(12, 65-first))
			isNew := false
			for n := first; n < end; n++ {
				isNew = isNew || !have[n]
				have[n] = true
			}
			require.Equal(t, isNew, s.add(first, end), "%d to %d", first, end)
			for n, is := range have {
				require.Equal(t, is, s.contains(uint64(n)), "%d in %v", n, s)
			}
			for i := 1; i < len(s); i++ {
				require.Less(t, s[i-1].end, s[i].first, "%v", s)
			}
		}
	}
}

// TestMergeRanges merges random ranges, and compares with one boolean for each number.
func TestMergeRanges(t *testing.T) {
	for range 500 {
		var all []wire.AckRange
		var have [64]bool
		for range 8 {
			first := rand.IntN(64)
			last := first + rand.IntN(64-first)/4
			for n := first; n <= last; n++ {
				have[n] = true
			}
			all = mergeRanges(all, []wire.AckRange{{
				Smallest: protocol.PacketNumber(first), Largest: protocol.PacketNumber(last),
			}})
		}
		ack := &wire.AckFrame{AckRanges: all}
		for n, is := range have {
			require.Equal(t, is, ack.AcksPacket(protocol.PacketNumber(n)), "%d in %v", n, all)
		}
		for i := 1; i < len(all); i++ {
			require.Greater(t, all[i-1].Smallest, all[i].Largest+1, "%v", all)
		}
	}
}

// TestLevelsOfPeer issues as many levels as the peer's limit allows, also after it has retired some.
func TestLevelsOfPeer(t *testing.T) {
	for limit, levels := range map[uint64]int{2: 2, 3: 3, 4: 4, 8: 4} {
		issued := map[uint64]protocol.ConnectionID{}
		g := newConnIDGenerator(
			&connIDTracker{}, protocol.ParseConnectionID(make([]byte, 8)), protocol.ConnectionID{},
			newStatelessResetter(nil), nil, func(f wire.Frame) {
				if f, ok := f.(*wire.NewConnectionIDFrame); ok {
					issued[f.SequenceNumber] = f.ConnectionID
				}
			}, &protocol.DefaultConnectionIDGenerator{ConnLen: 8},
		)
		g.levels = 4
		require.NoError(t, g.SetMaxActiveConnIDs(limit))
		require.NoError(t, g.Retire(0, protocol.ConnectionID{}, 0))
		for range 20 {
			got := map[int]bool{}
			for seq := range g.activeSrcConnIDs {
				got[int(issued[seq].Bytes()[0])] = true
			}
			require.Len(t, got, levels, "limit %d", limit)
			for level := range got {
				require.Less(t, level, levels, "limit %d", limit)
			}
			seqs := slices.Collect(func(yield func(uint64) bool) {
				for seq := range g.activeSrcConnIDs {
					if !yield(seq) {
						return
					}
				}
			})
			require.NoError(t, g.Retire(seqs[rand.IntN(len(seqs))], protocol.ConnectionID{}, 0))
		}
	}
}

// TestLoopTimer sets timers to a later and to an earlier time: where turns are taken, the later one is left out.
func TestLoopTimer(t *testing.T) {
	for _, turns := range []*Turns{nil, {}} {
		timer := (&Outside{hooks: &Hooks{Turns: turns}}).newTimer(time.Hour)
		timer.Reset(time.Hour)
		first := timer.at
		timer.Reset(2 * time.Hour)
		require.Equal(t, first, timer.at)
		require.Equal(t, turns != nil, !timer.at.IsZero())
		timer.Reset(0)
		if turns != nil {
			require.True(t, timer.at.Before(first))
		}
		<-timer.C
		timer.Reset(time.Hour) // it has fired
		if turns != nil {
			require.False(t, timer.at.Before(first))
		}
		require.True(t, timer.Stop())
	}
}
