package resetkey

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A key is made once, for its owner alone, and is the same for the next process.
func TestKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	one, err := File(file)
	if err != nil {
		t.Fatal(err)
	}
	two, err := File(file)
	if err != nil || *one != *two || *one == [32]byte{} {
		t.Fatalf("%x, then %x, %v", one, two, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
	left, err := filepath.Glob(file + "*")
	if err != nil || len(left) != 1 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

// What isn't a key, or isn't a secret, is refused; an error never shows what the file has.
func TestWrongKeys(t *testing.T) {
	secret := strings.Repeat("ab", 32)
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		says string
	}{
		"open to all": {secret, 0o604, "chmod o="}, "empty": {"", 0o600, "64 hexadecimal digits"},
		"too short": {secret[2:], 0o600, "64 hexadecimal digits"},
		"too long":  {secret + "ab", 0o600, "64 hexadecimal digits"},
		"endless":   {strings.Repeat(secret, 100), 0o600, "64 hexadecimal digits"},
		"no hex":    {strings.Repeat("x", 64), 0o600, "64 hexadecimal digits"},
	} {
		file := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(file, []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, c.mode); err != nil { // whatever the umask is
			t.Fatal(err)
		}
		if _, err := File(file); err == nil || !strings.Contains(err.Error(), c.says) ||
			strings.Contains(err.Error(), "abab") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := File(filepath.Join(t.TempDir(), "no folder", "key")); err == nil {
		t.Error("a key is made where there is no folder")
	}
}
