package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/testlink"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

func TestMain(m *testing.M) {
	testlink.Main()
	os.Exit(m.Run())
}

// All streams are whole at both subscribers: with packets that are protected, that aren't, and that are too large.
func TestTwoHops(t *testing.T) {
	needs.Root(t)
	for name, d := range map[string]demo{
		"null protection": {}, "protected": {protected: true}, "large": {large: true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			var out strings.Builder
			d.objects, d.loss, d.seed = 100, 0.02, 7
			err := d.run(ctx, &out)
			t.Log("\n" + out.String())
			if err != nil {
				t.Error(err)
			}
			for _, part := range []string{" 0 packets sent outside", "data of 0 that were lost"} {
				if strings.Contains(out.String(), part) {
					t.Errorf("it says %q", part)
				}
			}
			if large := !strings.Contains(out.String(), "of 0 too large"); large != d.large {
				t.Errorf("packets were too large: %v, and not %v", large, d.large)
			}
		})
	}
}
