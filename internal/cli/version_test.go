package cli

import (
	"runtime/debug"
	"testing"
)

func TestModuleVersion(t *testing.T) {
	commit := []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "abc123"}}
	for _, test := range []struct {
		info debug.BuildInfo
		want string
	}{
		{debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}}, "v0.1.0"},
		{debug.BuildInfo{Main: debug.Module{Version: "v0.1.1-0.20261122064300-abc123+dirty"}, Settings: commit},
			"v0.1.1-0.20261122064300-abc123+dirty"},
		{debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: commit}, "(devel) abc123"},
		{debug.BuildInfo{}, "(devel)"},
	} {
		if got := moduleVersion(&test.info); got != test.want {
			t.Errorf("%+v: %q, want %q", test.info, got, test.want)
		}
	}
}
