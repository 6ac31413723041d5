package wire_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	. "github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// body makes a message of a type from the hex of its fields.
func message(t testing.TB, typ Type, fields ...string) []byte {
	t.Helper()
	b := unhex(t, strings.Join(fields, ""))
	return append(append(AppendVarint(nil, uint64(typ)), byte(len(b)>>8), byte(len(b))), b...)
}

const maximum = "ffffffffffffffffff" // 2^64-1

func zeros(n int) string { return strings.Repeat("00", n) }

// The errors that close a session, and those that refuse a request, with the sections that demand them (of draft 21, or
// of 18 for those of draft 18 alone).
func TestViolations(t *testing.T) {
	subscribe := func(parameters ...string) []byte {
		return message(t, TypeSubscribe, append([]string{"00", "00", "00"}, parameters...)...)
	}
	field := func(n string, bytes int) string { return n + zeros(bytes) }
	for _, c := range []struct {
		name    string
		drafts  []Draft
		message []byte
		want    any // a SessionCode, a RequestCode, or nil
	}{
		{"§9 unknown type", drafts, message(t, 0x09), ProtocolViolation},
		{"§9 type of an older draft", drafts, message(t, 0x40), ProtocolViolation},
		{"§9 PUBLISH_OK", drafts, message(t, 0x1E, "00"), ProtocolViolation},
		{"§9 message of a newer draft", []Draft{18}, message(t, TypePublishStateNotify, "00"), ProtocolViolation},
		{"§9 body too short", drafts, message(t, TypePublishDone, "02", "04"), ProtocolViolation},
		{"§9 body too long", drafts, message(t, TypePublishDone, "02", "04", "00", "00"), ProtocolViolation},
		{"§9 no body", drafts, message(t, TypeSubscribe), ProtocolViolation},
		{"§9 no body, but a valid one", drafts, message(t, TypeSetup), nil},
		{"§8.3 type exceeds 2^64-1", drafts, message(t, TypeSetup, maximum, "00", "01", "00"), ProtocolViolation},
		{"§8.3 value of 2^16 bytes", drafts, message(t, TypeSetup, "09", "c10000"), ProtocolViolation},
		{"§8.3 value cut", drafts, message(t, TypeSetup, "09", "02", "00"), ProtocolViolation},
		{"§9.1 known option twice", drafts, message(t, TypeSetup, "04", "01", "00", "01"), ProtocolViolation},
		{"§9.1 unknown option twice", drafts, message(t, TypeSetup, "0a", "01", "00", "01"), nil},
		{"§9.1 greased option", drafts, message(t, TypeSetup, "809d", "00"), nil},
		{"§9.1 option of a newer draft twice", []Draft{18}, message(t, TypeSetup, "06", "01", "00", "01"), nil},
		{"§9.1 option 6 twice", []Draft{22}, message(t, TypeSetup, "06", "01", "00", "01"), ProtocolViolation},
		{"§9.1.4 two tokens", drafts, message(t, TypeSetup, "03", "02", "0300", "00", "02", "0301"), nil},
		{"§8.9 token of an unknown alias type", drafts,
			message(t, TypeSetup, "03", "02", "0400"), KeyValueFormattingError},
		{"§8.9 token cut", drafts, message(t, TypeSetup, "03", "01", "01"), KeyValueFormattingError},
		{"§8.9 token with something after it", drafts,
			message(t, TypeSetup, "03", "03", "000000"), KeyValueFormattingError},
		{"§8.9 empty token", drafts, message(t, TypeSetup, "03", "00"), KeyValueFormattingError},
		{"§8.9 token of a message cut", drafts, subscribe("01", "03", "01", "01"), KeyValueFormattingError},
		{"§8.9 two tokens of a message", drafts, subscribe("02", "03", "02", "0300", "00", "02", "0301"), nil},
		{"§8.5 reason of 1,024 bytes", drafts, message(t, TypePublishDone, "00", "00", field("8400", 1024)), nil},
		{"§8.5 reason of 1,025 bytes", drafts,
			message(t, TypePublishDone, "00", "00", field("8401", 1025)), ProtocolViolation},
		{"§8.5 reason longer than the message", drafts,
			message(t, TypePublishDone, "00", "00", "02", "00"), ProtocolViolation},
		{"§9.2 URI of 8,192 bytes", drafts, message(t, TypeGoAway, field("a000", 8192), "00"), nil},
		{"§9.2 URI of 8,193 bytes", drafts, message(t, TypeGoAway, field("a001", 8193), "00"), ProtocolViolation},
		{"§9.2 request ID", []Draft{22}, message(t, TypeGoAway, "00", "00", "00"), ProtocolViolation},
		{"18 §10.4 request ID", []Draft{18}, message(t, TypeGoAway, "00", "00", "00"), nil},
		{"18 §10.4 two request IDs", []Draft{18}, message(t, TypeGoAway, "00", "00", "00", "00"), ProtocolViolation},
		{"§8.7 32 fields", drafts, message(t, TypeNamespace, "20", strings.Repeat("0161", 32)), nil},
		{"§8.7 33 fields", drafts, message(t, TypeNamespace, "21", strings.Repeat("0161", 33)), ProtocolViolation},
		{"§8.7 2^64-1 fields", drafts, message(t, TypeNamespace, maximum), ProtocolViolation},
		{"§8.7 empty field", drafts, message(t, TypeNamespace, "01", "00"), ProtocolViolation},
		{"§8.7 namespace of 4,096 bytes", drafts, message(t, TypeNamespace, "01", field("9000", 4096)), nil},
		{"§8.7 namespace of 4,097 bytes", drafts,
			message(t, TypeNamespace, "02", field("9000", 4096), "0161"), ProtocolViolation},
		{"§8.7 name of 4,096 bytes", drafts, message(t, TypePublishSkipped, "00", field("9000", 4096)), nil},
		{"§8.7 name of 4,097 bytes", drafts,
			message(t, TypePublishSkipped, "00", field("9001", 4097)), ProtocolViolation},
		{"§8.7 names of 4,097 bytes", drafts,
			message(t, TypePublishSkipped, "01", "0161", field("9000", 4096)), ProtocolViolation},
		{"§9.4 redirect", drafts, message(t, TypeRequestError, "34", "00", "00", "00", "00", "00"), nil},
		{"§9.4 no redirect", drafts, message(t, TypeRequestError, "34", "00", "00"), ProtocolViolation},
		{"§9.4 redirect of another code", drafts,
			message(t, TypeRequestError, "33", "00", "00", "00", "00", "00"), ProtocolViolation},
		{"§9.12 end of track 2", drafts, message(t, TypeFetchOK, "02", "00", "00", "00"), ProtocolViolation},
		{"§9.20 unknown parameter", drafts, subscribe("01", "01", "00"), ProtocolViolation},
		{"§9.20 greased parameter", drafts, subscribe("01", "809d", "00"), ProtocolViolation},
		{"§9.20 parameter of a newer draft", []Draft{18}, subscribe("01", "35", "01"), ProtocolViolation},
		{"§9.20 type exceeds 2^64-1", drafts, subscribe("02", "02", "00", maximum, "00"), ProtocolViolation},
		{"§9.20 parameter twice", drafts, subscribe("02", "10", "01", "00", "01"), ProtocolViolation},
		{"§9.20 fewer parameters than said", drafts, subscribe("02", "10", "01"), ProtocolViolation},
		{"§9.20 2^64-1 parameters", drafts, subscribe(maximum), ProtocolViolation},
		{"§9.20.1 parameter of another message", drafts, subscribe("01", "08", "00"), ProtocolViolation},
		{"§9.20.1 forward in REQUEST_OK", []Draft{22}, message(t, TypeRequestOK, "01", "10", "01"), ProtocolViolation},
		{"18 §10.2.12 forward in REQUEST_OK", []Draft{18}, message(t, TypeRequestOK, "01", "10", "01"), nil},
		{"§9.20.9 group order 0", drafts, subscribe("01", "22", "00"), ProtocolViolation},
		{"§9.20.9 group order 3", drafts, subscribe("01", "22", "03"), ProtocolViolation},
		{"§9.20.19 forward 2", drafts, subscribe("01", "10", "02"), ProtocolViolation},
		{"§9.20.22 include properties 2", []Draft{22}, subscribe("01", "35", "02"), ProtocolViolation},
		{"§9.20.10 filter type 6", []Draft{22}, subscribe("01", "21", "06"), ProtocolViolation},
		{"§9.20.10 last group exceeds 2^64-1", []Draft{22},
			subscribe("01", "21", "03", "01", "00", maximum), ProtocolViolation},
		{"§9.20.10 last group is 2^64-1", []Draft{22}, subscribe("01", "21", "03", "00", "00", maximum), nil},
		{"§9.20.10 range that ends before it starts", []Draft{22},
			subscribe("01", "21", "04", "01", "05", "00", "00"), nil},
		{"§9.20.10 filter cut", []Draft{22}, subscribe("01", "21", "02", "01"), ProtocolViolation},
		{"18 §5.1.2 filter type 0", []Draft{18}, subscribe("01", "21", "01", "00"), ProtocolViolation},
		{"18 §5.1.2 filter type 5", []Draft{18}, subscribe("01", "21", "01", "05"), ProtocolViolation},
		{"18 §5.1.2 last group exceeds 2^64-1", []Draft{18},
			subscribe("01", "21", "0c", "04", "01", "00", maximum), ProtocolViolation},
		{"18 §5.1.2 filter shorter than its length", []Draft{18},
			subscribe("01", "21", "02", "02", "00"), ProtocolViolation},
		{"18 §5.1.2 filter longer than its length", []Draft{18},
			subscribe("01", "21", "02", "03", "00", "00"), ProtocolViolation},
		{"18 §10.12 fetch type 0", []Draft{18}, message(t, TypeFetch, "00", "00"), ProtocolViolation},
		{"18 §10.12 fetch type 4", []Draft{18}, message(t, TypeFetch, "00", "04", "00", "00", "00"), ProtocolViolation},
		{"18 §10.12.3 end before the start", []Draft{18},
			message(t, TypeFetch, "00", "01", "00", "00", "05", "00", "04", "00", "00"), ProtocolViolation},
		{"18 §10.12.3 end in the start's group", []Draft{18},
			message(t, TypeFetch, "00", "01", "00", "00", "05", "07", "05", "00", "00"), nil},
		{"18 §10.12.3 end is the start", []Draft{18},
			message(t, TypeFetch, "00", "01", "00", "00", "05", "07", "05", "08", "00"), nil},
		{"18 §10.12.3 end just before the start", []Draft{18},
			message(t, TypeFetch, "00", "01", "00", "00", "05", "07", "05", "07", "00"), ProtocolViolation},
		{"§9.20.16 empty fill", []Draft{22}, subscribe("01", "23", "01", "00"), nil},
		{"§9.20.16 fill without a count", []Draft{22}, subscribe("01", "23", "00"), ProtocolViolation},
		{"§9.20.16 parameter on both sides", []Draft{22},
			subscribe("02", "21", "05", "02", "04", "01", "21", "01", "01"), nil},
		{"§9.20.16 token in a fill", []Draft{22},
			subscribe("01", "23", "05", "01", "03", "02", "0300"), ProtocolViolation},
		{"§9.20.16 fill in a fill", []Draft{22},
			subscribe("01", "23", "04", "01", "23", "01", "00"), ProtocolViolation},
		{"§9.20.16 track filter in a fill", []Draft{22},
			subscribe("01", "23", "06", "01", "29", "03", "000000"), ProtocolViolation},
		{"§9.20.16 fill longer than its parameters", []Draft{22},
			subscribe("01", "23", "02", "00", "00"), ProtocolViolation},
		{"§8.6 range exceeds 2^64-1", []Draft{22}, subscribe("01", "26", "0b", "00", "01", maximum), InvalidFilter},
		{"§8.6 next range exceeds 2^64-1", []Draft{22},
			subscribe("01", "26", "0c", "00", "01", "01", maximum), InvalidFilter},
		{"§8.6 range cut", []Draft{22}, subscribe("01", "26", "02", "00", "80"), ProtocolViolation},
		{"§8.6 filter without a property", []Draft{22}, subscribe("01", "28", "01", "00"), ProtocolViolation},
		{"§8.6 filter longer than the message", []Draft{22}, subscribe("01", "28", "7f", "00"), ProtocolViolation},
		{"§3.3.2 filter twice", []Draft{22},
			subscribe("02", "26", "02", "00", "01", "00", "02", "00", "01"), InvalidFilter},
		{"§3.3.2 filters of two sets", []Draft{22},
			subscribe("02", "26", "02", "00", "01", "00", "02", "01", "01"), nil},
		{"§3.3.2 track filter in SUBSCRIBE", []Draft{22},
			subscribe("01", "29", "03", "00", "02", "01"), ProtocolViolation},
		{"§9.20.13 priority 255", []Draft{22}, subscribe("01", "27", "04", "00", "80ff", "00"), nil},
		{"§9.20.13 priority 256", []Draft{22}, subscribe("01", "27", "04", "00", "80ff", "01"), InvalidFilter},
		{"§9.20.13 priorities from 255 on", []Draft{22}, subscribe("01", "27", "03", "00", "80ff"), nil},
		{"§9.20.14 odd property", []Draft{22}, subscribe("01", "28", "03", "00", "03", "01"), InvalidFilter},
		{"§10.5 group order of a track", drafts,
			message(t, TypeSubscribeOK, "00", "00", "22", "03"), ProtocolViolation},
		{"§10.6 dynamic groups of a track", drafts,
			message(t, TypeSubscribeOK, "00", "00", "30", "02"), ProtocolViolation},
		{"§10.7 immutable group order", drafts,
			message(t, TypeSubscribeOK, "00", "00", "0b", "02", "2203"), ProtocolViolation},
		{"§10.7 immutable properties that can't be parsed", drafts,
			message(t, TypeSubscribeOK, "00", "00", "0b", "01", "22"), nil},
		{"§8.4 unknown property", drafts, message(t, TypeSubscribeOK, "00", "00", "809d", "00"), nil},
		{"§8.3 property of 2^16 bytes", drafts,
			message(t, TypeSubscribeOK, "00", "00", "09", "c10000"), ProtocolViolation},
		{"§8.3 property cut", drafts, message(t, TypeSubscribeOK, "00", "00", "09", "01"), ProtocolViolation},
	} {
		for _, d := range c.drafts {
			m, rest, err := Parse(d, c.message)
			var e *Error
			var r *Rejection
			switch got := any(nil); {
			case errors.As(err, &e):
				if got = e.Code; got != c.want || m != nil || len(rest) != len(c.message) {
					t.Errorf("draft %d: %s: %v, %v, want %#v (%v)", d, c.name, got, m, c.want, err)
				}
			case errors.As(err, &r):
				if got = r.Code; got != c.want || m == nil || len(rest) != 0 {
					t.Errorf("draft %d: %s: %v, %v, want %#v (%v)", d, c.name, got, m, c.want, err)
				}
			case err != nil || c.want != nil || m == nil || len(rest) != 0:
				t.Errorf("draft %d: %s: %v, %v, want %#v", d, c.name, m, err, c.want)
			}
			if err != nil && (err.Error() == "" || strings.Contains(err.Error(), "%!")) {
				t.Errorf("%s: the text %q", c.name, err)
			}
		}
	}
}

