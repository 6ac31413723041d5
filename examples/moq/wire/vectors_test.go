package wire_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire/wiretest"
)

// TestVectors reads what another codec encoded, moqtap-codec 0.9.0, random messages, streams and datagrams of both
// drafts. The fields are the same, and so are the bytes that a message is sent with; what a stream is sent with means
// the same.
//
// testdata/vectors.jsonl is what "moqtap-vectors draw 1 6" prints (examples/moq/endpoints/vectors).
func TestVectors(t *testing.T) {
	file, err := os.Open("testdata/vectors.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	seen := map[string]int{}
	for lines.Scan() {
		var v wiretest.Vector
		decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		decoder.UseNumber()
		if err := decoder.Decode(&v); err != nil {
			t.Fatal(err)
		}
		b := unhex(t, v.Hex)
		fields, again, err := wiretest.Read(v.Draft, v.Kind, b)
		if got, want := wiretest.Canonical(fields), wiretest.Canonical(v.Fields); err != nil || got != want {
			t.Errorf("draft %d: %s %s: %v\n got %s\nwant %s", v.Draft, v.Kind, v.Hex, err, got, want)
			continue
		}
		same, _, err := wiretest.Read(v.Draft, v.Kind, again)
		if err != nil || wiretest.Canonical(same) != wiretest.Canonical(fields) {
			t.Errorf("draft %d: %s %s became %x (%v)", v.Draft, v.Kind, v.Hex, again, err)
		}
		if v.Kind == "message" && !bytes.Equal(again, b) {
			t.Errorf("draft %d: %s became %s", v.Draft, v.Hex, hex.EncodeToString(again))
		}
		seen[v.Kind]++
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	for _, kind := range wiretest.Kinds {
		if seen[kind] == 0 {
			t.Errorf("no vector is of the kind %s", kind)
		}
	}
}
