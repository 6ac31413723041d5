package ir

import "slices"

// ReasonID is what a reason says of a packet. It has the same number in all programs of a relay.
type ReasonID struct {
	Name string
	Kind ReasonKind
}

// Tallies says where the reasons of a plan's programs are counted: in one array, where each program has an entry for
// each reason of the relay, of which it uses its own.
type Tallies struct {
	// Reasons are those of all programs. A reason's number is its index here; 0 is none.
	Reasons  []ReasonID
	numbers  map[ReasonID]int
	bases    map[*Program]int
	programs []*Program
}

// hops are the reasons for which a packet can't leave through a hop, and lookups those of a hop that is looked up.
var (
	hops = []string{
		"too_big", "no_route", "local", "unreachable", "blackhole", "prohibit", "xfrm", "rule", "encap", "no_neighbour",
	}
	lookups = []string{"not_forwarded", "forwarding_off"}
	failed  = []ReasonID{{"fault", Fault}, {"no_memory", Punted}}
)

// chain are reasons that follow each other wherever one of them is: helpers of generated programs add to the first.
func chain(id ReasonID) (out []ReasonID) {
	if slices.Contains(failed, id) {
		return failed
	}
	for _, names := range [][]string{hops, lookups} {
		if slices.Contains(names, id.Name) {
			for _, name := range names {
				out = append(out, ReasonID{name, id.Kind})
			}
			return out
		}
	}
	return []ReasonID{id}
}

// IndexOf is where a program has the reason that is r in another one of the relay; -1: it doesn't.
func (p *Program) IndexOf(r *Reason) int {
	return slices.IndexFunc(p.Reasons, func(o *Reason) bool { return o.Name == r.Name && o.Kind == r.Kind })
}

// Tallies numbers the reasons of a plan. What a program counts at XDP are reasons of the one at tc/ingress.
func (p *Plan) Tallies() *Tallies {
	c := &Tallies{
		Reasons: []ReasonID{{}}, numbers: map[ReasonID]int{}, bases: map[*Program]int{}, programs: p.Programs,
	}
	for _, prog := range p.Programs {
		for _, r := range prog.Reasons {
			for _, id := range chain(ReasonID{r.Name, r.Kind}) {
				if c.numbers[id] == 0 {
					c.numbers[id] = len(c.Reasons)
					c.Reasons = append(c.Reasons, id)
				}
			}
		}
	}
	for _, prog := range p.Programs {
		c.bases[prog] = len(c.bases) * len(c.Reasons)
	}
	for prog := range p.Flow() {
		if _, known := c.bases[prog]; !known {
			c.bases[prog] = len(c.bases) * len(c.Reasons)
		}
	}
	return c
}

// Base is where a program's entries begin.
func (c *Tallies) Base(p *Program) int { return c.bases[p] }

// Number is the number of a program's i-th reason.
func (c *Tallies) Number(p *Program, i int) int {
	r := p.Reasons[i]
	return c.numbers[ReasonID{r.Name, r.Kind}]
}

// Of is the entry of a program's i-th reason.
func (c *Tallies) Of(p *Program, i int) int { return c.bases[p] + c.Number(p, i) }

// Len is how many entries there are.
func (c *Tallies) Len() (n int) {
	for _, p := range c.programs {
		for i := range p.Reasons {
			n = max(n, max(c.Base(p), c.Base(p.XDP))+c.Number(p, i)+1)
		}
	}
	return n
}
