package ackhandler

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/quic-go/quic-go/internal/monotime"
	"github.com/quic-go/quic-go/internal/protocol"
	"github.com/quic-go/quic-go/internal/utils"
	"github.com/quic-go/quic-go/internal/wire"

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

// TestAckAlarm has packets come every 10 ms: the alarm stays as the first one that isn't acknowledged has set it, and
// moves when the peer asks for another delay.
func TestAckAlarm(t *testing.T) {
	h := NewReceivedPacketHandler(utils.DefaultLogger)
	SetAckFrequency(h)
	now, pn := monotime.Now(), protocol.PacketNumber(0)
	receive := func() {
		require.NoError(t, h.ReceivedPacket(pn, protocol.ECNNon, protocol.Encryption1RTT, now, true))
		pn++
		now = now.Add(10 * time.Millisecond)
	}
	ask := func(sequence uint64, delay time.Duration) {
		FollowAckFrequency(h, &wire.AckFrequencyFrame{
			SequenceNumber: sequence, AckElicitingThreshold: 100, RequestMaxAckDelay: delay,
		})
	}
	first := now
	receive()
	require.Equal(t, first.Add(MaxAckDelay), h.GetAlarmTimeout())
	ask(1, time.Second)
	for range 5 {
		receive()
		require.Equal(t, first.Add(time.Second), h.GetAlarmTimeout())
	}
	ask(3, 2*time.Second)
	require.Equal(t, first.Add(2*time.Second), h.GetAlarmTimeout())
	ask(2, time.Second) // older
	require.Equal(t, first.Add(2*time.Second), h.GetAlarmTimeout())
	require.Nil(t, h.GetAckFrame(protocol.Encryption1RTT, now, true))
	require.NotNil(t, h.GetAckFrame(protocol.Encryption1RTT, first.Add(2*time.Second), true))
	require.Zero(t, h.GetAlarmTimeout())
	first = now
	receive()
	require.Equal(t, first.Add(2*time.Second), h.GetAlarmTimeout())
	QueueACK(h)
	receive()
	require.Zero(t, h.GetAlarmTimeout())
	require.NotNil(t, h.GetAckFrame(protocol.Encryption1RTT, now, true))
}

// TestAckReordering leaves out packets, which are reported at once when others are so far ahead as the peer asks, and
// each once; also when they arrive after they were reported.
func TestAckReordering(t *testing.T) {
	for threshold, want := range map[protocol.PacketNumber][]protocol.PacketNumber{
		0: nil, 1: {4, 8, 3, 7}, 2: {5, 9, 3, 7}, 3: {6, 10, 3, 7}, 6: {9, 13, 3, 7},
	} {
		h := NewReceivedPacketHandler(utils.DefaultLogger)
		SetAckFrequency(h)
		FollowAckFrequency(h, &wire.AckFrequencyFrame{
			AckElicitingThreshold: 100, RequestMaxAckDelay: time.Second, ReorderingThreshold: threshold,
		})
		now := monotime.Now()
		var got []protocol.PacketNumber
		for _, pn := range []protocol.PacketNumber{0, 1, 2, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 3, 7} {
			require.NoError(t, h.ReceivedPacket(pn, protocol.ECNNon, protocol.Encryption1RTT, now, true))
			if pn == 0 {
				require.NotNil(t, h.GetAckFrame(protocol.Encryption1RTT, now, false))
			} else if h.GetAckFrame(protocol.Encryption1RTT, now, true) != nil {
				got = append(got, pn)
			}
		}
		require.Equal(t, want, got, "reordering threshold %d", threshold)
	}
}
