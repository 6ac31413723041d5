package wire_test

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	. "github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire/wiretest"
)

// FuzzMessages: what can be parsed can be sent again, and says the same then; nothing panics.
func FuzzMessages(f *testing.F) {
	for _, d := range drafts {
		r := wiretest.New(d, 7)
		for _, typ := range wiretest.Types(d) {
			for range 3 {
				b, err := Append(nil, d, r.Message(typ))
				if err != nil {
					f.Fatal(err)
				}
				f.Add(d == Draft18, b)
			}
		}
	}
	f.Fuzz(func(t *testing.T, old bool, b []byte) {
		d := Draft22
		if old {
			d = Draft18
		}
		m, rest, err := Parse(d, b)
		fromReader, readErr := NewReader(bytes.NewReader(b), d).Next()
		if err == nil != (readErr == nil) || !reflect.DeepEqual(fromReader, m) {
			t.Fatalf("Parse: %v %+v, Reader: %v %+v", err, m, readErr, fromReader)
		}
		if err != nil {
			rejected := errors.As(err, new(*Rejection))
			if rejected != (m != nil) || rejected == (len(rest) == len(b)) {
				t.Fatalf("%v with %+v and %x", err, m, rest)
			}
			return
		}
		if setup, ok := m.(*Setup); ok {
			_ = setup.Check(false, false)
		}
		again, err := Append(nil, d, m)
		if err != nil {
			t.Fatalf("%+v can't be sent: %v", m, err)
		}
		if len(again) > len(b)-len(rest) {
			t.Fatalf("%x became longer: %x", b, again)
		}
		if got, rest, err := Parse(d, again); err != nil || len(rest) > 0 || !reflect.DeepEqual(got, m) {
			t.Fatalf("%x: %v %x\n got %+v\nwant %+v", again, err, rest, got, m)
		}
		for _, other := range drafts { // what the other draft takes, it has to understand
			if b, err := Append(nil, other, m); err == nil {
				if _, _, err := Parse(other, b); err != nil {
					t.Fatalf("draft %d doesn't understand its own %x: %v", other, b, err)
				}
			}
		}
	})
}

// FuzzSubgroup: a stream that is parsed whole is parsed the same in pieces, and written again is no longer.
func FuzzSubgroup(f *testing.F) {
	r := wiretest.New(Draft22, 8)
	for range 20 {
		h, objects := r.Subgroup()
		b, s := h.Append(nil), Subgroup{Header: h}
		for _, o := range objects {
			o.Length %= 4
			if o.Status == Normal {
				b, _ = s.Append(b, o)
				b = append(b, make([]byte, o.Length)...)
			}
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := ParseSubgroupHeader(b)
		if err != nil {
			return
		}
		if _, _, err := ParseSubgroupHeader(b[:n-1]); err != ErrIncomplete {
			t.Fatalf("the header %x has an end before its end: %v", b[:n], err)
		}
		if got, m, err := ParseSubgroupHeader(h.Append(nil)); err != nil || m > n || got != h {
			t.Fatalf("%+v became %+v, %d bytes (%v)", h, got, m, err)
		}
		s, w, v := Subgroup{Header: h}, Subgroup{Header: h}, Subgroup{Header: h}
		for b = b[n:]; ; {
			before := s
			o, n, err := s.Next(b)
			if err != nil {
				if s != before {
					t.Fatal("a failure changed the state")
				}
				return
			}
			if _, _, err := before.Next(b[:n-1]); err != ErrIncomplete {
				t.Fatalf("the header %x has an end before its end: %v", b[:n], err)
			}
			again, err := w.Append(nil, o)
			if err != nil || len(again) > n {
				t.Fatalf("%+v became %x (%v)", o, again, err)
			}
			if got, m, err := v.Next(again); err != nil || m != len(again) || !reflect.DeepEqual(got, o) || v != s {
				t.Fatalf("%+v became %+v (%v)", o, got, err)
			}
			_ = o.Properties.CheckObject(Location{h.Group, o.ID})
			if b = b[n:]; o.Length > uint64(len(b)) {
				return
			}
			b = b[o.Length:]
		}
	})
}

// FuzzFetched: the same for fetch streams. IDs that don't ascend are parsed, but not sent.
func FuzzFetched(f *testing.F) {
	for _, d := range drafts {
		r := wiretest.New(d, 9)
		for i := range 20 {
			w := Fetched{Draft: d, Descending: i%2 == 0}
			var b []byte
			for _, o := range r.Fetched(w.Descending, true) {
				o.Length %= 4
				b, _ = w.Append(b, o)
				b = append(b, make([]byte, o.Length)...)
			}
			f.Add(d == Draft18, w.Descending, b)
		}
	}
	// The subgroup after that of the object before a datagram.
	f.Add(false, false, []byte("?0000\x00\x00x00\x12000000000000000000\x00\x0200"))
	f.Fuzz(func(t *testing.T, old, descending bool, b []byte) {
		d := Draft22
		if old {
			d = Draft18
		}
		s := Fetched{Draft: d, Descending: descending}
		w, v := s, s
		ascending := true
		for {
			before := s
			o, n, err := s.Next(b)
			if err != nil {
				if s != before {
					t.Fatal("a failure changed the state")
				}
				return
			}
			if _, _, err := before.Next(b[:n-1]); err != ErrIncomplete {
				t.Fatalf("the header %x has an end before its end: %v", b[:n], err)
			}
			if ascending {
				again, err := w.Append(nil, o)
				if ascending = err == nil; ascending {
					got, m, err := v.Next(again)
					if err != nil || m != len(again) || !reflect.DeepEqual(got, o) || v != s {
						t.Fatalf("%+v became %+v (%v)", o, got, err)
					}
				}
			}
			if b = b[n:]; o.Length > uint64(len(b)) {
				return
			}
			b = b[o.Length:]
		}
	})
}

// FuzzDatagram: the same for datagrams.
func FuzzDatagram(f *testing.F) {
	r := wiretest.New(Draft22, 10)
	for range 20 {
		b, err := r.Datagram().Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, padding, err := ParseDatagram(b)
		if err != nil || padding {
			return
		}
		again, err := d.Append(nil)
		if err != nil || len(again) > len(b) {
			t.Fatalf("%+v became %x (%v)", d, again, err)
		}
		if got, padding, err := ParseDatagram(again); err != nil || padding || !same(got, d) {
			t.Fatalf("%+v became %+v (%v)", d, got, err)
		}
	})
}

func same(a, b Datagram) bool {
	equal := bytes.Equal(a.Payload, b.Payload)
	a.Payload, b.Payload = nil, nil
	return equal && reflect.DeepEqual(a, b)
}

// FuzzNames: a text that is read is what the name is written as.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"example.2enet-team2-project_x--report", "--", "a--", ".2d--.2d", "a-b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if track, err := ParseTrack(s); err == nil && track.String() != s {
			t.Fatalf("%q is written %s", s, track)
		}
		if n, err := ParseNamespace(s); err == nil && n.String() != s {
			t.Fatalf("%q is written %s", s, n)
		}
	})
}
