package handshake

import (
	"crypto/cipher"
	"encoding/binary"
	"errors"

	"github.com/quic-go/quic-go/internal/protocol"
)

// outsideKeys is what an AEAD has to know when packets are protected elsewhere, or not at all.
type outsideKeys struct {
	null                      bool
	sendHeader, receiveHeader []byte // the first phase's secrets: header protection keeps them (RFC 9001, section 5.4)
	sendSecret, receiveSecret []byte
	onSendKeys                func(*Sealer)
	onReceiveKeys             func(*Opener)
}

// nullAEAD is an AEAD that protects nothing. The tag stays, as 16 zeros, so that no length changes.
type nullAEAD struct{}

var errNoNullTag = errors.New("the packet doesn't end with the 16 zeros of null protection")

func (nullAEAD) NonceSize() int { return 8 }
func (nullAEAD) Overhead() int  { return 16 }

func (nullAEAD) Seal(dst, _, plaintext, _ []byte) []byte {
	var tag [16]byte
	return append(append(dst, plaintext...), tag[:]...)
}

func (nullAEAD) Open(dst, _, packet, _ []byte) ([]byte, error) {
	n := len(packet) - 16
	if n < 0 || [16]byte(packet[n:]) != [16]byte{} {
		return nil, errNoNullTag
	}
	return append(dst, packet[:n]...), nil
}

// noAEAD opens nothing: with null protection there is no second key phase.
type noAEAD struct{ nullAEAD }

func (noAEAD) Open(_, _, _, _ []byte) ([]byte, error) { return nil, errNoNullTag }

type nullHeaderProtector struct{}

func (nullHeaderProtector) EncryptHeader([]byte, *byte, []byte) {}
func (nullHeaderProtector) DecryptHeader([]byte, *byte, []byte) {}

func (a *updatableAEAD) nullReadKey() {
	if a.outside.null {
		a.rcvAEAD, a.nextRcvAEAD, a.headerDecrypter = nullAEAD{}, noAEAD{}, nullHeaderProtector{}
	}
}

func (a *updatableAEAD) nullWriteKey() {
	if a.outside.null {
		a.sendAEAD, a.nextSendAEAD, a.headerEncrypter = nullAEAD{}, nullAEAD{}, nullHeaderProtector{}
	}
}

// A Sealer protects 1-RTT packets of one key phase (RFC 9001, section 5). It is for one goroutine at a time.
type Sealer struct {
	Phase  uint64 // counts from 0; its lowest bit is sent
	aead   cipher.AEAD
	header headerProtector
	nonce  [8]byte
}

// Seal protects a packet in place, and returns it with its tag of 16 bytes, for which it should have the capacity. The
// packet number is at numberAt, 4 bytes long, and the packet's first byte says so. Seal sets the key phase there.
func (s *Sealer) Seal(packet []byte, numberAt int, number uint64) []byte {
	packet[0] = packet[0]&^0x04 | byte(s.Phase&1)<<2
	payload := numberAt + 4
	binary.BigEndian.PutUint64(s.nonce[:], number)
	sealed := s.aead.Seal(packet[payload:payload], s.nonce[:], packet[payload:], packet[:payload])
	packet = append(packet[:payload], sealed...)
	s.header.EncryptHeader(packet[payload:payload+16], &packet[0], packet[numberAt:payload])
	return packet
}

// An Opener opens 1-RTT packets of one key phase (RFC 9001, section 5). It is for one goroutine at a time.
type Opener struct {
	Phase   uint64
	Largest uint64 // the largest packet number opened so far (RFC 9000, section 17.1)
	aead    cipher.AEAD
	header  headerProtector
	nonce   [8]byte
	buf     [25]byte
}

var errShortPacket = errors.New("the packet is too short")

