package specgen_test

import (
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/scanner"
	"go/token"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/test/specgen"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// planted is in all hostile text: it must not be seen outside of comments.
const planted = "PLANTED"

// comments are what its author, or an attacker, may write into a comment of a spec.
var comments = []string{
	"*/ #error PLANTED /*", "/* PLANTED", "*/ PLANTED", `PLANTED \`, `PLANTED ??/`, "#line 1 \"PLANTED\"",
	"go:build PLANTED", "go:embed PLANTED", "line PLANTED:1", "export PLANTED",
	"{{.PLANTED}}", "`PLANTED`", `"PLANTED`, "%s%n%d PLANTED", "PLANTED\u2028import \"C\"", "\u202ePLANTED",
	"PLANTED\x01\x7f", "*\\\u200b/ PLANTED", strings.Repeat("PLANTED ", 500), "$(PLANTED)", "</script>PLANTED",
	"*/int PLANTED(void){return 0;}/*", "*//*PLANTED*//", "+build PLANTED", "Code generated PLANTED; DO NOT EDIT.",
}

// fileNames are names that a spec's file may have.
var fileNames = []string{
	"spec.cue", "PLANTED\"\n#error PLANTED.cue", `PLANTED\`, "*/PLANTED/*.cue", "dir/PLANTED?%s.cue",
	"PLANTED\u202e.cue", "PLANTED\x00.cue", "`PLANTED`.cue",
}

// commented puts hostile comments into a spec: after lines, and in front of them, where they are documentation.
func commented(rnd *rand.Rand, src string) string {
	var out []string
	for _, line := range strings.Split(src, "\n") {
		text := comments[rnd.IntN(len(comments))]
		switch rnd.IntN(6) {
		case 0:
			line += " // " + text
		case 1:
			out = append(out, "//"+text)
		case 2:
			out = append(out, "// "+text)
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

// Whatever the comments of a spec say and its file is called, nothing of it gets into C or Go outside of comments, and
// no comment becomes something that a compiler listens to.
func TestHostileComments(t *testing.T) {
	ctx := context.Background()
	tool, err := clang.Find(ctx)
	if err != nil {
		t.Fatal(err)
	}
	golang, err := specgen.NewGoChecker()
	if err != nil {
		t.Fatal(err)
	}
	built := 0
	specs := needs.Of(30, 300)
	for seed := range uint64(specs) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		src := commented(rnd, string(specgen.Generate(seed)))
		file := fileNames[rnd.IntN(len(fileNames))]
		fail := func(format string, args ...any) {
			t.Errorf("seed %d, file %q: %s", seed, file, fmt.Sprintf(format, args...))
		}
		s, diags := spec.Load(file, []byte(src))
		if diags.Len() > 0 {
			fail("%v", diags.Err())
			continue
		}
		plan, diags := gen.Compile(s)
		if diags.Len() > 0 {
			continue // refused, as it would be without comments
		}
		built++
		lines := strings.Split(src, "\n")
		c, err := bpf.Render(plan, bpf.Options{Quote: func(f string, line int) string {
			if f != file || line > len(lines) {
				return ""
			}
			return lines[line-1]
		}})
		if err != nil {
			fail("%v", err)
			continue
		}
		if bad := outsideC(c.C); bad != "" {
			fail("in C: %s", bad)
		}
		text, err := glue.Render(plan, glue.RenderOptions{Package: "relay", Object: "relay_bpfel.o"})
		if err != nil {
			fail("%v", err)
			continue
		}
		if bad := outsideGo(text); bad != "" {
			fail("in Go: %s", bad)
		}
		if err := golang.Check(text); err != nil {
			fail("in Go: %v", err)
		}
		if built%8 == 0 {
			var stack *clang.StackError // refused, as it would be without comments
			_, _, err := clang.Compile(ctx, c.C, c.Header, clang.Options{Tool: tool})
			if err != nil && !errors.As(err, &stack) {
				fail("%v", err)
			}
		}
	}
	if 3*built < 2*specs {
		t.Errorf("only %d specs were built", built)
	}
}

var (
	cComment   = regexp.MustCompile(`(?s)/\*.*?\*/`)
	cLine      = regexp.MustCompile(`(?m)^#line (\d+) "([^"\\\n]*)"$`)
	directive  = regexp.MustCompile(`^//(go:|line |export |extern |\s*\+build)`)
	openInside = regexp.MustCompile(`(?s)^/\*.*/\*`)
)

// outsideC returns what of the planted text a C compiler would see, or "".
func outsideC(text string) string {
	if i := strings.IndexFunc(text, func(c rune) bool {
		return c != '\t' && c != '\n' && !unicode.IsPrint(c)
	}); i >= 0 {
		return fmt.Sprintf("a character that can't be seen in %q", text[max(0, i-20):i+4])
	}
	if strings.Contains(text, "\\\n") || strings.Contains(text, "??/") {
		return "a continued line"
	}
	for _, c := range cComment.FindAllString(text, -1) {
		if openInside.MatchString(c[2:]) {
			return "a comment in a comment: " + c
		}
	}
	bare := cComment.ReplaceAllString(text, " ")
	for _, m := range cLine.FindAllStringSubmatch(bare, -1) {
		if strings.Contains(m[2], "/") {
			return "a path in " + m[0]
		}
	}
	bare = cLine.ReplaceAllString(bare, "")
	if i := strings.Index(bare, planted); i >= 0 {
		return fmt.Sprintf("%q", bare[max(0, i-60):min(len(bare), i+60)])
	}
	return ""
}

// outsideGo returns what of the planted text a Go compiler or the go command would see, or "".
func outsideGo(text []byte) string {
	fset := token.NewFileSet()
	if _, err := parser.ParseFile(fset, "relay.go", text, parser.ParseComments); err != nil {
		return err.Error()
	}
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile("relay.go", -1, len(text)), text, nil, scanner.ScanComments)
	for {
		_, tok, lit := s.Scan()
		switch {
		case tok == token.EOF:
			return ""
		case tok == token.COMMENT && strings.Contains(lit, planted) && directive.MatchString(lit):
			return "a comment that is listened to: " + lit
		case tok != token.COMMENT && strings.Contains(lit, planted):
			return lit
		}
	}
}
