// Package vectors compares package wire with another codec, moqtap-codec, both ways. Its tests need the program that
// the script build makes.
package vectors

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire/wiretest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// program is where the script build makes it.
const program = "../../../../.cache/moq/vectors/release/moqtap-vectors"

var drafts = []wire.Draft{wire.Draft18, wire.Draft22}

// TestTheirs reads what moqtap-codec encodes: the same fields, and for messages the same bytes back.
func TestTheirs(t *testing.T) {
	seed := needs.Seed(t)
	out, err := exec.Command(program, "draw", strconv.FormatUint(seed, 10), "100").Output()
	if err != nil {
		t.Fatalf("%v: examples/moq/endpoints/vectors/build makes it", err)
	}
	for line := range bytes.Lines(out) {
		v := vector(t, line)
		b, err := hex.DecodeString(v.Hex)
		if err != nil {
			t.Fatal(err)
		}
		fields, again, err := wiretest.Read(v.Draft, v.Kind, b)
		if got, want := wiretest.Canonical(fields), wiretest.Canonical(v.Fields); err != nil || got != want {
			t.Fatalf("draft %d: %s %s: %v\n got %s\nwant %s", v.Draft, v.Kind, v.Hex, err, got, want)
		}
		if v.Kind == "message" && !bytes.Equal(again, b) {
			t.Fatalf("draft %d: %s became %x", v.Draft, v.Hex, again)
		}
	}
}

// TestOurs has moqtap-codec read what we encode: the same fields.
func TestOurs(t *testing.T) {
	seed := needs.Seed(t)
	var asked []wiretest.Vector
	for _, d := range drafts {
		r := wiretest.New(d, seed)
		for range 100 {
			for _, kind := range wiretest.Kinds {
				types := []wire.Type{0}
				if kind == "message" {
					types = wiretest.Types(d)
				}
				for _, typ := range types {
					b, err := r.Draw(kind, typ)
					if err != nil {
						t.Fatal(err)
					}
					if typ == wire.TypeSubscribeTracks {
						b = agreed(t, d, b)
					}
					fields, _, err := wiretest.Read(d, kind, b)
					if err != nil {
						t.Fatal(err)
					}
					v := wiretest.Vector{Draft: d, Kind: kind, Hex: hex.EncodeToString(b), Fields: fields}
					asked = append(asked, v)
				}
			}
		}
	}
	for i, got := range read(t, asked) {
		v := asked[i]
		theirs, ours := wiretest.Canonical(got.Fields), wiretest.Canonical(v.Fields)
		if got.Error != "" || theirs != ours {
			t.Fatalf("draft %d: %s %s: %s\n they %s\nwe   %s", v.Draft, v.Kind, v.Hex, got.Error, theirs, ours)
		}
	}
}

// TestMutated changes a byte or two of what we encode, or adds one. Both read the same from it, or both refuse it, but
// for what TestDisagreements lists.
func TestMutated(t *testing.T) {
	seed := needs.Seed(t)
	var asked []wiretest.Vector
	for _, d := range drafts {
		r := wiretest.New(d, seed)
		for range 300 {
			for _, kind := range wiretest.Kinds {
				types := []wire.Type{0}
				if kind == "message" {
					types = wiretest.Types(d)
				}
				for _, typ := range types {
					b, err := r.Draw(kind, typ)
					if err != nil {
						t.Fatal(err)
					}
					for range 1 + r.IntN(2) {
						b = mutate(r, kind, typ, b)
					}
					v := wiretest.Vector{Draft: d, Kind: kind, Hex: hex.EncodeToString(b)}
					if v.Fields, _, err = wiretest.Read(d, kind, b); err != nil {
						v.Error = err.Error()
					}
					asked = append(asked, v)
				}
			}
		}
	}
	both := 0
	for i, got := range read(t, asked) {
		v := asked[i]
		switch {
		case known(v, got):
		case (got.Error == "") != (v.Error == ""):
			t.Errorf("draft %d: %s %s: they: %q, we: %q", v.Draft, v.Kind, v.Hex, got.Error, v.Error)
		case v.Error != "":
			both++
		case wiretest.Canonical(got.Fields) != wiretest.Canonical(v.Fields):
			t.Errorf("draft %d: %s %s\n they %s\nwe   %s",
				v.Draft, v.Kind, v.Hex, wiretest.Canonical(got.Fields), wiretest.Canonical(v.Fields))
		}
	}
	if both == 0 || both == len(asked) {
		t.Errorf("both refuse %d of %d", both, len(asked))
	}
}

// mutate changes one byte, or adds one.
func mutate(r wiretest.Random, kind string, typ wire.Type, b []byte) []byte {
	i := r.IntN(len(b))
	switch r.IntN(3) {
	case 0:
		b[i] = byte(r.Uint32())
	case 1:
		b[i] ^= 1 << r.IntN(8)
	default:
		b = slices.Insert(b, i, byte(r.Uint32()))
		if header := wire.VarintLen(uint64(typ)) + 2; kind == "message" && i >= header {
			binary.BigEndian.PutUint16(b[header-2:], uint16(len(b)-header))
		}
	}
	return b
}

// A disagreement is what moqtap-codec 0.9.0 reads otherwise than the draft has it.
type disagreement struct {
	section string // of draft 21, or of draft 18
	why     string
	drafts  []wire.Draft
	kind    string
	hex     string
	ours    bool // we read it
	theirs  bool // they do
}

