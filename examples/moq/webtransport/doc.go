// Package webtransport carries sessions of WebTransport over HTTP/3 (draft-ietf-webtrans-http3-16) on the fork of
// quic-go. quic-go/webtransport-go can't: it takes connections of upstream's package, which are other types.
//
//	server.go   HTTP/3 connections, and CONNECT requests that become sessions
//	client.go   the same from the other end
//	session.go  streams and datagrams of a session, and its end
//	stream.go   streams: their codes are the session's, not HTTP/3's
//	field.go    WT-Available-Protocols and WT-Protocol
//
// A connection carries one session. So a session's limits are those of its connection, and flow control of sessions
// (section 5 of the draft), which is for several of them, isn't offered.
package webtransport

import "github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"

// Types of streams (section 4), as they stand on the wire in front of the session's ID.
const (
	uniStream  = 0x54
	bidiStream = 0x41
)

// Capsules (section 6, and section 4.7 for drain).
const (
	capsuleClose = 0x2843
	maxReason    = 1024 // bytes of the text in a capsule that closes a session
)

// Codes of HTTP/3 streams (section 9.5) and of the connection.
const (
	codeBufferedStreamRejected quic.StreamErrorCode = 0x3994bd84
	codeSessionGone            quic.StreamErrorCode = 0x170d7b68

	codeNoError quic.ApplicationErrorCode = 0x100
	codeIDError quic.ApplicationErrorCode = 0x108
)

// settings announces WebTransport, in the words of several drafts: clients look for the one that they know.
func settings() map[uint64]uint64 {
	return map[uint64]uint64{
		0x2c7cf000: 1, // SETTINGS_WT_ENABLED, draft 15 and later
		0x14e9cd29: 1, // SETTINGS_WT_MAX_SESSIONS, drafts 13 and 14
		0xc671706a: 1, // SETTINGS_WEBTRANSPORT_MAX_SESSIONS, drafts 7 to 12
		0x2b603742: 1, // SETTINGS_ENABLE_WEBTRANSPORT, before
	}
}
