package gen

import (
	"fmt"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// This pass derives what the plan needs of a kernel, and makes sure of the plan's shape.

// kernel derives the kernel that the plan needs, and checks it against the floor that the spec demands.
func (c *compiler) kernel() {
	need := func(major, minor int, what string, pos diag.Pos) {
		if slices.ContainsFunc(c.plan.Needs, func(n ir.Need) bool { return n.Pos == pos && n.What == what }) {
			return
		}
		c.plan.Needs = append(c.plan.Needs, ir.Need{
			Version: ir.Version{Major: major, Minor: minor}, What: what, Pos: pos,
		})
	}
	need(5, 10, "the oldest kernel that the runtime supports", c.plan.Pos)
	const atomics = "atomic operations that return a value"
	for _, p := range c.plan.Programs {
		if p.Hook == ir.Congestion {
			need(6, 4, "hook "+ir.Congestion+" (links of struct_ops)", p.Pos)
		}
	}
	for s := range ir.AllStmts(c.plan) {
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
	for _, n := range c.plan.Needs {
		if less(c.plan.Kernel, n.Version) {
			c.plan.Kernel = n.Version
		}
	}
	k := c.spec.Kernel
	if k == nil {
		return
	}
	floor := ir.Version{Major: k.Major, Minor: k.Minor}
	for _, n := range c.plan.Needs {
		if less(floor, n.Version) {
			d := c.diags.Add(code.Kernel, n.Pos, "the spec demands Linux %d.%d, but this needs %d.%d: %s", k.Major,
				k.Minor, n.Version.Major, n.Version.Minor, n.What)
			d.WithRelated(k.Pos, "demanded here")
			return
		}
	}
	c.plan.Kernel = floor
}

func less(a, b ir.Version) bool {
	return a.Major < b.Major || a.Major == b.Major && a.Minor < b.Minor
}

// checkShape makes sure that every block of the plan ends in exactly one terminal on every path and that nothing
// follows one. A plan that doesn't is a fault of this package, whatever the spec was; it is reported instead of handed
// on.
func (c *compiler) checkShape() {
	for _, p := range c.plan.Programs {
		done, problem := ends(p.Body, false)
		if problem == "" && !done {
			problem = "a path has no end"
		}
		if problem != "" {
			c.diags.Add(code.Internal, p.Pos, "the plan of program %q is wrong: %s", p.Name, problem).
				WithHint("this is a fault of fastrelay-gen, not of your spec: please report it with the spec")
		}
	}
}

// ends reports whether a block ends in a terminal on every path, and what is wrong with it. Each says that it is a
// fan-out's, which has terminals of its own.
func ends(blk []ir.Stmt, each bool) (done bool, problem string) {
	for i, s := range blk {
		switch s := s.(type) {
		case *ir.Up, *ir.Drop, *ir.Forward, *ir.FanOut, *ir.Copy, *ir.Skip:
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
				if done, problem := ends(f.Each, true); problem != "" || !done {
					return true, "in a fan-out: a path has no end, or " + problem
				}
			}
		case *ir.If:
			then, p1 := ends(s.Then, each)
			els, p2 := ends(s.Else, each)
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
