package server

import (
	"testing"
	"time"
)

// A level is in use from its first packet on, until nothing of it came for a while.
func TestLevelsInUse(t *testing.T) {
	f := &feed{urgent: levels - 1}
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	for _, c := range []struct{ ms, use, want int }{
		{0, 3, 3}, {10, 2, 2}, {500, 3, 2}, {1000, 0, 0}, {1005, 2, 0}, {2000, -1, 0}, {2001, -1, 2}, {2006, -1, 3},
		{2007, 1, 1}, {9000, -1, 3},
	} {
		if c.use >= 0 {
			f.use(c.use, at(c.ms))
		}
		f.idle(at(c.ms))
		if f.urgent != c.want {
			t.Errorf("after %d ms the most urgent level is %d, want %d", c.ms, f.urgent, c.want)
		}
	}
}
