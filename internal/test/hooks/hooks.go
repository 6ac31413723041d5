// Package hooks runs tests of relays at tc/ingress, and at XDP in front of that.
package hooks

import (
	"testing"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// Each runs a test at both hooks: at XDP always, or in make test-all alone.
func Each(t *testing.T, always bool, test func(*testing.T, runtime.Hook)) {
	t.Helper()
	needs.Root(t)
	for _, hook := range []runtime.Hook{runtime.HookTC, runtime.HookXDP} {
		t.Run(hook.String(), func(t *testing.T) {
			if hook != runtime.HookTC && !always {
				needs.All(t)
			}
			test(t, hook)
		})
	}
}
