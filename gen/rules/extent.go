package rules

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// This pass finds how much of a packet the rules of a fan-out read or write: so much of it is kept aside while copies
// are made.

// extent returns the offset after the last byte of the packet that Each touches. all is after the last header; if
// something follows a field of variable length, it is all.
func extent(each []ir.Stmt, all ir.Off) ir.Off {
	end, variable := 0, false
	for s := range ir.Stmts(each) {
		for at, n := range ir.Offsets(s) {
			if n > 0 {
				variable = variable || at.Base != nil
				end = max(end, at.Const+n)
			}
		}
		if w := ir.RewriteOf(s); w != nil {
			end = max(end, w.L2)
			variable = variable || len(w.Filled) > 0 ||
				slices.ContainsFunc(w.Stores, func(c ir.Store) bool { return c.Width != nil })
		}
	}
	if variable {
		return all
	}
	return ir.Off{Const: end}
}
