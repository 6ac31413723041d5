package wire_test

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	. "github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire/wiretest"
)

var drafts = []Draft{Draft18, Draft22}

// Each message of each draft, with random members, comes back as it was, from its own bytes only, and from no beginning
// of them.
func TestMessagesRoundTrip(t *testing.T) {
	for _, d := range drafts {
		r := wiretest.New(d, 1)
		for _, typ := range wiretest.Types(d) {
			for range 200 {
				m := r.Message(typ)
				b, err := Append([]byte("x"), d, m)
				if err != nil {
					t.Fatalf("draft %d: %+v: %v", d, m, err)
				}
				got, rest, err := Parse(d, append(b[1:], "rest"...))
				if err != nil || string(rest) != "rest" || !reflect.DeepEqual(got, m) {
					t.Fatalf("draft %d: %x: %v, %q is left\n got %+v\nwant %+v", d, b[1:], err, rest, got, m)
				}
				if cut := b[1 : 1+r.IntN(len(b)-1)]; !incomplete(d, cut) {
					t.Fatalf("draft %d: %x is enough of %x", d, cut, b[1:])
				}
			}
		}
	}
}

func incomplete(d Draft, b []byte) bool {
	m, rest, err := Parse(d, b)
	return m == nil && len(rest) == len(b) && err == ErrIncomplete
}

// A message whose body has a byte less or more than its fields is never taken for it: it is a violation, or another
// message.
func TestLengthsOfBodies(t *testing.T) {
	for _, d := range drafts {
		r := wiretest.New(d, 2)
		for _, typ := range wiretest.Types(d) {
			for range 50 {
				m := r.Message(typ)
				b, err := Append(nil, d, m)
				if err != nil {
					t.Fatal(err)
				}
				header := VarintLen(uint64(typ)) + 2
				for _, body := range [][]byte{b[header:max(header, len(b)-1)], append(b[header:len(b):len(b)], 0)} {
					if len(body) == len(b)-header || len(body) > MaxMessage {
						continue
					}
					n := len(body)
					wrong := append(AppendVarint(nil, uint64(typ)), byte(n>>8), byte(n))
					got, _, err := Parse(d, append(wrong, body...))
					var e *Error
					known := err == nil || errors.As(err, &e) || errors.As(err, new(*Rejection))
					if !known || reflect.DeepEqual(got, m) {
						t.Fatalf("draft %d: %x: %v %v", d, body, got, err)
					}
				}
			}
		}
	}
}