// Open appends the payload of a packet to dst, and returns its number as well. The packet itself isn't changed, so that
// one that can't be opened, or is of another key phase, can still be given to the library.
func (o *Opener) Open(dst, packet []byte, numberAt int) (payload []byte, number uint64, err error) {
	if numberAt+4 > len(o.buf) || len(packet) < numberAt+4+16 {
		return nil, 0, errShortPacket
	}
	header := o.buf[:copy(o.buf[:], packet[:numberAt+4])]
	o.header.DecryptHeader(packet[numberAt+4:numberAt+20], &header[0], header[numberAt:])
	if uint64(header[0]>>2&1) != o.Phase&1 {
		return nil, 0, ErrKeysNotYetAvailable
	}
	size := int(header[0]&3) + 1
	copy(header[numberAt+size:], packet[numberAt+size:])
	short := protocol.PacketNumber(0)
	for _, b := range header[numberAt : numberAt+size] {
		short = short<<8 | protocol.PacketNumber(b)
	}
	largest := protocol.PacketNumber(o.Largest)
	number = uint64(protocol.DecodePacketNumber(protocol.PacketNumberLen(size), largest, short))
	binary.BigEndian.PutUint64(o.nonce[:], number)
	payload, err = o.aead.Open(dst, o.nonce[:], packet[numberAt+size:], header[:numberAt+size])
	if err != nil {
		return nil, 0, ErrDecryptionFailed
	}
	o.Largest = max(o.Largest, number)
	return payload, number, nil
}

// OnKeys has keys handed over when they are installed and when they roll: on the run loop, and before a packet number
// is allocated that they protect.
func OnKeys(cs CryptoSetup, send func(*Sealer), receive func(*Opener)) {
	a := cs.(*cryptoSetup).aead
	a.outside.onSendKeys, a.outside.onReceiveKeys = send, receive
}

func (a *updatableAEAD) handOverSendKeys(secret []byte) {
	o := &a.outside
	if o.sendHeader == nil {
		o.sendHeader = secret
	}
	if o.onSendKeys == nil {
		return
	}
	s := &Sealer{Phase: uint64(a.keyPhase), aead: nullAEAD{}, header: nullHeaderProtector{}}
	if !o.null { // a sealer of its own: an AEAD holds its nonce
		s.aead = createAEAD(a.suite, secret, a.version)
		s.header = newHeaderProtector(a.suite, o.sendHeader, false, a.version)
	}
	o.onSendKeys(s)
}

func (a *updatableAEAD) handOverReceiveKeys(secret []byte) {
	o := &a.outside
	if o.receiveHeader == nil {
		o.receiveHeader = secret
	}
	if o.onReceiveKeys == nil {
		return
	}
	r := &Opener{
		Phase: uint64(a.keyPhase), Largest: uint64(max(0, a.highestRcvdPN)),
		aead: nullAEAD{}, header: nullHeaderProtector{},
	}
	if !o.null {
		r.aead = createAEAD(a.suite, secret, a.version)
		r.header = newHeaderProtector(a.suite, o.receiveHeader, false, a.version)
	}
	o.onReceiveKeys(r)
}

// CountSentOutside counts a packet that was sealed elsewhere, towards the next key update and the limits of the AEAD
// (RFC 9001, sections 6.5 and 6.6).
func CountSentOutside(cs CryptoSetup, phase uint64, pn protocol.PacketNumber) {
	a := cs.(*cryptoSetup).aead
	if phase != uint64(a.keyPhase) {
		return
	}
	a.numSentWithCurrentKey++
	if a.firstSentWithCurrentKey == protocol.InvalidPacketNumber || pn < a.firstSentWithCurrentKey {
		a.firstSentWithCurrentKey = pn
	}
}

// CountReceivedOutside counts a packet that was opened elsewhere. It returns false if its ACKs can't be trusted: the
// library has to open a phase's first packet itself, which is when it learns that the peer has updated its keys.
func CountReceivedOutside(cs CryptoSetup, phase uint64, pn protocol.PacketNumber) bool {
	a := cs.(*cryptoSetup).aead
	if phase > uint64(a.keyPhase) || phase == uint64(a.keyPhase) && a.numRcvdWithCurrentKey == 0 && !a.outside.null {
		return false
	}
	if phase == uint64(a.keyPhase) {
		a.numRcvdWithCurrentKey++
	}
	a.highestRcvdPN = max(a.highestRcvdPN, pn)
	return true
}
