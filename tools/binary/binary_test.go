package binary

import (
	"strings"
	"testing"
)

func TestDynamicBinaryIsRefused(t *testing.T) {
	if err := static("/bin/sh"); err == nil || !strings.Contains(err.Error(), "is not a static binary") {
		t.Errorf("/bin/sh: %v", err)
	}
}
