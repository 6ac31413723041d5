package socket

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// controls is the control data (cmsg(3)) of packets that are marked, by IP version and codepoint.
var controls = func() (all [2][4][]byte) {
	for i, of := range [2][2]int32{{unix.IPPROTO_IPV6, unix.IPV6_TCLASS}, {unix.IPPROTO_IP, unix.IP_TOS}} {
		for ecn := 1; ecn < 4; ecn++ {
			b := make([]byte, unix.CmsgSpace(4))
			h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
			h.Level, h.Type = of[0], of[1]
			h.SetLen(unix.CmsgLen(4))
			binary.NativeEndian.PutUint32(b[unix.CmsgLen(0):], uint32(ecn))
			all[i][ecn] = b
		}
	}
	return all
}()

// Marked returns control data for a packet that is marked.
func Marked(ecn quic.ECN, v4 bool) []byte {
	if v4 {
		return controls[1][ecn&3]
	}
	return controls[0][ecn&3]
}

// appendSize appends control data that says that a message is several datagrams, of this size but for the last one.
func appendSize(oob []byte, size int) []byte {
	at := len(oob)
	oob = append(oob, make([]byte, unix.CmsgSpace(2))...)
	h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[at]))
	h.Level, h.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(oob[at+unix.CmsgLen(0):], uint16(size))
	return oob
}

// parseControl returns what control data (cmsg(3)) says of a message: the size of its datagrams, if it may be several,
// and ECN.
func parseControl(oob []byte) (size int, ecn uint8) {
	for len(oob) > 0 {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			break
		}
		switch {
		case h.Level == unix.SOL_UDP && h.Type == unix.UDP_SEGMENT && len(data) >= 2:
			size = int(binary.NativeEndian.Uint16(data))
		case h.Level == unix.SOL_IP && h.Type == unix.IP_TOS && len(data) > 0,
			h.Level == unix.SOL_IPV6 && h.Type == unix.IPV6_TCLASS && len(data) > 0:
			if ecn = data[0] & 3; len(data) >= 4 {
				ecn = uint8(binary.NativeEndian.Uint32(data)) & 3
			}
		}
		oob = rest
	}
	return size, ecn
}
