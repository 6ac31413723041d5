// Package check looks at a finished plan: it says what the plan needs of a kernel, and makes sure of its shape.
package check

import (
	"fmt"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Needs derives the kernel that the plan needs, and checks it against the floor that the spec demands.
func Needs(plan *ir.Plan, floor *spec.Kernel, diags *diag.List) {
	need := func(major, minor int, what string, pos diag.Pos) {
		if slices.ContainsFunc(plan.Needs, func(n ir.Need) bool { return n.Pos == pos && n.What == what }) {
			return
		}
		plan.Needs = append(plan.Needs, ir.Need{
			Version: ir.Version{Major: major, Minor: minor}, What: what, Pos: pos,
		})
	}
	need(5, 10, "the oldest kernel that the runtime supports", plan.Pos)
	const atomics = "atomic operations that return a value"
	for _, p := range plan.Programs {
		switch p.Hook {
		case ir.Congestion:
			need(6, 4, "hook "+ir.Congestion+" (links of struct_ops)", p.Pos)
		case ir.XDP:
			need(5, 18, "hook "+ir.XDP+" alone (frames of several buffers)", p.Pos)
		}
	}
	for s := range ir.AllStmts(plan) {
		switch s := s.(type) {
		case *ir.Forward:
			if s.Hop != nil {
				need(5, 10, "send (bpf_redirect_neigh)", s.Pos)
			}
		case *ir.FanOut:
			need(5, 17, "fan_out (bpf_loop)", s.Pos)
		case *ir.Translate:
			need(5, 12, "translate ("+atomics+")", s.Pos)
		}
		if fx := ir.EffectsOf(s); fx != nil {
			for _, a := range fx.Admits {
				need(5, 12, "admit ("+atomics+")", a.Pos)
			}
			for _, d := range fx.Allocs {
				need(5, 12, "alloc ("+atomics+")", d.Pos)
			}
		}
	}
	for _, n := range plan.Needs {
		if less(plan.Kernel, n.Version) {
			plan.Kernel = n.Version
		}
	}
	if floor == nil {
		return
	}
	least := ir.Version{Major: floor.Major, Minor: floor.Minor}
	for _, n := range plan.Needs {
		if less(least, n.Version) {
			d := diags.Add(code.Kernel, n.Pos, "the spec demands Linux %d.%d, but this needs %d.%d: %s", floor.Major,
				floor.Minor, n.Version.Major, n.Version.Minor, n.What)
			d.WithRelated(floor.Pos, "demanded here")
			return
		}
	}
	plan.Kernel = least
}

func less(a, b ir.Version) bool {
	return a.Major < b.Major || a.Major == b.Major && a.Minor < b.Minor
}

// Shape makes sure that every block of the plan ends in exactly one terminal on every path and that nothing
// follows one. A plan that doesn't is a fault of the compiler, whatever the spec was; it is reported instead of handed
// on.
func Shape(plan *ir.Plan, diags *diag.List) {
	for p := range plan.Flow() {
		done, problem := Ends(p.Body, false)
		if problem == "" && !done {
			problem = "a path has no end"
		}
		if problem != "" {
			diags.Add(code.Internal, p.Pos, "the plan of program %q is wrong: %s", p.Title(), problem).
				WithHint("this is a fault of fastrelay-gen, not of your spec: please report it with the spec")
		}
	}
}

// Ends reports whether a block ends in a terminal on every path, and what is wrong with it. each says that it is a
// fan-out's, which has terminals of its own.
func Ends(blk []ir.Stmt, each bool) (done bool, problem string) {
	for i, s := range blk {
		switch s := s.(type) {
		case *ir.Punt, *ir.Drop, *ir.Forward, *ir.FanOut, *ir.Copy, *ir.Skip:
			done = true
			switch s.(type) {
			case *ir.Copy, *ir.Skip:
				if !each {
					return true, fmt.Sprintf("statement %T is outside of a fan-out", s)
				}
			default:
				if each {
					return true, fmt.Sprintf("statement %T is in a fan-out", s)
				}
			}
			if f, ok := s.(*ir.FanOut); ok {
				if done, problem := Ends(f.Each, true); problem != "" || !done {
					return true, "in a fan-out: a path has no end, or " + problem
				}
			}
		case *ir.If:
			then, p1 := Ends(s.Then, each)
			els, p2 := Ends(s.Else, each)
			if p1+p2 != "" {
				return false, p1 + p2
			}
			done = then && els
		}
		if done && i < len(blk)-1 {
			return true, fmt.Sprintf("statement %T follows the end", blk[i+1])
		}
	}
	return done, ""
}
