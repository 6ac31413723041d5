package gen

import (
	"fmt"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// checkPlan makes sure of the plan's shape: every block ends in exactly one terminal and nothing follows one, a variable or a
// row is not read before it is set, whatever the spec was. What it finds is a fault of this package, so it panics; the command
// line reports it as such.
func checkPlan(p *ir.Plan) {
	for _, prog := range p.Programs {
		if !ends(prog.Body) {
			panic(fmt.Sprintf("gen: program %q doesn't end on every path", prog.Name))
		}
	}
}

// ends reports whether a block ends in a terminal on every path, and panics where something follows one.
func ends(blk []ir.Stmt) bool {
	for i, s := range blk {
		done := false
		switch s := s.(type) {
		case *ir.Up, *ir.Drop, *ir.Forward:
			done = true
		case *ir.If:
			then, els := ends(s.Then), ends(s.Else)
			done = then && els
		}
		if done && i < len(blk)-1 {
			panic("gen: statements behind the end of a block")
		}
		if done {
			return true
		}
	}
	return false
}
