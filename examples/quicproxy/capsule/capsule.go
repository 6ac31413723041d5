package capsule

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// Type is the type of a capsule.
type Type uint64

// The types that a tunnel uses. PathResponse is this example's own: if the tunnel runs over TCP, the proxy can't
// take the client's address for forwarded packets from it. The client returns a challenge in it, and the proxy returns
// it when the address is validated.
const (
	Datagram          Type = 0x00
	RegisterClientCID Type = 0xffe600
	RegisterTargetCID Type = 0xffe601
	AckClientCID      Type = 0xffe602
	AckClientVCID     Type = 0xffe603
	AckTargetCID      Type = 0xffe604
	CloseClientCID    Type = 0xffe605
	CloseTargetCID    Type = 0xffe606
	MaxConnectionIDs  Type = 0xffe607
	PathResponse      Type = 0x2fa57e1a
)

// MaxID is the length of the longest connection ID in bytes (RFC 9000 §17.2).
const MaxID = 20

// longest is the length of the longest capsule that is read: a datagram with its context ID.
const longest = 1 + math.MaxUint16

// AppendVarint appends an integer of RFC 9000 §16.
func AppendVarint(b []byte, v uint64) []byte {
	switch {
	case v < 1<<6:
		return append(b, byte(v))
	case v < 1<<14:
		return binary.BigEndian.AppendUint16(b, uint16(v)|1<<14)
	case v < 1<<30:
		return binary.BigEndian.AppendUint32(b, uint32(v)|2<<30)
	}
	return binary.BigEndian.AppendUint64(b, v|3<<62)
}

// varint reads an integer of RFC 9000 §16.
func varint(r io.ByteReader) (uint64, error) {
	first, err := r.ReadByte()
	if err != nil {
		return 0, err
	}
	v := uint64(first & 0x3f)
	for range 1<<(first>>6) - 1 {
		next, err := r.ReadByte()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, err
		}
		v = v<<8 | uint64(next)
	}
	return v, nil
}

// Append appends a capsule, whose content consists of the given parts.
func Append(b []byte, t Type, parts ...[]byte) []byte {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	b = AppendVarint(AppendVarint(b, uint64(t)), uint64(size))
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// Read reads a capsule. io.EOF means that the stream ended after one.
func Read(r *bufio.Reader) (Type, []byte, error) {
	t, err := varint(r)
	if err != nil {
		return 0, nil, err
	}
	size, err := varint(r)
	if err == nil && size > longest {
		err = fmt.Errorf("a capsule of %d bytes, the limit is %d", size, longest)
	}
	content := make([]byte, min(size, longest))
	if err == nil {
		_, err = io.ReadFull(r, content)
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return Type(t), content, err
}

// Integer is the content of a capsule that has only an integer.
func Integer(content []byte) (uint64, error) {
	s := slice(content)
	v, err := varint(&s)
	if err == nil && len(s) > 0 {
		err = errors.New("a capsule has bytes after its integer")
	}
	return v, err
}

// slice reads bytes and removes them.
type slice []byte

func (s *slice) ReadByte() (byte, error) {
	if len(*s) == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return b, nil
}

// field removes bytes that follow their length.
func (s *slice) field() ([]byte, error) {
	size, err := varint(s)
	if err != nil {
		return nil, err
	}
	if size > uint64(len(*s)) {
		return nil, io.ErrUnexpectedEOF
	}
	f := (*s)[:size]
	*s = (*s)[size:]
	return f, nil
}

// ID is a connection ID that is the whole content of a capsule: it is an error if it is too long for QUIC.
func ID(content []byte) ([]byte, error) {
	if len(content) > MaxID {
		return nil, fmt.Errorf("a connection ID of %d bytes, the limit is %d", len(content), MaxID)
	}
	return content, nil
}

// Fields splits the content of a capsule into n fields that follow their lengths: a connection ID, a virtual one if
// the type has it, and a stateless reset token if it has that.
func Fields(content []byte, n int) ([][]byte, error) {
	s := slice(content)
	var list [][]byte
	for range n {
		f, err := s.field()
		if err == nil && len(f) > MaxID {
			err = fmt.Errorf("a field of %d bytes, the limit is %d", len(f), MaxID)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, f)
	}
	if len(s) > 0 {
		return nil, fmt.Errorf("a capsule has %d bytes after its fields", len(s))
	}
	return list, nil
}

// AppendFields appends a capsule of fields that follow their lengths.
func AppendFields(b []byte, t Type, fields ...[]byte) []byte {
	var content []byte
	for _, f := range fields {
		content = append(AppendVarint(content, uint64(len(f))), f...)
	}
	return Append(b, t, content)
}