// The errors of SETUP that depend on who sent it, and over what (§9.1.1, §9.1.2, §9.1.4).
func TestSetupCheck(t *testing.T) {
	path := func(s string) *Setup { return &Setup{Path: Some(s)} }
	authority := func(s string) *Setup { return &Setup{Authority: Some(s)} }
	for _, c := range []struct {
		m                        *Setup
		fromServer, webTransport bool
		want                     SessionCode
	}{
		{&Setup{}, true, true, NoError},
		{path("/"), false, false, NoError},
		{path(""), false, false, NoError},
		{path("/a%20b?c=d"), false, false, NoError},
		{path("?c"), false, false, NoError},
		{path("/"), true, false, InvalidPath},
		{path("/"), false, true, InvalidPath},
		{path("a"), false, false, MalformedPath},
		{path(":1/a"), false, false, MalformedPath},
		{path("/a b\x00"), false, false, MalformedPath},
		{path("/%zz"), false, false, MalformedPath},
		{path("/a#b"), false, false, MalformedPath},
		{path("/a#"), false, false, MalformedPath},
		{authority("example.com:4433"), false, false, NoError},
		{authority("[::1]"), false, false, NoError},
		{authority("example.com"), true, false, InvalidAuthority},
		{authority("example.com"), false, true, InvalidAuthority},
		{authority(""), false, false, MalformedAuthority},
		{authority("a/b"), false, false, MalformedAuthority},
		{authority("a:b"), false, false, MalformedAuthority},
		{&Setup{Tokens: []Token{{AliasType: UseAlias}}}, false, true, ProtocolViolation},
		{&Setup{Tokens: []Token{{AliasType: DeleteAlias}}}, false, false, ProtocolViolation},
		{&Setup{Tokens: []Token{{AliasType: DeleteAlias}}}, true, false, NoError},
		{&Setup{Tokens: []Token{{AliasType: Register}, {AliasType: UseValue}}}, false, false, NoError},
	} {
		var e *Error
		got := NoError
		if err := c.m.Check(c.fromServer, c.webTransport); errors.As(err, &e) {
			got = e.Code
		}
		if got != c.want {
			t.Errorf("%+v: %d, want %d (%v %v)", c.m, got, c.want, c.fromServer, c.webTransport)
		}
	}
}

