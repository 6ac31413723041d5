package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A word is one that this project doesn't use, since readers know a better one for what it means. Its example is found
// by the pattern, in which a space stands for any gap, a new line of a comment as well.
type word struct{ pattern, better, example string }

// words are those of documents, and of comments and strings of Go.
var words = []word{
	{`\b(go|goes|going|gone|went) up\b`, "pass to the stack", "// the packet goes\n// up"},
	{`\b(sends?|pass(es)?) (a |the )?(packets? )?up\b|\bup no_[a-z]+`, "to the stack", "sends the packet up"},
	{`\bpending checksums?\b|\bchecksums? (is|are|that is|that are) pending\b`, "partial checksum",
		"its checksum is pending"},
	{`\bways? out\b`, "next hop, route, or device", "No way out is known"},
	{`\bway: "?next_hop\b`, "hop", `value: way: "next_hop"`},
	{`\b(draw|draws|drawn|drew) from\b|\b(draws?|drawn|drew) (a |its )?numbers?\b`, "allocate",
		"numbers drawn from\n\t * a counter"},
	{`\bbehind (a|the|an IP|its) (datagram|frame|header|packet|payload)\b`, "after", "bytes behind the datagram"},
	{`\bsuper-packets?\b`, "GSO packet", "Super-packets"},
	{`\b(no|some)body\b`, "say who", "nobody knows"},
	{`\bwhat becomes of\b`, "what happens to", "what becomes of a packet"},
	{`\bfrom the inside out\b`, "innermost first", "come from the inside out"},
	{`\btakes? the turn\b`, "acquire the lock", "take takes the turn"},
	{`\bprocessor time\b`, "CPU time", "processor time a packet"},
	{`\b(is|are) a stray\b`, "unverified", "a client is a stray"},
	{`\bwrong rights\b`, "wrong permissions", "pins with wrong rights"},
	{`\bwhat it will be counts\b`, "its final value is used", "what it will be counts"},
	{`\btakes the (longer|more) the\b`, "grows with", "it takes the longer the more bytes"},
	{`\bthose who look on\b`, "say who reads", "copies for those who look on"},
	{`\b(anybody|anyone|no one)'s\b`, "untrusted, or say whose", "the text is anybody's"},
	{`\bas machines come\b`, "by default", "As machines come, it holds 1,000"},
	{`\bthe way up\b`, "delivery to the socket", "charged for the way up"},
	{`\bof one spell\b`, "one interval", "that of one spell"},
	{`\bonly takes away\b`, "can only worsen", "other work only takes away"},
	{`\bfalsif(y|ies)\b`, "sources of error", "What falsifies such measurements"},
	{`\brows can say it\b`, "a table lookup selects it", "rows can say it"},
	{`\ba whole one\b`, "a complete example", "## A whole one"},
	{`\b(it|which) is left(\.| after)`, "is disconnected", "without progress it is left."},
}

// nameWords are words of Go's identifiers, which are looked at as words: SeenUp is "seen up".
var nameWords = []word{
	{`^ups?$|^up for$|\bseen up$`, "punt, or say what is up", "SeenUp"},
	{`\bcame\b`, "received", "asItCame"},
	{`\bpending (check)?sums?\b|\b(check)?sums? pending\b`, "partial", "pendingSum"},
	{`\bways?\b`, "method, route, direction or hook", "theWays"},
	{`\bstrays?\b`, "unverified, unknown or outlier", "stray_frames"},
	{`\bhalves\b`, "say which: sides, words, segments", "twoHalves"},
	{`\bparting\b`, "last, or leaving", "partingEvent"},
	{`\bheader parts?\b`, "run (of fields)", "HeaderPart"},
	{`\bspells?\b`, "interval", "spellTime"},
	{`\bmoney\b`, "credits", "money"},
	{`\b(born|dear|gift)\b`, "first, costly or argument", "tooDear"},
}

// allowed are uses that mean something else, by file.
var allowed = map[string][]string{
	"docs/guide.md": {"also called a super-packet"},
	// counters
	"templates/fastrelay.h": {"goes up before user space", "goes up before and after"},
	"runtime/abi/layout.go": {"goes up before user space", "goes up before and after"},
}

// allowedNames are such identifiers.
var allowedNames = map[string][]string{
	// a device or a neighbour is up
	"examples/paths/router/router.go": {"up"},
	"examples/paths/router/watch.go":  {"up"},
	"internal/lab/namespace_linux.go": {"up"},
	"runtime/tool/testnet/dev.go":     {"up"},
	"experiment/tree/net.go":          {"up"}, // the cable's end towards the root
	// buckets of the example's spec
	"examples/gate/gate/quotas.go": {"Strays"},
	"examples/gate/lab/filter.go":  {"strays"},
}

// skipped are folders and files of Go whose words aren't looked at: caches, the fetched fork of quic-go, and tests.
var skipped = regexp.MustCompile(`/\.[^./][^/]*$|/quic-go$|_test\.go$`)

