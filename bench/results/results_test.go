package results

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The page of results, and the tables that other pages have between markers, are made from the file of one run.
func TestResults(t *testing.T) {
	text, err := os.ReadFile("../results.json")
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	blocks := r.Blocks()
	for file, name := range map[string]string{
		"../../docs/results.md": "", "../../README.md": "results", "../../docs/comparison.md": "costs",
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want := r.Page()
		if name != "" {
			at := block(name).FindSubmatchIndex(text)
			if at == nil {
				t.Fatalf("%s has no block %q", file, name)
			}
			want = string(text[:at[2]]) + blocks[name] + string(text[at[3]:])
		}
		if os.Getenv("FASTRELAY_UPDATE") != "" {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if diff := cmp.Diff(want, string(text)); diff != "" {
			t.Errorf("%s is out of date (make generate); -want +got:\n%s", file, diff)
		}
	}
}

// block is a part of a page that is made: from its marker to the end's.
func block(name string) *regexp.Regexp {
	return regexp.MustCompile(`(?s)<!-- made of bench/results\.json: ` + name + ` -->\n\n(.*?)<!-- end -->`)
}