// What a draft lacks can't be sent in it.
func TestAppendRefuses(t *testing.T) {
	filter := func(f LocationFilter) Parameters { return Parameters{LocationFilter: Some(f)} }
	for name, c := range map[string]struct {
		drafts []Draft
		m      Message
	}{
		"no message of 18":        {[]Draft{18}, &PublishStateNotify{}},
		"option of 22":            {[]Draft{18}, &Setup{MaxFilterRanges: 1}},
		"option of 22, the other": {[]Draft{18}, &Setup{MaxRequestUpdates: 1}},
		"request ID":              {[]Draft{22}, &GoAway{RequestID: Some[uint64](0)}},
		"joining":                 {[]Draft{22}, &Fetch{Joining: &Joining{}}},
		"joining and a filter": {drafts,
			&Fetch{Joining: &Joining{}, Parameters: filter(LocationFilter{Kind: FilterRange})}},
		"joining and a namespace": {drafts, &Fetch{Joining: &Joining{}, Track: Track{Namespace: Namespace{"x"}}}},
		"joining and a name":      {drafts, &Fetch{Joining: &Joining{}, Track: Track{Name: "x"}}},
		"fetch without a range":   {[]Draft{18}, &Fetch{}},
		"fetch without an end":    {[]Draft{18}, &Fetch{Parameters: filter(LocationFilter{Kind: FilterStart})}},
		"fetch of nothing": {[]Draft{18},
			&Fetch{Parameters: filter(LocationFilter{Kind: FilterRange, Start: Location{1, 0}})}},
		"no filter": {[]Draft{18}, &Subscribe{Parameters: filter(LocationFilter{})}},
		"relative filter": {[]Draft{18},
			&Subscribe{Parameters: filter(LocationFilter{Kind: FilterRelative, Start: Location{1, 0}})}},
		"filter with an end object": {[]Draft{18}, &Subscribe{Parameters: filter(LocationFilter{Kind: FilterRange})}},
		"filter of nothing": {drafts,
			&Subscribe{Parameters: filter(LocationFilter{Kind: FilterGroups, Start: Location{1, 0}})}},
		"filter of a kind unknown": {drafts, &Subscribe{Parameters: filter(LocationFilter{Kind: 6})}},
		"range filter": {[]Draft{18},
			&Subscribe{Parameters: Parameters{RangeFilters: []RangeFilter{{Kind: FilterSubgroup}}}}},
		"fill": {[]Draft{18}, &Subscribe{Parameters: Parameters{Fill: &Parameters{}}}},
		"include properties": {[]Draft{18},
			&Fetch{Joining: &Joining{}, Parameters: Parameters{IncludeProperties: Some(true)}}},
		"parameter of another":  {drafts, &SubscribeOK{Parameters: Parameters{Forward: Some(true)}}},
		"forward in REQUEST_OK": {[]Draft{22}, &RequestOK{Parameters: Parameters{Forward: Some(true)}}},
		"fill in a fill": {drafts,
			&Subscribe{Parameters: Parameters{Fill: &Parameters{Fill: &Parameters{}}}}},
		"forward in a fill": {drafts,
			&Subscribe{Parameters: Parameters{Fill: &Parameters{Forward: Some(true)}}}},
		"group order":             {drafts, &Subscribe{Parameters: Parameters{GroupOrder: Some(GroupOrder(3))}}},
		"alias type":              {drafts, &Subscribe{Parameters: Parameters{Tokens: []Token{{AliasType: 4}}}}},
		"alias type in SETUP":     {drafts, &Setup{Tokens: []Token{{AliasType: 4}}}},
		"known option as unknown": {drafts, &Setup{Unknown: Properties{7, 0}}},
		"unknown option cut":      {drafts, &Setup{Unknown: Properties{9, 1}}},
		"long option":             {drafts, &Setup{Implementation: string(make([]byte, MaxValue+1))}},
		"long message":            {drafts, &Setup{Path: Some(string(make([]byte, MaxValue)))}},
		"long reason":             {drafts, &PublishDone{Reason: string(make([]byte, MaxReason+1))}},
		"long URI":                {drafts, &GoAway{URI: string(make([]byte, MaxURI+1))}},
		"long name":               {drafts, &TrackStatus{Track: Track{nil, string(make([]byte, MaxTrackName+1))}}},
		"long namespace":          {drafts, &NamespaceDone{Namespace{string(make([]byte, MaxTrackName)), "x"}}},
		"long name with namespace": {drafts,
			&PublishSkipped{Track{Namespace{"x"}, string(make([]byte, MaxTrackName))}}},
		"many fields":               {drafts, &NamespaceDone{slices.Repeat(Namespace{"x"}, MaxNamespaceFields+1)}},
		"empty field":               {drafts, &NamespaceDone{Namespace{""}}},
		"redirect without its code": {drafts, &RequestError{Redirect: &Redirect{}}},
		"the code without redirect": {drafts, &RequestError{Code: RedirectRequest}},
		"property cut":              {drafts, &SubscribeOK{Properties: Properties{2}}},
		"order of a track":          {drafts, &SubscribeOK{Properties: Properties{PropertyGroupOrder, 0}}},
		"odd property": {drafts, &Subscribe{Parameters: Parameters{RangeFilters: []RangeFilter{
			{Kind: FilterObjectProperty, Property: 3}}}}},
		"priority": {drafts, &Subscribe{Parameters: Parameters{RangeFilters: []RangeFilter{
			{Kind: FilterPriority, Ranges: []Range{{0, 256, false}}}}}}},
		"ranges out of order": {drafts, &Subscribe{Parameters: Parameters{RangeFilters: []RangeFilter{
			{Kind: FilterObjectID, Ranges: []Range{{2, 3, false}, {1, 3, false}}}}}}},
		"range backwards": {drafts, &Subscribe{Parameters: Parameters{RangeFilters: []RangeFilter{
			{Kind: FilterObjectID, Ranges: []Range{{2, 1, false}}}}}}},
		"open range before another": {drafts, &Subscribe{Parameters: Parameters{RangeFilters: []RangeFilter{
			{Kind: FilterObjectID, Ranges: []Range{{0, 1<<64 - 1, true}, {1<<64 - 1, 1<<64 - 1, false}}}}}}},
	} {
		for _, d := range c.drafts {
			if b, err := Append([]byte("x"), d, c.m); err == nil || string(b) != "x" {
				t.Errorf("%s: draft %d appends %x (%v)", name, d, b, err)
			}
		}
	}
}

