package wire

import (
	"errors"
	"fmt"
)

// ErrIncomplete says that the bytes are the beginning of something valid. At a stream's end it is a PROTOCOL_VIOLATION.
var ErrIncomplete = errors.New("more bytes are needed")

// ErrLimit says that the bytes keep to the draft and exceed a limit of this package. Reset the stream with
// ResetExcessiveLoad.
var ErrLimit = errors.New("more than this package takes")

// Error is a violation of the draft that closes the session.
type Error struct {
	Code SessionCode
	Text string
}

func (e *Error) Error() string { return e.Text }

// Rejection is a fault of a request that leaves the session open: answer with REQUEST_ERROR and this code.
type Rejection struct {
	Code RequestCode
	Text string
}

func (r *Rejection) Error() string { return r.Text }

func violation(format string, args ...any) error {
	return &Error{ProtocolViolation, fmt.Sprintf(format, args...)}
}

// SessionCode is an error code of the session's end (§12.2). Unknown ones mean SessionInternalError (§13).
type SessionCode uint64

// Codes of the session's end. TooManyRequestUpdates is not in draft 18, VersionNegotiationFailed not in 22.
const (
	NoError                  SessionCode = 0x0
	SessionInternalError     SessionCode = 0x1
	SessionUnauthorized      SessionCode = 0x2
	ProtocolViolation        SessionCode = 0x3
	InvalidRequestID         SessionCode = 0x4
	DuplicateTrackAlias      SessionCode = 0x5
	KeyValueFormattingError  SessionCode = 0x6
	InvalidPath              SessionCode = 0x8
	MalformedPath            SessionCode = 0x9
	GoAwayTimeout            SessionCode = 0x10
	ControlMessageTimeout    SessionCode = 0x11
	DataStreamTimeout        SessionCode = 0x12
	AuthTokenCacheOverflow   SessionCode = 0x13
	DuplicateAuthTokenAlias  SessionCode = 0x14
	VersionNegotiationFailed SessionCode = 0x15
	SessionMalformedToken    SessionCode = 0x16
	UnknownAuthTokenAlias    SessionCode = 0x17
	SessionExpiredToken      SessionCode = 0x18
	InvalidAuthority         SessionCode = 0x19
	MalformedAuthority       SessionCode = 0x1A
	TooManyRequestUpdates    SessionCode = 0x1B
)

// RequestCode is an error code of REQUEST_ERROR (§12.3). Unknown ones mean RequestInternalError (§13).
type RequestCode uint64

// Codes of REQUEST_ERROR. DuplicateSubscription and InvalidJoiningRequestID are only in draft 18, ConflictingFilters
// and InvalidFilter only in 22.
const (
	RequestInternalError    RequestCode = 0x0
	RequestUnauthorized     RequestCode = 0x1
	RequestTimeout          RequestCode = 0x2
	NotSupported            RequestCode = 0x3
	RequestMalformedToken   RequestCode = 0x4
	RequestExpiredToken     RequestCode = 0x5
	RequestGoingAway        RequestCode = 0x6
	RequestExcessiveLoad    RequestCode = 0x9
	DoesNotExist            RequestCode = 0x10
	InvalidRange            RequestCode = 0x11
	RequestMalformedTrack   RequestCode = 0x12
	DuplicateSubscription   RequestCode = 0x19
	Uninterested            RequestCode = 0x20
	PrefixOverlap           RequestCode = 0x30
	NamespaceTooLarge       RequestCode = 0x31
	InvalidJoiningRequestID RequestCode = 0x32
	UnsupportedExtension    RequestCode = 0x33
	RedirectRequest         RequestCode = 0x34
	ConflictingFilters      RequestCode = 0x35
	InvalidFilter           RequestCode = 0x36
)

// DoneCode is a status of PUBLISH_DONE (§12.4). Unknown ones mean DoneInternalError (§13).
type DoneCode uint64

// Codes of PUBLISH_DONE. SubscriptionEnded is only in draft 18.
const (
	DoneInternalError  DoneCode = 0x0
	DoneUnauthorized   DoneCode = 0x1
	TrackEnded         DoneCode = 0x2
	SubscriptionEnded  DoneCode = 0x3
	DoneGoingAway      DoneCode = 0x4
	DoneTooFarBehind   DoneCode = 0x5
	Expired            DoneCode = 0x6
	UpdateFailed       DoneCode = 0x8
	DoneExcessiveLoad  DoneCode = 0x9
	DoneMalformedTrack DoneCode = 0x12
)

// ResetCode is the error code of RESET_STREAM and STOP_SENDING (§12.5). Unknown ones mean ResetInternalError (§13).
type ResetCode uint64

// Codes of RESET_STREAM and STOP_SENDING.
const (
	ResetInternalError       ResetCode = 0x0
	ResetCancelled           ResetCode = 0x1
	ResetDeliveryTimeout     ResetCode = 0x2
	ResetSessionClosed       ResetCode = 0x3
	ResetGoingAway           ResetCode = 0x4
	ResetTooFarBehind        ResetCode = 0x5
	ResetUnknownObjectStatus ResetCode = 0x6
	ResetExpiredToken        ResetCode = 0x7
	ResetExcessiveLoad       ResetCode = 0x9
	ResetMalformedTrack      ResetCode = 0x12
)
