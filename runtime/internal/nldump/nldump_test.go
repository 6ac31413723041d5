package nldump

import (
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// A list that changed is read again, but not without end; any other error ends it.
func TestList(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name        string
		interrupted int // so many times
		then, want  error
		reads       int
	}{
		{"at once", 0, nil, nil, 1},
		{"at the third attempt", 2, nil, nil, 3},
		{"never", 100, nil, netlink.ErrDumpInterrupted, attempts},
		{"an error", 1, broken, broken, 2},
	} {
		reads := 0
		list, err := List(func() ([]int, error) {
			if reads++; reads <= tt.interrupted {
				return nil, netlink.ErrDumpInterrupted
			}
			return []int{1, 2}, tt.then
		})
		if !errors.Is(err, tt.want) || reads != tt.reads || err == nil && !slices.Equal(list, []int{1, 2}) {
			t.Errorf("%s: %v, %v after %d attempts", tt.name, list, err, reads)
		}
	}
}