// What is as long as it may be goes through.
func TestLongest(t *testing.T) {
	text := func(n int) string { return strings.Repeat("x", n) }
	fields := slices.Repeat(Namespace{text(MaxTrackName / MaxNamespaceFields)}, MaxNamespaceFields)
	for name, m := range map[string]Message{
		"message":   &Setup{Implementation: text(MaxMessage - 4)}, // after the option's type and its length of 3 bytes
		"reason":    &PublishDone{Reason: text(MaxReason)},
		"URI":       &GoAway{URI: text(MaxURI)},
		"name":      &TrackStatus{Track: Track{Name: text(MaxTrackName)}},
		"namespace": &NamespaceDone{fields},
		"field":     &NamespaceDone{Namespace{text(MaxTrackName)}},
	} {
		for _, d := range drafts {
			b, err := Append(nil, d, m)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if got, _, err := Parse(d, b); err != nil || !reflect.DeepEqual(got, m) {
				t.Errorf("%s of draft %d comes back as %.200v (%v)", name, d, got, err)
			}
		}
	}
	m := &Subscribe{Parameters: Parameters{RangeFilters: []RangeFilter{
		{Kind: FilterPriority, Ranges: []Range{{0, 0, false}, {255, 255, false}}}}}}
	b, err := Append(nil, Draft22, m)
	if want := unhex(t, "03000c"+"000000"+"01"+"2706"+"00"+"0000"+"80ff00"); err != nil || !bytes.Equal(b, want) {
		t.Errorf("ranges of one value are %x, want %x (%v)", b, want, err)
	}
}

// A whole group of draft 18 is WholeGroup in both of its messages, and a filter to the end of a group covers it too.
func TestEnds(t *testing.T) {
	f := LocationFilter{Kind: FilterGroups, Start: Location{1, 2}, End: Location{Group: 5}}
	b, err := Append(nil, Draft18, &Fetch{Parameters: Parameters{LocationFilter: Some(f)}})
	if err != nil {
		t.Fatal(err)
	}
	m, _, err := Parse(Draft18, b)
	if err != nil {
		t.Fatal(err)
	}
	want := LocationFilter{Kind: FilterRange, Start: Location{1, 2}, End: Location{5, WholeGroup}}
	if got := m.(*Fetch).Parameters.LocationFilter; got != Some(want) {
		t.Errorf("got %+v", got)
	}
	f.End.Group = 1
	b, err = Append(nil, Draft18, &Subscribe{Parameters: Parameters{LocationFilter: Some(f)}})
	if want := unhex(t, "03000a"+"000000"+"01"+"2104"+"04010200"); err != nil || !bytes.Equal(b, want) {
		t.Errorf("the filter to the end of its first group is %x, want %x (%v)", b, want, err)
	}
	for end, wire := range map[uint64]string{0: "01", 6: "07", WholeGroup: "00"} {
		b, err := Append(nil, Draft18, &FetchOK{End: Location{3, end}})
		if want := unhex(t, "180004"+"00"+"03"+wire+"00"); err != nil || !bytes.Equal(b, want) {
			t.Errorf("the end after object %d is %x, want %x (%v)", end, b, want, err)
		}
	}
}

// Reader returns the messages of a stream however it is cut, reads no further, and tells an end between messages from
// one within.
func TestReader(t *testing.T) {
	for _, d := range drafts {
		r := wiretest.New(d, 3)
		var stream []byte
		var want []Message
		for _, typ := range wiretest.Types(d) {
			m := r.Message(typ)
			want = append(want, m)
			stream, _ = Append(stream, d, m)
		}
		long := &Setup{Path: Some(string(r.Bytes(40000)))}
		want = append(want, long)
		stream, _ = Append(stream, d, long)
		for name, wrap := range map[string]func(io.Reader) io.Reader{
			"whole":         func(r io.Reader) io.Reader { return r },
			"byte by byte":  iotest.OneByteReader,
			"halves":        iotest.HalfReader,
			"end with data": iotest.DataErrReader,
		} {
			reader := NewReader(wrap(bytes.NewReader(stream)), d)
			for _, m := range want {
				if got, err := reader.Next(); err != nil || !reflect.DeepEqual(got, m) {
					t.Fatalf("%s: %v\n got %+v\nwant %+v", name, err, got, m)
				}
			}
			if m, err := reader.Next(); m != nil || err != io.EOF {
				t.Errorf("%s: %v %v at the end", name, m, err)
			}
		}
		first, _ := Append(nil, d, want[0])
		for n := 1; n < len(first); n++ {
			var e *Error
			m, err := NewReader(bytes.NewReader(first[:n]), d).Next()
			if m != nil || !errors.As(err, &e) || e.Code != ProtocolViolation {
				t.Errorf("%d of %d bytes: %v %v", n, len(first), m, err)
			}
		}
		source := bytes.NewReader(stream)
		if _, err := NewReader(source, d).Next(); err != nil || source.Len() != len(stream)-len(first) {
			t.Errorf("%d bytes are left of %d (%v)", source.Len(), len(stream)-len(first), err)
		}
	}
}

