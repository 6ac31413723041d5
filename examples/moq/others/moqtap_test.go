package others

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestRequests has moqtap-client fetch, subscribe with filters, and ask for what isn't there, while a publisher of another
// program has sent three groups of six objects, in subgroups of the even and the odd ones.
func TestRequests(t *testing.T) {
	build(t, aiomoqt, moqtap)
	for _, c := range clients[2:] {
		t.Run(c.String(), func(t *testing.T) {
			r, _ := inside(t, local)
			p := c.publishes(t, here, r.Addr(), "live", 0)
			first := c.subscribes(t, here, r.Addr(), "live", 4*6)
			p.says("subscribed")
			sent := p.sends(3, 6, 1000)
			first.gets(sent)
			at := func(group, object int) string {
				i := slices.IndexFunc(sent, func(line string) bool {
					f := strings.Fields(line)
					return f[0] == fmt.Sprint(group) && f[2] == fmt.Sprint(object)
				})
				return sent[i]
			}
			asks := func(args ...string) *peer { return c.start(t, here, r.Addr(), args...) }

			fetch := asks("fetch", "live", "live", "0.4-1.1")
			fetch.says("ok")
			fetch.gets([]string{at(0, 4), at(0, 5), at(1, 0), at(1, 1)})
			fetch.says("fetched")

			asks("status", "live", "live").says("ok")
		})
	}
}
