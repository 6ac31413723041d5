package lab

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"fmt"
)

// This file makes the first packet of a connection as a client does (RFC 9001 §5.2), so that a server makes a
// connection of it: with a ClientHello that is always the same, and any connection ID.

// initialSize is the size of the datagram.
const initialSize = 1200

// clientHello returns the ClientHello of an HTTP/3 client whose connection ID is empty.
func clientHello() ([]byte, error) {
	c := tls.QUICClient(&tls.QUICConfig{TLSConfig: &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: hostName, NextProtos: []string{"h3"},
		CurvePreferences: []tls.CurveID{tls.X25519}, InsecureSkipVerify: true, //nolint:gosec // nothing is connected
	}})
	defer c.Close()
	// initial_source_connection_id, empty (RFC 9000 §18.2), and limits.
	c.SetTransportParameters([]byte{0x0f, 0, 0x04, 4, 0x80, 0x10, 0, 0, 0x08, 2, 0x40, 0x64})
	if err := c.Start(context.Background()); err != nil {
		return nil, err
	}
	for {
		switch e := c.NextEvent(); e.Kind {
		case tls.QUICWriteData:
			return e.Data, nil
		case tls.QUICNoEvent:
			return nil, fmt.Errorf("TLS has no ClientHello to send")
		}
	}
}

// initial returns a datagram with an Initial packet for the connection ID, which has 8 bytes.
func initial(id uint64, hello []byte) ([]byte, error) {
	const numberSize, tag = 2, 16
	var dcid [8]byte
	binary.BigEndian.PutUint64(dcid[:], id)
	salt := []byte{
		0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a,
		0xe6, 0xa4, 0xc8, 0x0c, 0xad, 0xcc, 0xbb, 0x7f, 0x0a,
	}
	secret, err := hkdf.Extract(sha256.New, dcid[:], salt)
	if err != nil {
		return nil, err
	}
	expand := func(secret []byte, label string, n int) []byte {
		info := append([]byte{0, byte(n), byte(len("tls13 " + label))}, "tls13 "+label...)
		out, e := hkdf.Expand(sha256.New, secret, string(append(info, 0)), n)
		if e != nil {
			err = e
		}
		return out
	}
	client := expand(secret, "client in", 32)
	key, iv, hp := expand(client, "quic key", 16), expand(client, "quic iv", 12), expand(client, "quic hp", 16)
	if err != nil {
		return nil, err
	}
	header := append([]byte{0xc0 | numberSize - 1, 0, 0, 0, 1, 8}, dcid[:]...)
	header = append(header, 0, 0) // the client's connection ID, and a token: none
	rest := initialSize - len(header) - 2
	header = binary.BigEndian.AppendUint16(header, 0x4000|uint16(rest))
	numberAt := len(header)
	header = append(header, 0, 0) // packet number 0
	frames := binary.BigEndian.AppendUint16([]byte{0x06, 0}, 0x4000|uint16(len(hello)))
	frames = append(append(frames, hello...), make([]byte, max(0, rest-numberSize-tag-len(frames)-len(hello)))...)
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	packet := aead.Seal(header, iv, frames, header)
	if len(packet) != initialSize {
		return nil, fmt.Errorf("a ClientHello of %d bytes makes a packet of %d", len(hello), len(packet))
	}
	mask := make([]byte, 16)
	if block, err = aes.NewCipher(hp); err != nil {
		return nil, err
	}
	block.Encrypt(mask, packet[numberAt+4:numberAt+20])
	packet[0] ^= mask[0] & 0x0f
	packet[numberAt] ^= mask[1]
	packet[numberAt+1] ^= mask[2]
	return packet, nil
}
