package bpf

import "github.com/fastrelay/fastrelay-gen/gen/ir"

// A variable that nothing reads (a field that the spec only steps over) is left out. This pass
// finds those that are read.

type readers struct {
	vars  map[*ir.Var]bool
	bases map[*ir.Var]bool // those among them that offsets begin with
}

func readersOf(body []ir.Stmt) readers {
	r := readers{vars: map[*ir.Var]bool{}, bases: map[*ir.Var]bool{}}
	for s := range ir.Stmts(body) {
		for v := range ir.Reads(s) {
			r.vars[v] = true
		}
		for at := range ir.Offsets(s) {
			if at.Base != nil {
				r.bases[at.Base] = true
			}
		}
	}
	return r
}
