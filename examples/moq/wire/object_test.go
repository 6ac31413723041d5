package wire_test

import (
	"bytes"
	"encoding/hex"
	"math"
	"reflect"
	"testing"

	. "github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire/wiretest"
)

// pieces parses a stream from each of its beginnings, as a relay does: what isn't whole is tried again with more.
func pieces(t *testing.T, stream []byte, next func([]byte) (int, error)) {
	t.Helper()
	at := 0
	for end := range len(stream) + 1 {
		for at < end {
			n, err := next(stream[at:end])
			if err == ErrIncomplete {
				break
			}
			if err != nil || n == 0 {
				t.Fatalf("%x at %d to %d: %d, %v", stream, at, end, n, err)
			}
			at += n
		}
	}
	if at != len(stream) {
		t.Fatalf("%d of %d bytes were parsed of %x", at, len(stream), stream)
	}
}

func TestSubgroupRoundTrip(t *testing.T) {
	r := wiretest.New(Draft22, 4)
	for range 2000 {
		h, want := r.Subgroup()
		stream := h.Append(nil)
		w := Subgroup{Header: h}
		for _, o := range want {
			var err error
			if stream, err = w.Append(stream, o); err != nil {
				t.Fatalf("%+v: %v", o, err)
			}
		}
		var got []Object
		var s Subgroup
		header := false
		pieces(t, stream, func(b []byte) (int, error) {
			if !header {
				var n int
				var err error
				s.Header, n, err = ParseSubgroupHeader(b)
				header = err == nil
				return n, err
			}
			before := s
			o, n, err := s.Next(b)
			if err == nil {
				got = append(got, o)
			} else if s != before {
				t.Fatalf("%v changed %+v to %+v", err, before, s)
			}
			return n, err
		})
		if kind, err := ParseStreamType(stream); kind != StreamSubgroup || err != nil {
			t.Fatalf("%x: stream of kind %d (%v)", stream, kind, err)
		}
		if len(want) > 0 && h.SubgroupIsFirst {
			h.Subgroup = want[0].ID
		}
		if !reflect.DeepEqual(got, want) || s.Header != h || s != w {
			t.Fatalf("%x:\n got %+v %+v\nwant %+v %+v", stream, s, got, w, want)
		}
	}
}

func TestDatagramRoundTrip(t *testing.T) {
	r := wiretest.New(Draft22, 5)
	for range 2000 {
		want := r.Datagram()
		b, err := want.Append(nil)
		if err != nil {
			t.Fatalf("%+v: %v", want, err)
		}
		got, padding, err := ParseDatagram(b)
		if err != nil || padding || !reflect.DeepEqual(got, want) {
			t.Fatalf("%x: %v %v\n got %+v\nwant %+v", b, err, padding, got, want)
		}
		for n := range len(b) - len(want.Payload) {
			if d, padding, err := ParseDatagram(b[:n]); err == nil || padding {
				t.Fatalf("%x of %x: %+v", b[:n], b, d)
			}
		}
	}
}

func TestFetchedRoundTrip(t *testing.T) {
	for _, d := range drafts {
		r := wiretest.New(d, 6)
		for range 4000 {
			w := Fetched{Draft: d, Descending: r.IntN(2) == 0}
			want := r.Fetched(w.Descending, true)
			id := r.Uint64()
			stream := AppendFetchHeader(nil, id)
			header := len(stream)
			s := w
			for _, o := range want {
				var err error
				if stream, err = w.Append(stream, o); err != nil {
					t.Fatalf("%+v: %v", want, err)
				}
			}
			if kind, err := ParseStreamType(stream); kind != StreamFetch || err != nil {
				t.Fatalf("%x: stream of kind %d (%v)", stream, kind, err)
			}
			for n := range header {
				if _, _, err := ParseFetchHeader(stream[:n]); err != ErrIncomplete {
					t.Fatalf("%x: %v", stream[:n], err)
				}
			}
			if got, n, err := ParseFetchHeader(stream); got != id || n != header || err != nil {
				t.Fatalf("%x: request %d of %d bytes (%v)", stream, got, n, err)
			}
			var got []FetchObject
			pieces(t, stream[header:], func(b []byte) (int, error) {
				before := s
				o, n, err := s.Next(b)
				if err == nil {
					got = append(got, o)
				} else if s != before {
					t.Fatalf("%v changed %+v to %+v", err, before, s)
				}
				return n, err
			})
			if !reflect.DeepEqual(got, want) || s != w {
				t.Fatalf("%x:\n got %+v %+v\nwant %+v %+v", stream, s, got, w, want)
			}
		}
	}
}

