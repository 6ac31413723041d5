package testkernel

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A module that is wanted has to be there, or built in: else the devices that need it would silently not be tested.
func TestMissingModules(t *testing.T) {
	root := t.TempDir()
	var builtIn strings.Builder
	for _, name := range wanted {
		builtIn.WriteString("kernel/net/" + strings.ReplaceAll(name, "_", "-") + ".ko\n")
	}
	file := filepath.Join(root, "modules.builtin")
	if err := os.WriteFile(file, []byte(builtIn.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	modules, err := collectModules(t.Context(), root, filepath.Join(t.TempDir(), "modules"), Source{}.Wanted())
	if err != nil || len(modules) != 0 {
		t.Errorf("all are built in: %v, %v", modules, err)
	}
	without := strings.ReplaceAll(builtIn.String(), "kernel/net/8021q.ko\n", "")
	if err := os.WriteFile(file, []byte(without), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = collectModules(t.Context(), root, filepath.Join(t.TempDir(), "modules"), Source{}.Wanted())
	if err == nil || !strings.HasSuffix(err.Error(), "no modules 8021q") {
		t.Errorf("8021q is missing: %v", err)
	}
}
