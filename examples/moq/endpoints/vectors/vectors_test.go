// Package vectors compares package wire with another codec, moqtap-codec, both ways. Its tests need the program that the script build makes.
package vectors

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire/wiretest"
)

// program is where the script build makes it.
const program = "../../../../.cache/moq/vectors/release/moqtap-vectors"

var drafts = []wire.Draft{wire.Draft18, wire.Draft22}

// TestTheirs reads what moqtap-codec encodes: the same fields, and for messages the same bytes back.
func TestTheirs(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	out, err := exec.Command(program, "draw", strconv.FormatInt(seed, 10), "100").Output()
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
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
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
					asked = append(asked, wiretest.Vector{Draft: d, Kind: kind, Hex: hex.EncodeToString(b), Fields: fields})
				}
			}
		}
	}
	for i, got := range read(t, asked) {
		v := asked[i]
		if theirs, ours := wiretest.Canonical(got.Fields), wiretest.Canonical(v.Fields); got.Error != "" || theirs != ours {
			t.Fatalf("draft %d: %s %s: %s\n they %s\nwe   %s", v.Draft, v.Kind, v.Hex, got.Error, theirs, ours)
		}
	}
}

// agreed leaves out what moqtap-codec refuses in SUBSCRIBE_TRACKS (TestDisagreements).
func agreed(t *testing.T, d wire.Draft, b []byte) []byte {
	m, _, err := wire.Parse(d, b)
	if err != nil {
		t.Fatal(err)
	}
	p := &m.(*wire.SubscribeTracks).Parameters
	p.ObjectDeliveryTimeout.Present, p.RendezvousTimeout.Present, p.SubgroupDeliveryTimeout.Present = false, false, false
	p.SubscriberPriority.Present, p.NewGroupRequest.Present = false, false
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