// Examples of draft 18 (§11.6 there), but for the lengths of the second one's properties, which are wrong in it.
func TestObjectExamples(t *testing.T) {
	stream := unhex(t, "14"+"02"+"00"+"00"+"00"+"00"+"04"+"61626364"+"00"+"04"+"65666768")
	h, at, err := ParseSubgroupHeader(stream)
	if want := (SubgroupHeader{TrackAlias: 2, Priority: Some[uint8](0)}); err != nil || h != want {
		t.Fatalf("%+v %v", h, err)
	}
	s := Subgroup{Header: h}
	for id, payload := range []string{"abcd", "efgh"} {
		o, n, err := s.Next(stream[at:])
		if err != nil || o.ID != uint64(id) || o.Length != 4 || string(stream[at+n:at+n+4]) != payload {
			t.Fatalf("%+v %v", o, err)
		}
		at += n + 4
	}
	properties, err := NewProperties(
		Property{Type: PropertyMaxCacheDuration, Value: 2186796243},
		Property{Type: 77, Bytes: []byte("traceID:123456")})
	if err != nil {
		t.Fatal(err)
	}
	stream = unhex(t, "35"+"02"+"00"+"00"+"00"+"16"+hex.EncodeToString(properties)+"04"+"61626364"+"00"+"00"+"04")
	h, at, err = ParseSubgroupHeader(stream)
	if want := (SubgroupHeader{TrackAlias: 2, Properties: true}); err != nil || h != want {
		t.Fatalf("%+v %v", h, err)
	}
	s = Subgroup{Header: h}
	o, n, err := s.Next(stream[at:])
	if err != nil || o.ID != 0 || !bytes.Equal(o.Properties, properties) || o.Length != 4 {
		t.Fatalf("%+v %v", o, err)
	}
	o, n, err = s.Next(stream[at+n+4:])
	if want := (Object{ID: 1, Length: 4}); err != nil || !reflect.DeepEqual(o, want) || n != 3 {
		t.Fatalf("%+v %v", o, err)
	}
}

// A header is as short as can be, and one that leaves the subgroup's ID to the first object stays so once this is
// known.
func TestSubgroupHeaders(t *testing.T) {
	for _, c := range []struct {
		h    SubgroupHeader
		want string
	}{
		{SubgroupHeader{}, "300000"},
		{SubgroupHeader{Subgroup: 1}, "34000001"},
		{SubgroupHeader{SubgroupIsFirst: true, Subgroup: 5, Priority: Some[uint8](7)}, "12000007"},
		{SubgroupHeader{Properties: true, EndOfGroup: true, FirstObject: true}, "790000"},
	} {
		if got := hex.EncodeToString(c.h.Append(nil)); got != c.want {
			t.Errorf("%+v is %s, want %s", c.h, got, c.want)
		}
	}
}

// What the object before says isn't said again.
func TestFetchedShortest(t *testing.T) {
	f := Fetched{Draft: Draft22}
	for _, c := range []struct {
		o    FetchObject
		want string
	}{
		{FetchObject{Group: 1, ID: 2, Subgroup: 3, Priority: 4, Length: 5}, "1f" + "01" + "03" + "02" + "04" + "05"},
		{FetchObject{Group: 1, ID: 3, Subgroup: 3, Priority: 4, Length: 5}, "01" + "05"},
		{FetchObject{Group: 1, ID: 5, Subgroup: 4, Priority: 4}, "06" + "02" + "00"},
		{FetchObject{Group: 3, ID: 6, Priority: 4, Properties: Properties{2, 0}}, "28" + "01" + "02" + "0200" + "00"},
		{FetchObject{Group: 3, ID: 7, Datagram: true, Priority: 4}, "40" + "00"},
		{FetchObject{Group: 3, ID: math.MaxUint64, Priority: 5}, "14" + "fffffffffffffffff8" + "05" + "00"},
		{FetchObject{Group: 4, Priority: 5}, "0c" + "00" + "00" + "00"},
	} {
		b, err := f.Append(nil, c.o)
		if got := hex.EncodeToString(b); err != nil || got != c.want {
			t.Errorf("%+v is %s, want %s: %v", c.o, got, c.want, err)
		}
	}
}

