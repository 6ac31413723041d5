package wire

import (
	"fmt"

	"github.com/quic-go/quic-go/quicvarint"
)

// Transport parameters of ours, from the range for private use (RFC 9000, section 22.3). A peer that doesn't know them
// ignores them (section 7.4.2).
const (
	nullProtectionParameterID     transportParameterID = 0x3f66724e55 // empty: asks for null protection
	connectionIDLevelsParameterID transportParameterID = 0x3f66724c76 // a varint: how many levels
)

// FastRelayParameters are transport parameters of ours.
type FastRelayParameters struct {
	NullProtection     bool
	ConnectionIDLevels uint64
}

func (p *FastRelayParameters) append(b []byte) []byte {
	if p.NullProtection {
		b = quicvarint.Append(b, uint64(nullProtectionParameterID))
		b = quicvarint.Append(b, 0)
	}
	if p.ConnectionIDLevels > 0 {
		b = quicvarint.Append(b, uint64(connectionIDLevelsParameterID))
		b = quicvarint.Append(b, uint64(quicvarint.Len(p.ConnectionIDLevels)))
		b = quicvarint.Append(b, p.ConnectionIDLevels)
	}
	return b
}

func (p *FastRelayParameters) read(id transportParameterID, value []byte) error {
	switch id { //nolint:exhaustive // the others are upstream's, or unknown
	case nullProtectionParameterID:
		if len(value) != 0 {
			return fmt.Errorf("wrong length for null_protection: %d (expected empty)", len(value))
		}
		p.NullProtection = true
	case connectionIDLevelsParameterID:
		levels, l, err := quicvarint.Parse(value)
		if err != nil || l != len(value) {
			return fmt.Errorf("wrong length for connection_id_levels: %d", len(value))
		}
		p.ConnectionIDLevels = levels
	}
	return nil
}

// TakeAckFrequency has ACK_FREQUENCY and IMMEDIATE_ACK frames parsed.
func (p *FrameParser) TakeAckFrequency() { p.supportsAckFrequency = true }
