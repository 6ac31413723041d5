package wiretest

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// Kinds are the kinds of vectors.
var Kinds = []string{"message", "subgroup", "datagram", "ascending", "descending"}

// Read parses the whole of what a vector of a kind has, properties of objects included but for fetch streams, and
// returns its fields and the same in our encoding; again is nil for a fetch stream whose objects aren't in order, which
// can be read but not written.
func Read(d wire.Draft, kind string, b []byte) (fields any, again []byte, err error) {
	switch kind {
	case "message":
		m, rest, err := wire.Parse(d, b)
		if err != nil {
			return nil, nil, err
		}
		if len(rest) > 0 {
			return nil, nil, errors.New("something follows the message")
		}
		again, err = wire.Append(nil, d, m)
		return Fields(d, m), again, err
	case "subgroup":
		return readSubgroup(b)
	case "datagram":
		return readDatagram(b)
	case "ascending", "descending":
		return readFetched(d, kind == "descending", b)
	}
	return nil, nil, fmt.Errorf("no vectors are of the kind %q", kind)
}

// valid returns the first fault in how properties are written, immutable ones too.
func valid(p wire.Properties) error {
	for q, err := range p.All() {
		if q.Type == wire.PropertyImmutable && err == nil {
			err = valid(q.Bytes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func priority(p wire.Optional[uint8]) any {
	if p.Present {
		return p.Value
	}
	return nil
}

func readSubgroup(b []byte) (any, []byte, error) {
	h, n, err := wire.ParseSubgroupHeader(b)
	if err != nil {
		return nil, nil, err
	}
	f := fields{
		"track_alias": h.TrackAlias, "group": h.Group, "subgroup": h.Subgroup, "priority": priority(h.Priority),
		"properties": h.Properties, "end_of_group": h.EndOfGroup, "first_object": h.FirstObject,
	}
	if h.SubgroupIsFirst {
		f["subgroup"] = "first"
	}
	s, w := wire.Subgroup{Header: h}, wire.Subgroup{Header: h}
	objects, again := []any{}, h.Append(nil)
	for b = b[n:]; len(b) > 0; {
		o, n, err := s.Next(b)
		if err = cmp.Or(err, valid(o.Properties)); err != nil {
			return nil, nil, err
		}
		if o.Length > uint64(len(b)-n) {
			return nil, nil, errors.New("the stream ends within a payload")
		}
		payload := b[n : n+int(o.Length)]
		b = b[n+int(o.Length):]
		objects = append(objects, fields{
			"id": o.ID, "properties": text(o.Properties), "status": uint64(o.Status), "payload": text(payload),
		})
		if again, err = w.Append(again, o); err != nil {
			return nil, nil, err
		}
		again = append(again, payload...)
	}
	f["objects"] = objects
	return f, again, nil
}

func readDatagram(b []byte) (any, []byte, error) {
	d, padding, err := wire.ParseDatagram(b)
	if err = cmp.Or(err, valid(d.Properties)); err != nil || padding {
		return fields{"padding": padding}, b, err
	}
	again, err := d.Append(nil)
	return fields{
		"track_alias": d.TrackAlias, "group": d.Group, "id": d.Object, "priority": priority(d.Priority),
		"properties": text(d.Properties), "end_of_group": d.EndOfGroup,
		"status": uint64(d.Status), "payload": text(d.Payload),
	}, again, err
}

func readFetched(d wire.Draft, descending bool, b []byte) (any, []byte, error) {
	id, n, err := wire.ParseFetchHeader(b)
	if err != nil {
		return nil, nil, err
	}
	s := wire.Fetched{Draft: d, Descending: descending}
	w, ordered := s, true
	objects, again := []any{}, wire.AppendFetchHeader(nil, id)
	for b = b[n:]; len(b) > 0; {
		o, n, err := s.Next(b)
		if err != nil {
			return nil, nil, err
		}
		if o.Length > uint64(len(b)-n) {
			return nil, nil, errors.New("the stream ends within a payload")
		}
		payload := b[n : n+int(o.Length)]
		b = b[n+int(o.Length):]
		f := fields{"group": o.Group, "id": o.ID}
		if o.EndOfRange != wire.NoEndOfRange {
			f["end_of_range"] = uint64(o.EndOfRange)
		} else {
			f["subgroup"], f["priority"] = any(o.Subgroup), o.Priority
			f["properties"], f["payload"] = text(o.Properties), text(payload)
			if o.Datagram {
				f["subgroup"] = nil
			}
		}
		objects = append(objects, f)
		if ordered {
			again, err = w.Append(again, o)
			ordered = err == nil
		}
		again = append(again, payload...)
	}
	if !ordered {
		again = nil
	}
	return fields{"request_id": id, "objects": objects}, again, nil
}

// Draw draws something of a kind, and of a type if it is a message, in our encoding. Fetch streams are without markers,
// and payloads are zeros.
func (r Random) Draw(kind string, t wire.Type) ([]byte, error) {
	switch kind {
	case "message":
		return wire.Append(nil, r.Draft, r.Message(t))
	case "datagram":
		return r.Datagram().Append(nil)
	case "subgroup":
		h, objects := r.Subgroup()
		b, w := h.Append(nil), wire.Subgroup{Header: h}
		for _, o := range objects {
			var err error
			if b, err = w.Append(b, o); err != nil {
				return nil, err
			}
			b = append(b, make([]byte, o.Length)...)
		}
		return b, nil
	}
	w := wire.Fetched{Draft: r.Draft, Descending: kind == "descending"}
	b := wire.AppendFetchHeader(nil, r.number())
	for _, o := range r.Fetched(w.Descending, false) {
		var err error
		if b, err = w.Append(b, o); err != nil {
			return nil, err
		}
		b = append(b, make([]byte, o.Length)...)
	}
	return b, nil
}
