// Package wire is the codec of Media over QUIC Transport (MOQT, draft-ietf-moq-transport), drafts 18 and 22.
//
// Both drafts share one Go struct for each message, so what comes in by one draft can be sent in the other. What
// differs on the wire is in tables: each draft's messages and their fields (table.go), the parameters with the messages
// that may have them by each draft (parameters.go), and the options of SETUP (setup.go). A field that a draft lacks is
// named in the struct's documentation; [Append] refuses a message that has a value there, instead of leaving it out.
// Values have one meaning in both drafts: ends of ranges are inclusive, filters have draft 22's kinds.
//
// Control and request streams are sequences of messages: [Parse] takes them from bytes, [Reader] from a stream. Their
// results are copies. A unidirectional stream begins with its type, [ParseStreamType]; SETUP's is the type of the
// message, so a control stream is read from its first byte on. The headers of data streams and datagrams, which are the
// same in both drafts but for one marker of fetch streams, are parsed from whatever bytes have come, without an
// allocation: [ParseSubgroupHeader] and [Subgroup], [ParseFetchHeader] and [Fetched], [ParseDatagram]. Their byte
// slices are those of the input.
//
// Errors: [ErrIncomplete] asks for more bytes. An [*Error] has the code with which the draft closes the session. A
// [*Rejection] comes with a whole message that has to be answered by REQUEST_ERROR. [ErrLimit] is a limit of this
// package, not of the draft.
//
// What depends on more than one message is the caller's: which message may follow which, request IDs, aliases of tokens
// and tracks, and which of the parameters of REQUEST_OK and REQUEST_UPDATE fit the request that they belong to.
//
// Sections without a draft's number are those of draft 21, the newest one whose full text this was written against;
// draft 22 counts the subsections of 9.20 one lower, and differs on the wire in LOCATION_FILTER only.
package wire

// Draft is a version of MOQT.
type Draft int

// The drafts of this package.
const (
	Draft18 Draft = 18
	Draft22 Draft = 22
)

// ALPN returns the protocol's name in TLS and in WebTransport's list of protocols, "moqt-18" or "moqt-22" (§6.2).
func (d Draft) ALPN() string {
	if d == Draft18 {
		return "moqt-18"
	}
	return "moqt-22"
}

// Limits that the drafts set, in bytes unless said otherwise. A longer value is a PROTOCOL_VIOLATION.
const (
	MaxMessage         = 1<<16 - 1 // the body of a control message (§9)
	MaxNamespaceFields = 32        // fields of a namespace (§8.7)
	MaxTrackName       = 4096      // all fields of a namespace and the name together (§8.7)
	MaxReason          = 1024      // a reason phrase (§8.5)
	MaxURI             = 8192      // the URI of GOAWAY (§9.2)
	MaxValue           = 1<<16 - 1 // the value of a property or option of an odd type (§8.3)
)

// MaxObjectProperties is this package's limit on the properties of one object, in bytes; the drafts have none. More is
// [ErrLimit].
const MaxObjectProperties = 1 << 16

// Optional is a value that may be absent.
type Optional[T any] struct {
	Value   T
	Present bool
}

// Some returns a value that is present.
func Some[T any](v T) Optional[T] { return Optional[T]{v, true} }

// Or returns the value, or what the draft says of its absence.
func (o Optional[T]) Or(absent T) T {
	if o.Present {
		return o.Value
	}
	return absent
}
