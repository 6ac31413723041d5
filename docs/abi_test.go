package docs_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// The tables of internals.md are those of package abi.
func TestABI(t *testing.T) {
	text, err := os.ReadFile("internals.md")
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{
		"version": fmt.Sprint(abi.Version), "names": names(), "maps": mapTable(), "structs": structs(),
	}
	part := regexp.MustCompile(`(?s)(<!-- (\w+)(?:: generated)? -->)(\n?).*?(\n?<!-- end -->)`)
	want := part.ReplaceAllStringFunc(string(text), func(found string) string {
		m := part.FindStringSubmatch(found)
		content, ok := parts[m[2]]
		if !ok {
			t.Errorf("internals.md has a part %q that nothing generates", m[2])
		}
		delete(parts, m[2])
		if m[3] == "" {
			return m[1] + content + "<!-- end -->"
		}
		return m[1] + "\n" + strings.TrimRight(content, "\n") + "\n<!-- end -->"
	})
	if len(parts) > 0 {
		t.Errorf("internals.md has no place for %v", parts)
	}
	golden(t, "internals.md", want)
}

func names() string {
	var b strings.Builder
	b.WriteString("\n| what | name |\n|---|---|\n")
	row := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "| %s | %s |\n", what, fmt.Sprintf(format, args...))
	}
	row("program P", "function `%sP`, section `%s`", abi.ProgramPrefix, abi.ProgramSection)
	row("setting S", "`const volatile` variable `%sS` in read-only data", abi.SettingPrefix)
	row("table T", "map `%sT`", abi.TablePrefix)
	row("group G", "maps `%sG` (the lists of its members) and `%sG` (rows of receivers)", abi.GroupPrefix,
		abi.RowsPrefix)
	row("the clock", "program `%s`", abi.ClockProgram)
	row("what may be asked of the kernel about a packet (only where programs ask)",
		"`const volatile` variable `%s`: %d `bpf_cast_to_kern_ctx`, %d `bpf_probe_read_kernel`; 0 where the loader "+
			"says nothing",
		abi.FactsVariable, abi.FactsCast, abi.FactsRead)
	row("all else", "maps `fr_…`, below")
	return b.String()
}

func mapTable() string {
	var b strings.Builder
	b.WriteString("\nWords in code are members of `abi.Desc`. *mapped* is `BPF_F_MMAPABLE`: user space has the map " +
		"in its memory. *pinned* maps outlive the process,\n" +
		"where the relay has a `PinPath`.\n\n| map | type | entries | value | only with |\n|---|---|---|---|---|\n")
	letters := map[string]string{abi.GroupPrefix: "G", abi.RowsPrefix: "G", abi.TablePrefix: "T"}
	for _, m := range abi.MapInfos() {
		typ := "by the table's kind: hash, LRU hash, array (each also per CPU), LPM trie"
		if m.Type != 0 {
			typ = m.Type.String()
		}
		if m.Mmap {
			typ += ", mapped"
		}
		if m.Pinned {
			typ += ", pinned"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.Name+letters[m.Name], typ, m.Entries, m.Value, m.When)
	}
	return b.String()
}

func structs() string {
	var b strings.Builder
	for _, s := range abi.Structs() {
		fmt.Fprintf(&b, "\n`struct %s`, %d bytes: %s.\n\n| at | type | member | |\n|---|---|---|---|\n", s.Name, s.Size,
			s.About)
		for _, m := range s.Members {
			fmt.Fprintf(&b, "| %d | `%s` | `%s` | %s |\n", m.Off, m.Type, m.Name, m.Doc)
		}
	}
	return b.String()
}