// A stream's own error is returned as it is, and an unknown type at once: the length of its body is of no account.
func TestReaderErrors(t *testing.T) {
	broken := errors.New("broken")
	for _, sent := range []string{"", "03", "030005", "03000501"} {
		source := io.MultiReader(bytes.NewReader(unhex(t, sent)), iotest.ErrReader(broken))
		if m, err := NewReader(source, Draft22).Next(); m != nil || err != broken {
			t.Errorf("%s: %v %v", sent, m, err)
		}
	}
	var e *Error
	source := io.MultiReader(bytes.NewReader(unhex(t, "1effff")), iotest.ErrReader(broken))
	if m, err := NewReader(source, Draft22).Next(); m != nil || !errors.As(err, &e) {
		t.Errorf("%v %v", m, err)
	}
	// The same message from a Reader and from bytes, with the fault of its request.
	request := unhex(t, "03000b"+"00"+"00"+"00"+"01"+"28"+"0500"+"0300"+"0000")
	request[2] = byte(len(request) - 3)
	m, err := NewReader(bytes.NewReader(request), Draft22).Next()
	var r *Rejection
	if m == nil || !errors.As(err, &r) || r.Code != InvalidFilter {
		t.Errorf("%v %v", m, err)
	}
}

// Parse allocates for what has come, not for what is announced: at most 150 times the message's size in all, when it is
// nothing but empty filters and append has grown their slice again and again.
func TestParseAllocatesLittle(t *testing.T) {
	body := func(fields ...string) []byte {
		var b []byte
		for _, f := range fields {
			b = append(b, unhex(t, f)...)
		}
		return b
	}
	pack := func(typ Type, b []byte) []byte {
		return append(append(AppendVarint(nil, uint64(typ)), byte(len(b)>>8), byte(len(b))), b...)
	}
	most := 65000
	tokens := body("00", "00", "00", "c03fff", "03", "020000") // parameter 3 of 2 bytes: DELETE, alias 0
	for len(tokens) < most {
		tokens = append(tokens, 0, 2, 0, 0)
	}
	filters := body("00", "00", "00", "c07fff", "2500")
	for len(filters) < most {
		filters = append(filters, 0, 0)
	}
	ranges := body("00", "00", "00", "01", "25", "c0fd00", "00")
	ranges = append(ranges, make([]byte, most)...)
	options := body()
	for len(options) < most {
		options = append(options, 0x09, 0)
	}
	for name, b := range map[string][]byte{
		"tokens":     pack(TypeSubscribe, tokens),
		"filters":    pack(TypeSubscribe, filters),
		"ranges":     pack(TypeSubscribe, ranges),
		"options":    pack(TypeSetup, options),
		"parameters": pack(TypeSubscribe, body("00", "00", "00", maximum)),
		"tokens cut": pack(TypeSubscribe, body("00", "00", "00", maximum, "03", "020000")),
		"namespace":  pack(TypeNamespace, body("20", maximum)),
		"properties": pack(TypeRequestOK, make([]byte, most)),
	} {
		const times = 8
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range times {
			Parse(Draft22, b)
		}
		runtime.ReadMemStats(&after)
		if got, limit := (after.TotalAlloc-before.TotalAlloc)/times, uint64(4096+150*len(b)); got > limit {
			t.Errorf("%s: %d bytes for %d bytes of a message; at most %d", name, got, len(b), limit)
		}
	}
}

// The messages that open a request stream are these seven, and SETUP and GOAWAY are those of a control stream (§6.3,
// §9).
func TestStreams(t *testing.T) {
	for _, typ := range wiretest.Types(Draft22) {
		want := OnRequest
		switch typ {
		case TypeSetup:
			want = OnControl
		case TypeGoAway:
			want = OnControl | OnRequest
		case TypeTrackStatus, TypeSubscribe, TypePublish, TypeFetch, TypePublishNamespace, TypeSubscribeNamespace,
			TypeSubscribeTracks:
			want = Opens
		}
		if got := typ.Streams(); got != want {
			t.Errorf("%v is on %b, want %b", typ, got, want)
		}
	}
	if unknown := Type(0x40); unknown.Streams() != 0 || unknown.String() != "message type 0x40" {
		t.Errorf("%v is on %b", unknown, unknown.Streams())
	}
}

func TestDrafts(t *testing.T) {
	if got := Draft18.ALPN() + " " + Draft22.ALPN(); got != "moqt-18 moqt-22" {
		t.Error(got)
	}
	if got := (Optional[int]{}).Or(7) + Some(1).Or(7); got != 8 {
		t.Error(got)
	}
	if kind, err := ParseStreamType([]byte{0xAF}); kind != 0 || err != ErrIncomplete {
		t.Errorf("half of a type is of kind %d (%v)", kind, err)
	}
}