// A relay adds a stream for a subscriber that joins late: from any object on, with the subgroup's ID in the header.
func TestLateJoin(t *testing.T) {
	first := SubgroupHeader{TrackAlias: 7, Group: 1, SubgroupIsFirst: true, FirstObject: true, Properties: true}
	up := Subgroup{Header: first}
	stream := first.Append(nil)
	for _, id := range []uint64{5, 6, 9} {
		stream, _ = up.Append(stream, Object{ID: id, Properties: Properties{2, byte(id)}})
	}
	h, at, _ := ParseSubgroupHeader(stream)
	up = Subgroup{Header: h}
	_, n, _ := up.Next(stream[at:])
	at += n
	down := Subgroup{Header: up.Header}
	down.Header.SubgroupIsFirst, down.Header.FirstObject, down.Header.TrackAlias = false, false, 3
	late := down.Header.Append(nil)
	for at < len(stream) {
		o, n, err := up.Next(stream[at:])
		if err != nil {
			t.Fatal(err)
		}
		before := stream[at : at+n]
		at += n
		begin := len(late)
		if late, err = down.Append(late, o); err != nil {
			t.Fatal(err)
		}
		if o.ID == 9 && !bytes.Equal(late[begin:], before) {
			t.Errorf("an object that isn't the first changed from %x to %x", before, late[begin:])
		}
	}
	h, at, _ = ParseSubgroupHeader(late)
	if want := (SubgroupHeader{TrackAlias: 3, Group: 1, Subgroup: 5, Properties: true}); h != want {
		t.Errorf("the header is %+v", h)
	}
	s := Subgroup{Header: h}
	for _, id := range []uint64{6, 9} {
		o, n, err := s.Next(late[at:])
		if err != nil || o.ID != id || !bytes.Equal(o.Properties, Properties{2, byte(id)}) {
			t.Errorf("%+v %v", o, err)
		}
		at += n
	}
}

// What can't be sent.
func TestObjectsRefused(t *testing.T) {
	plain, withProperties := SubgroupHeader{}, SubgroupHeader{Properties: true}
	for name, c := range map[string]struct {
		h       SubgroupHeader
		objects []Object
	}{
		"same ID":                     {plain, []Object{{ID: 1}, {ID: 1}}},
		"smaller ID":                  {plain, []Object{{ID: 1}, {ID: 0}}},
		"unknown status":              {plain, []Object{{Status: 1}}},
		"status with payload":         {plain, []Object{{Status: EndOfGroup, Length: 1}}},
		"status with properties":      {withProperties, []Object{{Status: EndOfGroup, Properties: Properties{2, 1}}}},
		"properties the header lacks": {plain, []Object{{Properties: Properties{2, 1}}}},
	} {
		s := Subgroup{Header: c.h}
		for i, o := range c.objects {
			before := s
			b, err := s.Append(nil, o)
			if last := i == len(c.objects)-1; last != (err != nil) || last && (b != nil || s != before) {
				t.Errorf("%s: %x %v", name, b, err)
			}
		}
	}
	for name, d := range map[string]Datagram{
		"unknown status": {Status: 2}, "status with payload": {Status: EndOfTrack, Payload: []byte{1}},
		"status with properties":  {Status: EndOfTrack, Properties: Properties{2, 1}},
		"status and end of group": {Status: EndOfTrack, EndOfGroup: true},
	} {
		if b, err := d.Append(nil); err == nil || b != nil {
			t.Errorf("%s: %x %v", name, b, err)
		}
	}
	for name, c := range map[string]struct {
		f       Fetched
		objects []FetchObject
	}{
		"group before":           {Fetched{Draft: 22}, []FetchObject{{Group: 2}, {Group: 1}}},
		"group after":            {Fetched{Draft: 22, Descending: true}, []FetchObject{{Group: 1}, {Group: 2}}},
		"same object":            {Fetched{Draft: 22}, []FetchObject{{ID: 2}, {ID: 2}}},
		"timed out in draft 18":  {Fetched{Draft: 18}, []FetchObject{{EndOfRange: TimedOut}}},
		"unknown end of a range": {Fetched{Draft: 22}, []FetchObject{{EndOfRange: 0x40C}}},
	} {
		for i, o := range c.objects {
			before := c.f
			b, err := c.f.Append(nil, o)
			if last := i == len(c.objects)-1; last != (err != nil) || last && (b != nil || c.f != before) {
				t.Errorf("%s: %x %v", name, b, err)
			}
		}
	}
}

