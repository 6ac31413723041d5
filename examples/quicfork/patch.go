package quicfork

import (
	"fmt"
	"regexp"
	"strings"
)

// Patch applies a patch in the unified format. What precedes its first "--- a/" line says why it is there. Line numbers
// don't count: the lines that a hunk begins from have to occur exactly once in the file, so that each patch can be
// written, and read, without the ones before it. Nothing else is forgiven.
func (t Tree) Patch(text string) error {
	sections := header.Split(text, -1)
	names := header.FindAllStringSubmatch(text, -1)
	if len(names) == 0 {
		return fmt.Errorf("it has no line that begins with --- a/")
	}
	for i, name := range names {
		old, ok := t[name[1]]
		if !ok {
			return fmt.Errorf("there is no file %s", name[1])
		}
		file := string(old)
		hunks := strings.Split("\n"+sections[i+1], "\n@@")
		for j, hunk := range hunks[1:] {
			var err error
			if file, err = apply(file, hunk); err != nil {
				return fmt.Errorf("%s, hunk %d: %w", name[1], j+1, err)
			}
		}
		t[name[1]] = []byte(file)
	}
	return nil
}

var header = regexp.MustCompile(`(?m)^--- a/(\S+)\n\+\+\+ b/\S+\n`)

// apply applies a hunk without its @@.
func apply(file, hunk string) (string, error) {
	_, body, _ := strings.Cut(hunk, "\n")
	var before, after strings.Builder
	for line := range strings.Lines(strings.TrimSuffix(body, "\n") + "\n") {
		text := line[1:]
		switch line[0] {
		case ' ':
			before.WriteString(text)
			after.WriteString(text)
		case '-':
			before.WriteString(text)
		case '+':
			after.WriteString(text)
		case '\n': // an empty line of context whose blank was cut off
			before.WriteString(line)
			after.WriteString(line)
		default:
			return "", fmt.Errorf("a line begins with %q: only a blank, + or - can", line[0])
		}
	}
	switch n := strings.Count("\n"+file, "\n"+before.String()); {
	case before.Len() == 0:
		return "", fmt.Errorf("it has no line of context")
	case n != 1:
		return "", fmt.Errorf("its lines occur %d times, not once:\n%s", n, before.String())
	}
	return strings.Replace("\n"+file, "\n"+before.String(), "\n"+after.String(), 1)[1:], nil
}
