package docs_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// What security-and-limits.md says that programs of the examples cost in the verifier is what was recorded, on the
// kernel where it is the most, give or take a tenth; and the first that it names is the largest of all.
func TestLimitsQuoteTheBudget(t *testing.T) {
	recorded, err := os.ReadFile("../golden/budget.txt")
	if err != nil {
		t.Fatal(err)
	}
	most, largest := map[string]int{}, ""
	for line := range strings.Lines(string(recorded)) {
		words := strings.Fields(line) // spec, program, kernel, instructions, …
		if !strings.HasPrefix(line, "examples/") {
			continue
		}
		n, err := strconv.Atoi(words[3])
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		name := "`" + words[1] + "` of `" + words[0] + "`"
		most[name] = max(most[name], n)
		if most[name] > most[largest] {
			largest = name
		}
	}
	text, err := os.ReadFile("security-and-limits.md")
	if err != nil {
		t.Fatal(err)
	}
	quoted := regexp.MustCompile("(`\\w+`\\s+of\\s+`examples/\\w+`)[^`.;]*?([0-9,]+)\\s+instructions").
		FindAllStringSubmatch(string(text), -1)
	if len(quoted) != 2 {
		t.Fatalf("security-and-limits.md names %d programs, not 2: %q", len(quoted), quoted)
	}
	for i, q := range quoted {
		name := strings.Join(strings.Fields(q[1]), " ")
		said, err := strconv.Atoi(strings.ReplaceAll(q[2], ",", ""))
		if err != nil {
			t.Fatal(err)
		}
		is := most[name]
		if is == 0 || said < is-is/10 || said > is+is/10 {
			t.Errorf("security-and-limits.md: %s takes %d instructions; golden/budget.txt has %d", name, said, is)
		}
		if i == 0 && name != largest {
			t.Errorf("security-and-limits.md names %s as the largest program; that is %s, with %d instructions",
				name, largest, most[largest])
		}
	}
}