func TestPadding(t *testing.T) {
	b := append(AppendPaddingType(nil, true), 0, 0, 0)
	if d, padding, err := ParseDatagram(b); !padding || err != nil || !reflect.DeepEqual(d, Datagram{}) {
		t.Errorf("%x: %+v %v %v", b, d, padding, err)
	}
	if kind, err := ParseStreamType(AppendPaddingType(nil, false)); kind != StreamPadding || err != nil {
		t.Errorf("stream of kind %d (%v)", kind, err)
	}
}

// Nothing is allocated on the path of objects.
func TestNoAllocations(t *testing.T) {
	properties := Properties{2, 1, 9, 3, 1, 2, 3}
	h := SubgroupHeader{TrackAlias: 300, Group: 70000, Subgroup: 2, Properties: true, Priority: Some[uint8](3)}
	object := Object{ID: 5, Properties: properties, Length: 1000}
	stream, err := (&Subgroup{Header: h}).Append(h.Append(nil), object)
	if err != nil {
		t.Fatal(err)
	}
	d := Datagram{TrackAlias: 3, Group: 70000, Object: 5, Properties: properties, Payload: make([]byte, 1000)}
	datagram, err := d.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	f := FetchObject{Group: 3, ID: 9, Subgroup: 3, Priority: 4, Properties: properties, Length: 9}
	fetched, err := (&Fetched{Draft: Draft22}).Append(nil, f)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]byte, 0, 2048)
	for name, run := range map[string]func(){
		"parse a subgroup": func() {
			h, n, _ := ParseSubgroupHeader(stream)
			s := Subgroup{Header: h}
			if _, _, err := s.Next(stream[n:]); err != nil {
				panic(err)
			}
			if _, _, err := s.Next(stream[n : len(stream)-1]); err != ErrIncomplete {
				panic(err)
			}
		},
		"append a subgroup": func() {
			if _, err := (&Subgroup{Header: h}).Append(h.Append(out), object); err != nil {
				panic(err)
			}
		},
		"datagram": func() {
			d, _, err := ParseDatagram(datagram)
			if err != nil {
				panic(err)
			}
			d.TrackAlias++
			if _, err := d.Append(out); err != nil {
				panic(err)
			}
		},
		"fetch": func() {
			s, w := Fetched{Draft: Draft22}, Fetched{Draft: Draft22}
			o, _, err := s.Next(fetched)
			if err != nil {
				panic(err)
			}
			if _, err := w.Append(out, o); err != nil {
				panic(err)
			}
		},
		"property": func() {
			if v, ok := properties.Uint(2); v != 1 || !ok {
				panic(v)
			}
		},
		"type": func() {
			if k, _ := ParseStreamType(stream); k != StreamSubgroup {
				panic(k)
			}
		},
	} {
		if n := testing.AllocsPerRun(100, run); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkObject(b *testing.B) {
	h := SubgroupHeader{TrackAlias: 300, Group: 70000}
	s := Subgroup{Header: h, Started: true, LastID: 7}
	object, err := (&Subgroup{Header: h, Started: true, LastID: 7}).Append(nil, Object{ID: 8, Length: 1200})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s.LastID = 7
		if _, _, err := s.Next(object); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDatagram(b *testing.B) {
	d := Datagram{TrackAlias: 3, Group: 70000, Object: 5, Payload: make([]byte, 1000)}
	datagram, err := d.Append(nil)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := ParseDatagram(datagram); err != nil {
			b.Fatal(err)
		}
	}
}
