package kept

import (
	"os"
	"path/filepath"
	"testing"
)

// tree is a module with a package, one that it imports, and one that it doesn't.
func tree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":            "module example.com/m\n\ngo 1.26\n",
		"go.sum":            "",
		"a/a.go":            "package a\n\nimport _ \"example.com/m/b\"\n",
		"a/a_test.go":       "package a\n",
		"a/testdata/in.txt": "1\n",
		"b/b.go":            "package b\n",
		"c/c.go":            "package c\n",
		"docs/page.md":      "text\n",
	} {
		write(t, filepath.Join(root, name), text)
	}
	return root
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func key(t *testing.T, root string) *Key {
	t.Helper()
	k, err := NewKey("check")
	if err != nil {
		t.Fatal(err)
	}
	if err := k.AddPackages(t.Context(), root, ".", true, nil, "./a"); err != nil {
		t.Fatal(err)
	}
	if err := k.AddTree(root, "docs"); err != nil {
		t.Fatal(err)
	}
	return k
}

// A result is found again until something changes that it depends on.
func TestChanges(t *testing.T) {
	t.Setenv(dirVar, filepath.Join(t.TempDir(), "kept"))
	root := tree(t)
	first := key(t, root)
	if _, ok := first.Load(); ok {
		t.Fatal("a result that nobody has saved")
	}
	if err := first.Save([]byte("passed")); err != nil {
		t.Fatal(err)
	}
	if got, ok := key(t, root).Load(); !ok || string(got) != "passed" {
		t.Fatalf("%q, %v", got, ok)
	}
	for name, found := range map[string]bool{
		"a/a.go": false, "a/a_test.go": false, "a/testdata/in.txt": false, "b/b.go": false, "go.mod": false,
		"docs/page.md": false, "c/c.go": true, "README.md": true,
	} {
		file := filepath.Join(root, name)
		was, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		write(t, file, string(was)+"\n")
		if _, ok := key(t, root).Load(); ok != found {
			t.Errorf("after a change of %s: found %v, want %v", name, ok, found)
		}
		write(t, file, string(was))
	}
}

// Without a folder nothing is kept, and nothing fails.
func TestNowhere(t *testing.T) {
	t.Setenv(dirVar, "")
	k := key(t, tree(t))
	if err := k.Save(nil); err != nil {
		t.Fatal(err)
	}
	if _, ok := k.Load(); ok {
		t.Error("something was kept")
	}
}

// Another kind of check, and what is added to a copy, make another key.
func TestKeys(t *testing.T) {
	t.Setenv(dirVar, t.TempDir())
	root := tree(t)
	k := key(t, root)
	if err := k.Save(nil); err != nil {
		t.Fatal(err)
	}
	c, err := k.Copy()
	if err != nil {
		t.Fatal(err)
	}
	c.Add("more", nil)
	if _, ok := c.Load(); ok {
		t.Error("what a copy has more makes no difference")
	}
	if _, ok := k.Load(); !ok {
		t.Error("a copy changes its original")
	}
	other, err := NewKey("another check")
	if err == nil {
		err = other.AddPackages(t.Context(), root, ".", true, nil, "./a")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := other.AddTree(root, "docs"); err != nil {
		t.Fatal(err)
	}
	if _, ok := other.Load(); ok {
		t.Error("another check's result is taken")
	}
}
