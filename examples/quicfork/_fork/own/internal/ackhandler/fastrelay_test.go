package ackhandler

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/quic-go/quic-go/internal/protocol"

	"github.com/stretchr/testify/require"
)

// TestInsertOutside sends, inserts, acknowledges and loses packets at random, and compares with a map.
func TestInsertOutside(t *testing.T) {
	for range 300 {
		h := newSentPacketHistory()
		want := map[protocol.PacketNumber]bool{}
		var late []protocol.PacketNumber // allocated, and not registered yet
		next := protocol.PacketNumber(0)
		for range 200 {
			p := &packet{Frames: []Frame{{}}, EncryptionLevel: protocol.Encryption1RTT}
			switch rand.IntN(5) {
			case 0:
				h.SentPacket(next, p)
				want[next] = true
				next++
			case 1:
				late = append(late, next)
				next++
			case 2:
				if len(late) > 0 {
					i := rand.IntN(len(late))
					h.insertOutside(late[i], p)
					want[late[i]] = true
					late = slices.Delete(late, i, i+1)
				}
			case 3, 4:
				for pn := range want {
					if rand.IntN(2) == 0 {
						require.NoError(t, h.Remove(pn))
					} else {
						h.DeclareLost(pn)
					}
					delete(want, pn)
					break
				}
			}
			var got []protocol.PacketNumber
			for pn := range h.Packets() {
				got = append(got, pn)
			}
			require.Len(t, got, len(want))
			require.True(t, slices.IsSorted(got))
			for _, pn := range got {
				require.True(t, want[pn])
			}
			require.Equal(t, len(want), h.NumOutstanding())
			if len(h.packets) > 0 {
				require.NotNil(t, h.packets[0])
				require.Equal(t, h.highestPacketNumber, h.firstPacketNumber+protocol.PacketNumber(len(h.packets)-1))
			}
		}
	}
}