// The errors of data streams and datagrams.
func TestObjectViolations(t *testing.T) {
	subgroup := func(b []byte) error {
		h, n, err := ParseSubgroupHeader(b)
		s := Subgroup{Header: h}
		for err == nil && n < len(b) {
			var o Object
			var m int
			o, m, err = s.Next(b[n:])
			n += m + int(o.Length)
		}
		return err
	}
	fetched := func(d Draft, descending bool) func([]byte) error {
		return func(b []byte) error {
			f := Fetched{Draft: d, Descending: descending}
			for n := 0; n < len(b); {
				o, m, err := f.Next(b[n:])
				if err != nil {
					return err
				}
				n += m + int(o.Length)
			}
			return nil
		}
	}
	header := func(b []byte) error { _, _, err := ParseFetchHeader(b); return err }
	datagram := func(b []byte) error {
		_, padding, err := ParseDatagram(b)
		if padding {
			t.Errorf("%x is padding", b)
		}
		return err
	}
	stream := func(b []byte) error { _, err := ParseStreamType(b); return err }
	for _, c := range []struct {
		name  string
		parse func([]byte) error
		hex   string
		ok    bool
	}{
		{"§6.4.1 stream 0x04", stream, "04", false},
		{"§6.4.1 stream 0x2F01", stream, "af01", false},
		{"§6.4.1 datagram padding as a stream", stream, "f0132b3e29", false},
		{"§6.4.1 SETUP", stream, "af00", true},
		{"§6.4.1 padding", stream, "f0132b3e28", true},
		{"§11.3.1 subgroup mode 3", stream, "16", false},
		{"§11.3.1 subgroup mode 3, header", subgroup, "16000000", false},
		{"§11.3.1 without bit 4", subgroup, "04000000", false},
		{"§11.3.1 type 128 and more", subgroup, "80901400000000", false},
		{"§8.1 type that is longer than needed", subgroup, "801400000000", true},
		{"§11.3.1 object ID 2^64-1", subgroup, "30" + "0000" + maximum + "0000", true},
		{"§11.3.1 object ID after 2^64-1", subgroup, "30" + "0000" + maximum + "0000" + "00" + "0000", false},
		{"§11.3.1 object ID exceeds 2^64-1", subgroup, "30" + "0000" + "00" + "0000" + maximum + "0000", false},
		{"§11.1.2 status 1", subgroup, "30" + "0000" + "00" + "0001", false},
		{"§11.1.2 status 3", subgroup, "30" + "0000" + "00" + "0003", true},
		{"§11.1.2 status 4", subgroup, "31" + "0000" + "00" + "00" + "0004", true},
		{"§11.1.3 properties with a status", subgroup, "31" + "0000" + "00" + "020201" + "0003", false},
		{"§11.1.3 properties of an empty object", subgroup, "31" + "0000" + "00" + "020201" + "0000", true},
		{"§11.2.1 bit 4", datagram, "1000000000", false},
		{"§11.2.1 bit 6", datagram, "4000000000", false},
		{"§11.2.1 bit 7", datagram, "80800000000000", false},
		{"§11.2.1 status that ends a group", datagram, "2200000000" + "00", false},
		{"§11.2.1 status 1", datagram, "2800000001", false},
		{"§11.2.1 status 3", datagram, "2800000003", true},
		{"§11.2.1 status 0 with properties", datagram, "29000000" + "020201" + "00", true},
		{"§11.2.1 status 3 with properties", datagram, "29000000" + "020201" + "03", false},
		{"§11.2.1 bytes after a status", datagram, "2800000003" + "00", false},
		{"§11.2.1 properties of length 0", datagram, "09000000" + "00", false},
		{"§11.2.1 properties cut", datagram, "09000000" + "0202", false},
		{"§11.2.1 nothing", datagram, "", false},
		{"§11.4.1 header of another type", header, "0600", false},
		{"§11.4.1 flags 0x80", fetched(22, false), "8080" + "0000", false},
		{"§11.4.1 flags 0x80 of a later object", fetched(22, false), "1c" + "0000" + "0000" + "8080" + "00", false},
		{"§11.4.1 timed out", fetched(22, false), "820c" + "0000", true},
		{"18 §11.4.4 timed out", fetched(18, false), "820c" + "0000", false},
		{"§11.4.1.1 first object without a group", fetched(22, false), "14" + "00" + "0000", false},
		{"§11.4.1.1 first object without an ID", fetched(22, false), "18" + "00" + "0000", false},
		{"§11.4.1.1 first object without a priority", fetched(22, false), "0c" + "0000" + "00", false},
		{"§11.4.1.1 first object of the last subgroup", fetched(22, false), "1d" + "0000" + "0000", false},
		{"§11.4.1.1 first object", fetched(22, false), "1c" + "0000" + "0000", true},
		{"§11.4.1.1 group exceeds 2^64-1", fetched(22, false), "1c" + "0000" + "0000" + "08" + maximum + "00", false},
		{"§11.4.1.1 group is 2^64-1", fetched(22, false),
			"1c" + "0000" + "0000" + "08" + "fffffffffffffffffe" + "00", true},
		{"§11.4.1.1 group below 0", fetched(22, true), "1c" + "0500" + "0000" + "08" + "05" + "00", false},
		{"§11.4.1.1 group 0", fetched(22, true), "1c" + "0500" + "0000" + "08" + "04" + "00", true},
		{"§11.4.1.1 ID is 2^64-1", fetched(22, false), "1c" + "00" + "fffffffffffffffffe" + "0000" + "00" + "00", true},
		{"§11.4.1.1 ID exceeds 2^64-1", fetched(22, false), "1c" + "00" + maximum + "0000" + "00" + "00", false},
		{"§11.4.1.1 ID exceeds 2^64-1 by its delta", fetched(22, false),
			"1c" + "0001" + "0000" + "04" + maximum + "00", false},
		{"§11.4.1.1 subgroup exceeds 2^64-1", fetched(22, false),
			"1f" + "00" + maximum + "00" + "0000" + "02" + "00", false},
		{"§11.4.1.1 subgroup of a datagram", fetched(22, false), "5c" + "0000" + "0000" + "01" + "00", false},
		{"§11.4.1.1 subgroup bits of a datagram", fetched(22, false), "5f" + "0000" + "0000", true},
		{"§11.4.1.2 priority after a marker alone", fetched(22, false), "808c" + "0000" + "00" + "00", false},
		{"§11.4.1.2 subgroup after a marker alone", fetched(22, false), "808c" + "0000" + "11" + "0000", false},
		{"§11.4.1.2 priority of the object before a marker", fetched(22, false),
			"1c0000" + "0000" + "808c" + "0005" + "01" + "00", true},
	} {
		err := c.parse(unhex(t, c.hex))
		var e *Error
		if ok := err == nil; ok != c.ok || !ok && (!errors.As(err, &e) || e.Code != ProtocolViolation) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// An object after a marker takes its group and ID from the marker, the rest from the last object (§11.4.1.2).
func TestAfterMarker(t *testing.T) {
	f := Fetched{Draft: Draft22}
	b := unhex(t, "1f"+"0a"+"07"+"03"+"20"+"00"+"810c"+"0a"+"09"+"01"+"00"+"820c"+"0b"+"02"+"06"+"04"+"00")
	want := []FetchObject{
		{Group: 10, Subgroup: 7, ID: 3, Priority: 32},
		{Group: 10, ID: 9, EndOfRange: Unknown},
		{Group: 10, Subgroup: 7, ID: 10, Priority: 32},
		{Group: 11, ID: 2, EndOfRange: TimedOut},
		{Group: 11, Subgroup: 8, ID: 6, Priority: 32},
	}
	for _, w := range want {
		o, n, err := f.Next(b)
		if err != nil || !reflect.DeepEqual(o, w) {
			t.Fatalf("%+v (%v), want %+v", o, err, w)
		}
		b = b[n:]
	}
	if len(b) > 0 {
		t.Errorf("%x is left", b)
	}
}

// More properties than the limit are refused before they have come.
func TestObjectLimit(t *testing.T) {
	long := string(AppendVarint(nil, MaxObjectProperties+1))
	s := Subgroup{Header: SubgroupHeader{Properties: true}}
	if _, _, err := s.Next([]byte("\x00" + long)); err != ErrLimit {
		t.Errorf("subgroup: %v", err)
	}
	f := Fetched{Draft: Draft22}
	if _, _, err := f.Next([]byte("\x3c\x00\x00\x00" + long)); err != ErrLimit {
		t.Errorf("fetch: %v", err)
	}
	if _, _, err := ParseDatagram([]byte("\x0d\x00\x00" + long)); err != ErrLimit {
		t.Errorf("datagram: %v", err)
	}
	most := append([]byte("\x0d\x00\x00"), AppendVarint(nil, MaxObjectProperties)...)
	d, _, err := ParseDatagram(append(most, make([]byte, MaxObjectProperties)...))
	if err != nil || len(d.Properties) != MaxObjectProperties {
		t.Errorf("as many as may be: %v", err)
	}
}

func TestProperties(t *testing.T) {
	inner, err := NewProperties(
		Property{Type: PropertyPublisherPriority, Value: 7}, Property{Type: 0x0B, Bytes: []byte{2, 9}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewProperties(
		Property{Type: 9, Bytes: []byte("x")}, Property{Type: PropertyImmutable, Bytes: inner},
		Property{Type: 2, Value: 5}, Property{Type: 1 << 63, Value: 1}, Property{Type: 0x4001, Bytes: []byte("y")},
	)
	if err != nil {
		t.Fatal(err)
	}
	var types []uint64
	for q, err := range p.All() {
		if err != nil {
			t.Fatal(err)
		}
		types = append(types, q.Type)
	}
	if want := []uint64{2, 9, PropertyImmutable, 0x4001, 1 << 63}; !reflect.DeepEqual(types, want) {
		t.Errorf("types %x, want %x", types, want)
	}
	for typ, want := range map[uint64]string{
		2: "5 true", PropertyPublisherPriority: "7 true", 1 << 63: "1 true", 4: "0 false",
	} {
		if v, ok := p.Uint(typ); fmt.Sprint(v, ok) != want {
			t.Errorf("property %#x is %d %v, want %s", typ, v, ok, want)
		}
	}
	if typ, ok := p.Mandatory(); typ != 0x4001 || !ok {
		t.Errorf("%#x %v is mandatory", typ, ok)
	}
	if typ, ok := inner.Mandatory(); ok {
		t.Errorf("%#x is mandatory", typ)
	}
	for hex, want := range map[string]bool{"bfff00": false, "c0400000": true, "c07fff00": true, "c0800000": false} {
		if typ, ok := Properties(unhex(t, hex)).Mandatory(); ok != want {
			t.Errorf("%#x of %s is mandatory: %v", typ, hex, ok)
		}
	}
	if v, ok := Properties([]byte{4}).Uint(4); ok {
		t.Errorf("a property without a value has %d", v)
	}
	if _, err := NewProperties(Property{Type: 1, Bytes: make([]byte, MaxValue+1)}); err == nil {
		t.Error("a property of 65536 bytes")
	}
	p, err = NewProperties(Property{Type: 1, Bytes: make([]byte, MaxValue)})
	if err == nil {
		err = p.CheckObject(Location{})
	}
	if err != nil {
		t.Errorf("a property of 65535 bytes: %v", err)
	}
}

// What makes a track malformed (§3.6, §10.7 to §10.9).
func TestCheckObject(t *testing.T) {
	for name, c := range map[string]struct {
		hex string
		ok  bool
	}{
		"none":                             {"", true},
		"unknown ones, repeated":           {"0201" + "0002" + "0701ff", true},
		"cut":                              {"0901", false},
		"gaps as large as the IDs":         {"3c05" + "0207", true},
		"gap before group 0":               {"3c06", false},
		"gap before object 0":              {"3e08", false},
		"gap twice":                        {"3e01" + "0001", false},
		"immutable twice":                  {"0b00" + "0000", false},
		"immutable within immutable":       {"0b020b00", false},
		"immutable gap before object 0":    {"0b023e08", false},
		"immutable ones cut":               {"0b013e", false},
		"immutable ones":                   {"0b023e07", true},
		"property of tracks":               {"c0400000", false},
		"immutable property of tracks":     {"0b04c0400000", false},
		"property after the tracks' ones":  {"c0800000", true},
		"property before the tracks' ones": {"bffe00", true},
		"last property of tracks":          {"c07fff00", false},
	} {
		if err := Properties(unhex(t, c.hex)).CheckObject(Location{5, 7}); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