var disagreements = []disagreement{
	{"§11.3.1", "object IDs go to 2^64-1; they stop at 2^62-1",
		drafts, "subgroup", "300000ff40000000000000000000", true, false},
	{"§11.1.3", "properties of an object with a status are a PROTOCOL_VIOLATION; they leave that to their caller",
		drafts, "subgroup", "310000000202010003", false, true},
	{"§11.4.1.2", "a marker has a group and an object, and no payload length; they want one",
		drafts, "ascending", "0500810c0507", true, false},
	{"§11.2.1", "a status is an integer of any length; they read one byte",
		drafts, "datagram", "280000008003", true, false},
	{"18 §1.4.1", "a type may be longer than needed",
		drafts[:1], "subgroup", "801400000000", true, false},
	{"18 §1.4.1", "a type may be longer than needed",
		drafts[:1], "datagram", "800000000000", true, false},
	{"§9.12", "End Of Track is 1 or 0; they take all numbers",
		drafts, "message", "18000402000000", false, true},
	{"§9.18.1", "SUBSCRIBE_TRACKS may have OBJECT_DELIVERY_TIMEOUT, as SUBSCRIBE",
		drafts[1:], "message", "510005000001" + "0200", true, false},
	{"§9.18.1", "SUBSCRIBE_TRACKS may have RENDEZVOUS_TIMEOUT",
		drafts[1:], "message", "510005000001" + "0400", true, false},
	{"§9.18.1", "SUBSCRIBE_TRACKS may have SUBGROUP_DELIVERY_TIMEOUT",
		drafts[1:], "message", "510005000001" + "0600", true, false},
	{"§9.18.1", "SUBSCRIBE_TRACKS may have SUBSCRIBER_PRIORITY",
		drafts[1:], "message", "510005000001" + "2000", true, false},
	{"§9.18.1", "SUBSCRIBE_TRACKS may have NEW_GROUP_REQUEST",
		drafts[1:], "message", "510005000001" + "3200", true, false},
}

// TestDisagreements is about what the draft's text decides against moqtap-codec. When one of these isn't one any more,
// it goes.
func TestDisagreements(t *testing.T) {
	for _, d := range disagreements {
		for _, draft := range d.drafts {
			b, err := hex.DecodeString(d.hex)
			if err != nil {
				t.Fatal(err)
			}
			_, _, err = wiretest.Read(draft, d.kind, b)
			theirs := read(t, []wiretest.Vector{{Draft: draft, Kind: d.kind, Hex: d.hex}})[0]
			if ours := err == nil; ours != d.ours || (theirs.Error == "") != d.theirs {
				t.Errorf("draft %d: %s, %s: %s: we: %v, they: %q", draft, d.section, d.why, d.hex, err, theirs.Error)
			}
		}
	}
}

// known reports whether a vector, and the answer to it, are one of the disagreements.
func known(v, got wiretest.Vector) bool {
	ours := wiretest.Canonical(v.Fields)
	first := v.Hex[:2]
	switch {
	case v.Error == "" && got.Error == "": // an option that is 0 or empty is an absent one to us
		return strings.HasPrefix(v.Hex, "af00")
	case v.Error != "":
		return strings.Contains(v.Error, "FETCH_OK has") && strings.Contains(v.Error, "0 or 1") ||
			strings.Contains(v.Error, "has properties")
	case v.Draft == wire.Draft18 && v.Kind != "message" && first >= "80", strings.Contains(ours, "end_of_range"):
		return true
	case v.Kind == "datagram":
		return first >= "20" && !strings.Contains(ours, `"status":0`)
	case v.Kind == "subgroup":
		return strings.Contains(got.Error, "invalid field value") && large.MatchString(ours)
	}
	return strings.Contains(got.Error, "may not appear in message type 81")
}

// large matches the ID of an object from 2^62 on.
var large = regexp.MustCompile(`"id":(4[6-9]|[5-9][0-9]|1[0-9]{2})[0-9]{17}`)

// agreed leaves out what moqtap-codec refuses in SUBSCRIBE_TRACKS (TestDisagreements).
func agreed(t *testing.T, d wire.Draft, b []byte) []byte {
	m, _, err := wire.Parse(d, b)
	if err != nil {
		t.Fatal(err)
	}
	p := &m.(*wire.SubscribeTracks).Parameters
	p.ObjectDeliveryTimeout.Present, p.SubgroupDeliveryTimeout.Present = false, false
	p.RendezvousTimeout.Present, p.SubscriberPriority.Present, p.NewGroupRequest.Present = false, false, false
	if b, err = wire.Append(nil, d, m); err != nil {
		t.Fatal(err)
	}
	return b
}

// read has the program read vectors.
func read(t *testing.T, asked []wiretest.Vector) (answers []wiretest.Vector) {
	t.Helper()
	var in bytes.Buffer
	for _, v := range asked {
		fmt.Fprintln(&in, wiretest.Canonical(v))
	}
	command := exec.Command(program, "read")
	command.Stdin = &in
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v: examples/moq/endpoints/vectors/build makes it", err)
	}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		answers = append(answers, vector(t, lines.Bytes()))
	}
	if len(answers) != len(asked) {
		t.Fatalf("%d answers for %d vectors", len(answers), len(asked))
	}
	return answers
}

func vector(t *testing.T, line []byte) (v wiretest.Vector) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.UseNumber()
	if err := decoder.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}
