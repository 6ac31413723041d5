package docs_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// listed is a package as `go list` has it. Imports are those of the workspace, by their paths in the tree.
type listed struct {
	ImportPath, Name, Doc string
	GoFiles, Imports      []string
}

// workspace returns the packages that internals.md has to name, by their paths in the tree.
func workspace(t *testing.T) map[string]listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Doc,GoFiles,Imports", "work")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list the packages: %v", err)
	}
	const root = "github.com/fastrelay/fastrelay-gen/"
	all := map[string]listed{}
	for in := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := in.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		path := strings.TrimPrefix(p.ImportPath, root)
		module, _, _ := strings.Cut(path, "/")
		user := slices.Contains([]string{"examples", "bench", "experiment"}, module)
		if len(p.GoFiles) == 0 || user && (p.Name == "main" || strings.HasSuffix(path, "relay")) {
			continue
		}
		imports := p.Imports
		p.Imports = nil
		for _, imported := range imports {
			if at, ours := strings.CutPrefix(imported, root); ours {
				p.Imports = append(p.Imports, at)
			}
		}
		all[path] = p
	}
}

// The packages of internals.md are those of the workspace. Each imports only packages above it, of its own layer or of
// one that its layer may import, and layers may import no more than they do.
func TestPackages(t *testing.T) {
	text, err := os.ReadFile("internals.md")
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(text), "\n## How it works inside\n")
	head, _, _ := strings.Cut(page, "\n### ")
	unused := map[string]map[string]bool{} // by layer: those that it may import, until a package does
	for _, m := range regexp.MustCompile(`(?m)^\| ([A-Z][a-z ]+) \| .* \| (.+) \|$`).FindAllStringSubmatch(head, -1) {
		unused[m[1]] = map[string]bool{}
		for name := range strings.SplitSeq(m[2], ", ") {
			unused[m[1]][name] = name != "–"
		}
	}
	all := workspace(t)
	layer, layerOf := "", map[string]string{} // of the packages above
	row := regexp.MustCompile("(?m)^\\| (?:\\*\\*(.+)\\*\\* \\||`([a-z0-9/-]+)` \\| .*) \\|$")
	before, list, _ := strings.Cut(string(text), "\n### Packages\n")
	list, after, _ := strings.Cut(list, "\n## ")
	want := row.ReplaceAllStringFunc(list, func(line string) string {
		m := row.FindStringSubmatch(line)
		if m[1] != "" {
			if layer = m[1]; unused[layer] == nil {
				t.Errorf("internals.md doesn't say what layer %s may import", layer)
			}
			return line
		}
		path := m[2]
		p, ok := all[path]
		if !ok || layerOf[path] != "" {
			t.Errorf("internals.md names %s twice, or there is no such package: remove the line", path)
			return line
		}
		layerOf[path] = layer
		for _, imported := range p.Imports {
			if _, named := all[imported]; !named {
				continue
			}
			of, above := layerOf[imported]
			switch _, may := unused[layer][of]; {
			case !above:
				t.Errorf("%s imports %s, which isn't above it in internals.md", path, imported)
			case of == layer:
			case !may:
				t.Errorf("%s imports %s, but by internals.md layer %s doesn't import %s", path, imported, layer, of)
			default:
				unused[layer][of] = false
			}
		}
		about := regexp.MustCompile(`^(Package|Command) \S+ `).ReplaceAllString(strings.TrimRight(p.Doc, ".:"), "")
		if about == "" || about == p.Doc {
			t.Errorf("the comment of package %s doesn't begin with what it is: %q", path, p.Doc)
		}
		return "| `" + path + "` | " + about + " |"
	})
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if layerOf[path] == "" {
			t.Errorf("internals.md doesn't name %s: add a line in its layer, below all that it imports", path)
		}
	}
	for of, layers := range unused {
		for name, isUnused := range layers {
			if isUnused {
				t.Errorf("no package of layer %s imports one of %s: internals.md says that it may", of, name)
			}
		}
	}
	golden(t, "internals.md", before+"\n### Packages\n"+want+"\n## "+after)
}
