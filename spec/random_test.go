//go:build unix

package spec_test

import (
	"bytes"
	"context"
	"fmt"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/spec"
)

const (
	childFrom   = "FASTRELAY_SPEC_FROM" // the first seed that a child tries
	childMemory = 8 << 30               // bytes of address space; LoadWithin gives up long before
	childTime   = 2 * time.Minute
)

func randomTexts() int { return needs.Of(300, 1500) }

// marker is part of every hostile string; it must never reach C or Go.
const marker = "MARKER"

// hostile are values that take a place of a value or a name.
var hostile = []string{
	strconv.Quote("*/ #error " + marker + " /*"), strconv.Quote("\"\n#error " + marker + "\n"),
	strconv.Quote(marker + "\\\n`"),
	strconv.Quote("$(" + marker + ")"), `"\u0000` + marker + `"`, `"` + marker + `\u202e"`, `"%s%n` + marker + `"`,
	`"../../` + marker + `"`,
	`[for i in list.Range(0, 100000000, 1) {i}]`, `strings.Repeat("x", 1000000000)`, `"\(name)\(name)"`,
	`{[string]: _}`, `[...]`, `_|_`,
	`18446744073709551616`, `-1`, `1e400`, `0.5`, `int`, `string`, `>=5`, `=~"a"`, `*1 | 2`, `null`, `name`, `programs`,
	`"for"`, `"int"`, `"goto"`, `"udp"`,
}

var word = regexp.MustCompile(`"(?:[^"\\\n]|\\.)*"|[a-z_]+|[0-9x]+|[^\sa-z0-9]`)

// randomText is a spec in which some words have become others, gone away, or come twice. The two seeds decide.
func randomText(seed, run uint64, texts [][]byte) []byte {
	rnd := rand.New(rand.NewPCG(seed, run))
	text := texts[rnd.IntN(len(texts))]
	for range 1 + rnd.IntN(4) {
		words := word.FindAllIndex(text, -1)
		at := words[rnd.IntN(len(words))]
		other := words[rnd.IntN(len(words))]
		var with []byte
		switch rnd.IntN(5) {
		case 0: // gone
		case 1:
			with = append(bytes.Clone(text[at[0]:at[1]]), text[at[0]:at[1]]...)
		case 2:
			with = text[other[0]:other[1]]
		default:
			with = []byte(hostile[rnd.IntN(len(hostile))])
		}
		text = bytes.Join([][]byte{text[:at[0]], with, text[at[1]:]}, nil)
	}
	for _, name := range []string{"list", "strings"} {
		if bytes.Contains(text, []byte(name+".")) {
			text = append([]byte("import \""+name+"\"\n"), text...)
		}
	}
	return text
}

// Random text is a spec or has mistakes: it never ends the program, takes for ever, or reaches C and Go unchecked. It
// is evaluated in processes with limits; one that had to leave an evaluation running ends, and another goes on.
func TestRandomText(t *testing.T) {
	if from := os.Getenv(childFrom); from != "" {
		randomChild(t, from)
		return
	}
	ended := regexp.MustCompile(`(?m)^next seed (\d+)$`)
	texts := randomTexts()
	for next, given := 0, 0; next < texts; {
		ctx, cancel := context.WithTimeout(t.Context(), childTime)
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestRandomText$",
			fmt.Sprintf("-test.short=%v", testing.Short()))
		cmd.Env = append(os.Environ(), childFrom+"="+strconv.Itoa(next))
		out, err := cmd.CombinedOutput()
		cancel()
		m := ended.FindSubmatch(out)
		if err != nil || m == nil {
			t.Fatalf("the process that began at seed %d ended with %v\n%s", next, err, out[max(0, len(out)-6000):])
		}
		if next, err = strconv.Atoi(string(m[1])); err != nil {
			t.Fatal(err)
		}
		if next < texts {
			if given++; given > texts/50 {
				t.Fatalf("%d of %d texts exceed the limits", given, next)
			}
		}
	}
}

func randomChild(t *testing.T, from string) {
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: childMemory, Max: childMemory}); err != nil {
		t.Fatal(err)
	}
	seed, err := strconv.Atoi(from)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../examples/*/spec.cue")
	if err != nil || len(files) == 0 {
		t.Fatal("no examples", err)
	}
	more, err := filepath.Glob("../golden/*/spec.cue")
	if err != nil {
		t.Fatal(err)
	}
	var texts [][]byte
	for _, file := range append(append(files, "testdata/everything.cue"), more...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	good, run := 0, needs.Seed(t)
	for ; seed < randomTexts(); seed++ {
		s, list := spec.LoadWithin(t.Context(), "spec.cue", randomText(uint64(seed), run, texts))
		for _, d := range list.All() {
			if d.Message == "" || strings.Contains(d.Message, "CUE gave up") || strings.Contains(d.Message,
				"schema.cue") || strings.Contains(d.Message, "%!") {
				t.Errorf("seed %d: %s", seed, d)
			}
			if strings.HasPrefix(d.Message, "computing the spec") {
				fmt.Printf("next seed %d\n", seed+1)
				return
			}
		}
		if (s == nil) != (list.Len() > 0) {
			t.Errorf("seed %d: %v, %v", seed, s, list.Err())
		}
		if s == nil {
			continue
		}
		plan, list := gen.Compile(s)
		if list.Len() > 0 {
			continue
		}
		good++
		c, err := bpf.Render(plan, bpf.Options{})
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
			continue
		}
		golang, err := glue.Render(plan, glue.RenderOptions{Package: "relay", Object: "relay_bpfel.o"})
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
			continue
		}
		if _, err := parser.ParseFile(token.NewFileSet(), "relay.go", golang, parser.SkipObjectResolution); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		for name, text := range map[string]string{"C": c.C, "Go": string(golang)} {
			if strings.Contains(text, marker) {
				t.Errorf("seed %d: text of the spec is in the %s", seed, name)
			}
		}
	}
	if from == "0" && good == 0 {
		t.Error("no text was a spec: the test reaches too little")
	}
	t.Logf("%d were specs", good)
	fmt.Printf("next seed %d\n", seed)
}
