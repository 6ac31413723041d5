package wire_test

import (
	"encoding/hex"
	"reflect"
	"testing"

	. "github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// What other implementations sent: aiomoqt 0.13.3, its relay, and moq-relay 0.17.10, to each other. All of it is in the
// shortest encoding, so ours is the same.
func TestMessagesOfPeers(t *testing.T) {
	grease, err := NewProperties(
		Property{Type: 265044, Value: 2403201600594452},
		Property{Type: 265050, Value: 1},
		Property{Type: 265052, Value: 1})
	if err != nil {
		t.Fatal(err)
	}
	discovery := Track{Namespace{"moq-test", "de8c", "interop", "namespace-discovery"}, "track-de8c"}
	for _, c := range []struct {
		drafts []Draft
		hex    string
		want   Message
	}{
		{drafts, "af000010070e61696f6d6f71742f302e31332e33", &Setup{Implementation: "aiomoqt/0.13.3"}},
		{[]Draft{22}, "af0000120610010e61696f6d6f71742f302e31332e33",
			&Setup{Implementation: "aiomoqt/0.13.3", MaxFilterRanges: 16}},
		{drafts, "af00001c070b6d6f712d6c6974652d7273c40b4dfe0889b2f9ba221406010201",
			&Setup{Implementation: "moq-lite-rs", Unknown: grease}},
		{drafts, "07000100", &RequestOK{}},
		{[]Draft{18}, "07000a04100010800101020101", &RequestOK{Parameters: Parameters{
			Forward: Some(false), SubscriberPriority: Some[uint8](128), GroupOrder: Some(Ascending),
			LocationFilter: Some(LocationFilter{Kind: FilterNextObject}),
		}}},
		{drafts, "050017100014747261636b20646f6573206e6f74206578697374",
			&RequestError{Code: DoesNotExist, Reason: "track does not exist"}},
		{drafts, "05001b0300185055424c495348206973206e6f7420737570706f72746564",
			&RequestError{Code: NotSupported, Reason: "PUBLISH is not supported"}},
		{drafts, "05002d02002a6e6f207075626c69736865722077697468696e207468652072656e64657a766f75732074696d656f7574",
			&RequestError{Code: RequestTimeout, Reason: "no publisher within the rendezvous timeout"}},
		{drafts, "04000400010800", &SubscribeOK{Parameters: Parameters{Expires: Some[uint64](0)}}},
		{drafts, "04000b000008cf42400680801402", &SubscribeOK{Properties: Properties(unhex(t, "08cf42400680801402"))}},
		{drafts, "02000401011001", &RequestUpdate{RequestID: 1, Parameters: Parameters{Forward: Some(true)}}},
		{drafts, "0b000e02040b747261636b20656e646564",
			&PublishDone{Code: TrackEnded, Streams: 4, Reason: "track ended"}},
		{drafts, "500003010000", &SubscribeNamespace{RequestID: 1}},
		{drafts, "08000100", &NamespaceAvailable{}},
		{drafts, "0e000100", &NamespaceDone{}},
		{[]Draft{22}, "06002d0304086d6f712d74657374046534306207696e7465726f70136e616d65" +
			"73706163652d646973636f7665727900",
			&PublishNamespace{RequestID: 3, Namespace: Namespace{
				"moq-test", "e40b", "interop", "namespace-discovery"}}},
		{drafts, "1d003b0104086d6f712d74657374046465386307696e7465726f70136e616d6573706163652d" +
			"646973636f766572790a747261636b2d6465386300011001",
			&Publish{RequestID: 1, Track: discovery, Parameters: Parameters{Forward: Some(true)}}},
	} {
		for _, d := range c.drafts {
			got, rest, err := Parse(d, unhex(t, c.hex))
			if err != nil || len(rest) > 0 || !reflect.DeepEqual(got, c.want) {
				t.Errorf("draft %d: %s: %v %x\n got %+v\nwant %+v", d, c.hex, err, rest, got, c.want)
			}
			if b, err := Append(nil, d, c.want); err != nil || hex.EncodeToString(b) != c.hex {
				t.Errorf("draft %d: %+v is %x, want %s (%v)", d, c.want, b, c.hex, err)
			}
		}
	}
}

// The parameters of a SUBSCRIBE that moq-relay sends: 15 bytes in draft 22, whose fill has a count, and 10 in draft 18.
// Their values are those that aiomoqt read.
func TestSubscribeOfMoqRelay(t *testing.T) {
	for d, want := range map[Draft]struct {
		hex  string
		fill *Parameters
	}{
		18: {"04" + "1001" + "10ff" + "010102" + "0102", nil},
		22: {"05" + "1001" + "10ff" + "0105" + "0102" + "010401210101",
			&Parameters{LocationFilter: Some(LocationFilter{Kind: FilterRelative, Start: Location{Group: 1}})}},
	} {
		m := &Subscribe{RequestID: 3, Track: Track{Name: "track"}, Parameters: Parameters{
			Forward: Some(true), SubscriberPriority: Some[uint8](255), GroupOrder: Some(Descending),
			LocationFilter: Some(LocationFilter{Kind: FilterNextObject}), Fill: want.fill,
		}}
		b := message(t, TypeSubscribe, "03", "00", "05747261636b", want.hex)
		if got, _, err := Parse(d, b); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("draft %d: %x: %v\n got %+v\nwant %+v", d, b, err, got, m)
		}
		if got, err := Append(nil, d, m); err != nil || hex.EncodeToString(got) != hex.EncodeToString(b) {
			t.Errorf("draft %d: %x, want %x (%v)", d, got, b, err)
		}
	}
}
