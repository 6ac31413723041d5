package bpf

import (
	"maps"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// A path becomes several short functions, which clang puts together again (they are inlined):
//
//   - a branch that ends the packet's way, and has more than a few statements, is a function of its own;
//   - if a function has become long, the rest goes on in the next one, if possible where a header begins.
//
// Both end in return, so that nothing comes back: what a function needs is what its parameters say.

// topic is the name of what goes on in the next function, by its first statement; path: the names of functions that go
// on from there begin with it.
func (f *function) topic(s ir.Stmt) (name string, path bool) {
	switch s := s.(type) {
	case *ir.NeedBytes:
		if s.Run != nil {
			return s.Run.Header, true
		}
	case *ir.Guard:
		if s.Reason >= 0 && s.Reason < len(f.prog.ir.Reasons) {
			return f.prog.ir.Reasons[s.Reason].Name, false
		}
	case *ir.Lookup:
		return s.Row.Table.Name, false
	case *ir.If:
		if s.Note == ruleNote {
			return "rules", false
		}
		if s.Note != "" {
			return s.Note, false
		}
	}
	for v := range ir.Sets(s) {
		return plain(v.Name), false
	}
	return "further", false
}

const (
	branchSize = 12 // statements from which on a branch is a function
	restSize   = 10 // statements that are worth a function
	longLines  = 45 // lines after which a function ends where a header begins
	maxLines   = 52 // lines after which it ends anywhere
)

// ends reports whether all ways through a block end the packet's way.
func ends(block []ir.Stmt) bool {
	if len(block) == 0 {
		return false
	}
	switch s := block[len(block)-1].(type) {
	case *ir.Punt, *ir.Drop, *ir.Forward, *ir.FanOut, *ir.Copy, *ir.Skip:
		return true
	case *ir.If:
		return ends(s.Then) && ends(s.Else)
	}
	return false
}

// size is how many lines a block takes, roughly.
func size(block []ir.Stmt) (n int) {
	for _, s := range block {
		switch s := s.(type) {
		case *ir.If:
			n += 1 + size(s.Then) + size(s.Else)
		case *ir.Lookup:
			n += 4 + len(s.Key)
		case *ir.Learn:
			n += 4 + len(s.Key) + len(s.Value)
		default:
			n++
		}
	}
	return n
}

// long reports whether the statements that follow should be in a function of their own.
func (f *function) long(rest []ir.Stmt) bool {
	if !f.last || f.whole || size(rest) < restSize {
		return false
	}
	_, header := rest[0].(*ir.NeedBytes)
	return f.height >= longLines && (header && len(rest) > 1 || f.height >= maxLines)
}

// goOn has statements that end the packet's way in a function of their own. It returns the call.
func (f *function) goOn(name string, path bool, block []ir.Stmt) c.Expr {
	g := f.prog.function()
	g.fan, g.turn, g.makes = f.fan, f.turn, f.makes
	g.scope = f.scope
	g.known, g.reason = f.known.clone(), f.reason
	g.declared, g.rowsDeclared, g.given = maps.Clone(f.declared), maps.Clone(f.rowsDeclared), map[*ir.Var]bool{}
	for v := range f.known.bytes {
		g.given[v] = true
	}
	g.path, g.name = f.path, f.path+"_"+ident(name)
	if path {
		g.path = g.name
	}
	g.name = f.prog.unique(g.name)
	g.last = true
	g.statements(block)
	result := f.prog.verdict()
	if g.turn != nil {
		result = "long"
	}
	f.timed, g.timed = f.timed || g.timed, false
	return f.callTo(g, result, f.makes)
}

// callTo puts a function that f ends in in front of it. It returns the call.
func (f *function) callTo(g *function, result c.Type, to *[]c.Top) c.Expr {
	var params []c.Param
	if g.turn != nil && c.Count(g.body, same) > 0 {
		params = append(params, g.turn.sameParam())
	}
	if to == nil {
		to = &f.prog.functions
	}
	made, args := g.assemble(result, g.name, params)
	*to = append(*to, made)
	for range params {
		args = append(args, same)
	}
	return c.Do(g.name, args...)
}

// declares makes sure that variables and rows are declared which statements set; those are in blocks of their own. What
// a block sets that ends the packet's way, only that block reads.
func (f *function) declares(blocks ...[]ir.Stmt) {
	for _, block := range blocks {
		if ends(block) {
			continue
		}
		for _, s := range block {
			for v := range ir.Sets(s) {
				if f.prog.read.vars[v] {
					f.declare(noPos, v)
				}
			}
			if s, ok := s.(*ir.Lookup); ok {
				f.declareRow(s.Row)
			}
			for inner := range ir.Blocks(s) {
				f.declares(*inner)
			}
		}
	}
}

// declareRow declares a row, unless it is declared.
func (f *function) declareRow(r *ir.Row) {
	if f.rowsDeclared[r] {
		return
	}
	f.rowsDeclared[r] = true
	f.add(variable(c.Pointer(c.StructType(f.vals[r.Table])), f.row(r)))
}
