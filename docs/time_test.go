package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The words by which a test makes something of how long it took. Deadlines aren't among them: they end one that waits
// in vain.
var measuresTime = regexp.MustCompile(`time\.(Since|Sleep|Until|Tick)\(|\.Sub\(|(?m:^\s*<-time\.After\()`)

// Each file of tests that measures time is in the list of docs/internals.md, and no other.
func TestTime(t *testing.T) {
	text, err := os.ReadFile("internals.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), "\n### Tests that depend on time\n")
	list, _, _ = strings.Cut(list, "\n### ")
	found := 0
	err = filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		switch name := e.Name(); {
		case err != nil:
			return err
		case e.IsDir() && (name == "quic-go" || strings.HasPrefix(name, ".") && name != ".."):
			return filepath.SkipDir // not ours
		case !strings.HasSuffix(name, "_test.go") || name == "bench_test.go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		measures := false
		for _, function := range strings.Split(string(text), "\nfunc ") {
			measures = measures || !strings.HasPrefix(function, "Benchmark") && measuresTime.MatchString(function)
		}
		if measures {
			found++
		}
		if listed := strings.Contains(list, "]("+filepath.ToSlash(path)+")"); measures != listed {
			t.Errorf("%s measures time: %v; it is in the list: %v", path, measures, listed)
		}
		return nil
	})
	if err != nil || found < 10 {
		t.Errorf("%d files were found: %v", found, err)
	}
}
