package lua

import (
	"fmt"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ranges"
)

// preference is a set of integers as Wireshark's preferences have it: "7,53-60".
func preference(s ranges.Set) string {
	var out []string
	for _, r := range s.Ranges() {
		if r.Min == r.Max {
			out = append(out, fmt.Sprint(r.Min))
		} else {
			out = append(out, fmt.Sprintf("%d-%d", r.Min, r.Max))
		}
	}
	return strings.Join(out, ",")
}

// luaTable is a set of integers as a table of Lua.
func luaTable(s ranges.Set) string {
	var out []string
	for _, r := range s.Ranges() {
		out = append(out, fmt.Sprintf("{%d, %d}", r.Min, r.Max))
	}
	return "{" + strings.Join(out, ", ") + "}"
}
