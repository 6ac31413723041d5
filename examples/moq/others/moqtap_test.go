package others

import (
	"slices"
	"strings"
	"testing"
)

// TestRequests has moqtap-client fetch, subscribe with filters, and ask for what isn't there, while aiomoqt publishes
// groups of six objects, of which three come before.
func TestRequests(t *testing.T) {
	build(t, aiomoqt, moqtap)
	for _, c := range clients[2:] {
		t.Run(c.String(), func(t *testing.T) {
			r, _ := inside(t, local)
			p := aiomoqtLate.publishes(t, here, r.Addr(), "live", 0)
			all := c.subscribes(t, here, r.Addr(), "live", 4*6)
			p.says("subscribed")
			sent := p.sends(3, 6, 1000)
			all.gets(sent)
			asks := func(command, track string, more ...string) *peer {
				t.Helper()
				return c.start(t, here, r.Addr(), append([]string{command, "live", track}, more...)...)
			}
			fetches := func(objects []string, of ...string) {
				t.Helper()
				p := asks("fetch", "live", of...)
				p.says("ok")
				p.gets(objects)
				p.says("fetched")
			}
			fetches(sent[2:4], "0.2-0.3")
			fetches(sent[4:8], "0.4-1.1")
			fetches(sent[11:], "1.5-9.0")
			asks("fetch", "live", "5.0-6.0").says("error 0x11") // INVALID_RANGE
			for _, command := range []string{"fetch 0.0-1.0", "status", "subscribe 1"} {
				words := strings.Fields(command)
				asks(words[0], "none", words[1:]...).says("error")
			}
			asks("status", "live").says("ok")

			// Those who come late get the largest group from its beginning, and what follows, as far as it passes.
			late := map[*peer]string{all: "012345"}
			begins := func(ids string, from []string, filters ...string) {
				t.Helper()
				from = only(ids, from)
				s := c.subscribes(t, here, r.Addr(), "live", len(from)+len(ids), filters...)
				s.gets(from)
				late[s] = ids
			}
			begins("012345", sent[12:])
			begins("012345", sent[12:], "from=0.3")
			begins("012345", sent[12:], "groups=1-3")
			begins("012345", nil, "next")
			if c.draft == "22" {
				fetches(sent)
				begins("045", sent[12:], "26=0-0,4-5")     // OBJECTID_FILTER
				begins("0", sent[12:], "25=0-0", "26=0-0") // SUBGROUP_FILTER
				begins("012345", sent[12:], "27=0-255")    // PRIORITY_FILTER
				s := asks("subscribe", "live", "6", "next", "fill=0.3-1.2")
				s.says("ok")
				s.gets(sent[3:9])
				s.says("fetched")
				late[s] = "012345"
				asks("subscribe", "live", "1", "26=0-0", "26=4-5").says("error 0x36") // INVALID_FILTER
			}
			next := p.sends(1, 6, 1000)
			p.tell("done")
			for s, ids := range late {
				s.gets(only(ids, next))
				s.says("done 0x2")
			}
		})
	}
}

// only are objects with some IDs of one digit.
func only(ids string, objects []string) []string {
	return slices.DeleteFunc(slices.Clone(objects), func(line string) bool {
		return !strings.Contains(ids, strings.Fields(line)[2])
	})
}

// TestViolations has moqtap-client's transport and codec break rules of the draft: the relay closes the session with
// the draft's code.
func TestViolations(t *testing.T) {
	build(t, moqtap)
	for _, c := range []client{{"moqtap", "18", false}, {"moqtap", "22", false}} {
		t.Run(c.String(), func(t *testing.T) {
			r, _ := inside(t, local)
			for rule, code := range map[string]string{
				"second-control-stream": "3", "second-setup": "3", "setup-as-request": "3", "truncated-datagram": "3",
				"request-on-control-stream": "3", "odd-request-id": "4", "same-request-id": "4",
			} {
				t.Run(rule, func(t *testing.T) {
					c.start(t, here, r.Addr(), "violate", rule).says("SessionClosed { code: " + code + ",")
				})
			}
		})
	}
}