// compile makes a pattern of which any has to be found.
func compile(list ...word) *regexp.Regexp {
	var all []string
	for _, w := range list {
		all = append(all, strings.ReplaceAll(w.pattern, " ", `(?:\s|//|\*)+`))
	}
	return regexp.MustCompile("(?i)" + strings.Join(all, "|"))
}

// Most texts have none.
var anyWord, anyName = compile(words...), compile(nameWords...)

// look reports the words of a list that a text has, which begins in a line of a file.
func look(t *testing.T, file string, line int, text string, any *regexp.Regexp, list []word) {
	if !any.MatchString(text) {
		return
	}
	for _, w := range list {
		for _, at := range compile(w).FindAllStringIndex(text, -1) {
			t.Errorf("%s:%d: %s: better: %s", file, line+strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]], w.better)
		}
	}
}

// lookAtText looks at the words of a text.
func lookAtText(t *testing.T, file string, line int, text string) {
	for _, a := range allowed[file] {
		text = strings.ReplaceAll(text, a, "")
	}
	look(t, file, line, text, anyWord, words)
}

// lookAtGo looks at the comments, the strings and the declared names of a file of Go that isn't generated.
func lookAtGo(t *testing.T, file string, source []byte) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	if ast.IsGenerated(f) {
		return
	}
	text := func(n ast.Node) {
		from := fset.Position(n.Pos())
		lookAtText(t, file, from.Line, string(source[from.Offset:fset.Position(n.End()).Offset]))
	}
	for _, c := range f.Comments {
		text(c)
	}
	declared := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING {
			text(s)
		}
		for _, x := range declares(n) {
			if id, ok := x.(*ast.Ident); ok && !declared[id.Name] {
				declared[id.Name] = true
				if !slices.Contains(allowedNames[file], id.Name) {
					look(t, file, fset.Position(id.Pos()).Line, lowerWords(id.Name), anyName, nameWords)
				}
			}
		}
		return true
	})
	for _, name := range allowedNames[file] {
		if !declared[name] {
			t.Errorf("%s doesn't declare %s any more: remove it from the list", file, name)
		}
	}
}

// declares returns what a node gives names to.
func declares(n ast.Node) (all []ast.Expr) {
	var ids []*ast.Ident
	switch n := n.(type) {
	case *ast.FuncDecl:
		ids = []*ast.Ident{n.Name}
	case *ast.TypeSpec:
		ids = []*ast.Ident{n.Name}
	case *ast.ValueSpec:
		ids = n.Names
	case *ast.Field:
		ids = n.Names
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE {
			return n.Lhs
		}
	case *ast.RangeStmt:
		if n.Tok == token.DEFINE {
			return []ast.Expr{n.Key, n.Value}
		}
	}
	for _, id := range ids {
		all = append(all, id)
	}
	return all
}

var acronym, hump = regexp.MustCompile(`([A-Z])([A-Z][a-z])`), regexp.MustCompile(`([a-z0-9])([A-Z])`)

// lowerWords are the words of an identifier.
func lowerWords(name string) string {
	name = hump.ReplaceAllString(acronym.ReplaceAllString(name, "$1 $2"), "$1 $2")
	return strings.ToLower(strings.ReplaceAll(name, "_", " "))
}

// What users and those who work on the project read has the field's words.
func TestWords(t *testing.T) {
	for i, w := range slices.Concat(words, nameWords) {
		text := w.example
		if i >= len(words) {
			text = lowerWords(text)
		}
		if len(compile(w).FindAllString(text, -1)) != 1 {
			t.Errorf("%s isn't found in %q", w.pattern, w.example)
		}
	}
	var files []string
	for _, pattern := range []string{
		"*.md", "docs/*.md", "*/README.md", "examples/*/README.md", "examples/*/spec.cue", "templates/*.h",
		"templates/*.tmpl", "templates/*.lua", "spec/schema.cue", "internal/cli/*.txt", "internal/page/page.*",
	} {
		some, err := filepath.Glob(filepath.Join("..", pattern))
		if err != nil || len(some) == 0 {
			t.Fatalf("%s: no files, %v", pattern, err)
		}
		files = append(files, some...)
	}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err == nil && d.IsDir() && skipped.MatchString(filepath.ToSlash(path)):
			return fs.SkipDir
		case strings.HasSuffix(path, ".go") && !skipped.MatchString(path):
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range slices.Compact(slices.Sorted(slices.Values(files))) {
		name := filepath.ToSlash(strings.TrimPrefix(path, ".."+string(filepath.Separator)))
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range allowed[name] {
			if !strings.Contains(string(data), a) {
				t.Errorf("%s doesn't say %q any more: remove it from the list", name, a)
			}
		}
		if strings.HasSuffix(name, ".go") {
			lookAtGo(t, name, data)
		} else {
			lookAtText(t, name, 1, string(data))
		}
	}
}
