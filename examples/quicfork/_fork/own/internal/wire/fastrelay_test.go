package wire

import (
	"testing"

	"github.com/quic-go/quic-go/internal/protocol"
	"github.com/quic-go/quic-go/quicvarint"

	"github.com/stretchr/testify/require"
)

// TestFastRelayParameters writes our transport parameters, and reads them; and wrong ones.
func TestFastRelayParameters(t *testing.T) {
	for _, want := range []FastRelayParameters{
		{}, {NullProtection: true}, {ConnectionIDLevels: 4}, {NullProtection: true, ConnectionIDLevels: 100},
	} {
		b := (&TransportParameters{FastRelay: want, ActiveConnectionIDLimit: 2}).Marshal(protocol.PerspectiveClient)
		var got TransportParameters
		require.NoError(t, got.Unmarshal(b, protocol.PerspectiveClient))
		require.Equal(t, want, got.FastRelay)
	}
	for _, value := range []struct {
		id    transportParameterID
		value []byte
	}{
		{nullProtectionParameterID, []byte{0}}, {connectionIDLevelsParameterID, nil},
		{connectionIDLevelsParameterID, []byte{1, 1}}, {connectionIDLevelsParameterID, []byte{0x40}},
	} {
		b := quicvarint.Append(nil, uint64(value.id))
		b = append(quicvarint.Append(b, uint64(len(value.value))), value.value...)
		require.Error(t, (&TransportParameters{}).Unmarshal(b, protocol.PerspectiveClient))
	}
}
