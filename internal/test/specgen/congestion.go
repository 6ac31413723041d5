package specgen

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// This file makes relays that are a congestion control: their stacks are a socket and what happens to it, and their
// rules set decisions and change state.

// congests reports whether a seed's spec is one of these. It is drawn apart from all else, so that the others are what
// they were.
func congests(seed uint64) bool { return rand.New(rand.NewPCG(seed, 0xc0c)).IntN(8) == 0 }

// congestion makes such a spec, in the place of headers and programs of packets.
func (g *generator) congestion() (programs []string) {
	g.settings = g.someSettings()
	events := []*header{stdInit, stdAck, stdLoss, stdRelease}
	g.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	names := g.namer()
	for len(events) > 0 && (len(programs) == 0 || !g.one(4)) {
		n := g.between(1, min(2, len(events)))
		programs = append(programs, g.control(names.next(), events[:n]))
		events = events[n:]
	}
	return programs
}

// control makes a program that runs at some events.
func (g *generator) control(name string, events []*header) string {
	names := g.namer("socket", "init", "ack", "loss", "release")
	stack := []*entry{g.entry(names, false, stdSocket), g.entry(names, false, events...)}
	s := g.newScope(stack, names)
	s.hook, s.socket = "tcp/congestion", true
	s.refs = slices.DeleteFunc(s.refs, func(r ref) bool { return strings.HasPrefix(r.text, "skb.") })
	return s.program(name)
}

// rowType is a type that rows of a program of a socket may have: they are copied to its stack.
func rowType(t typ) bool { return t.kind == intKind || t.kind == boolKind || t.kind >= counterKind }

// decide makes what a rule does.
func (s *scope) decide() (out []string) {
	s = s.clone() // names that actions give are known in this rule only
	out = s.effects(false)
	seen := map[string]bool{}
	for range s.IntN(3) {
		r, ok := s.choose(func(r ref) bool {
			return r.at != nil && !seen[r.text] && !slices.ContainsFunc(r.flds, func(f *field) bool {
				return !slices.Contains(decisions, f)
			})
		})
		if ok {
			seen[r.text] = true
			out = append(out, fmt.Sprintf("{set: %q: %s}", r.text, s.quoted(s.stored(narrowest(r)))))
		}
	}
	if s.one(4) {
		out = append(out, s.count())
	}
	if s.one(8) {
		out = append(out, s.learn())
	}
	if len(out) == 0 || s.one(3) {
		out = append(out, `"pass"`)
	}
	return out
}

// More standard headers.
var (
	stdSocket = std("socket", []*field{
		bits("event", 8), bits("state", 8), bits("limited", 8), bits("ssthresh", 32), bits("id", 64),
		addr("local_addr", 16), addr("remote_addr", 16), bits("local_port", 16), bits("remote_port", 16),
		bits("cwnd", 32), bits("pacing", 64), bits("rate", 64), bits("in_flight", 32), bits("srtt", 32),
		bits("min_rtt", 32), bits("rtt", 32), bits("delivered", 32), bits("lost", 32), bits("losses", 32),
		bits("round", 32), bits("mss", 32), bits("acked", 32),
	}, []*part{
		{name: "local", addr: "local_addr", port: "local_port"},
		{name: "remote", addr: "remote_addr", port: "remote_port"},
	})
	stdInit = std("init", []*field{bits("cwnd", 32), bits("pacing", 64)}, nil, afterSocket)
	stdAck  = std("ack", []*field{
		bits("cwnd", 32), bits("begin", 8), bits("over", 8), bits("pacing", 64), bits("acked", 32), bits("lost", 32),
		bits("min_rtt", 32), bits("time", 32),
	}, nil, afterSocket)
	stdLoss    = std("loss", []*field{bits("ssthresh", 32)}, nil, afterSocket)
	stdRelease = std("release", nil, nil, afterSocket)

	afterSocket = &after{"socket", []string{"event"}, nil}

	// decisions are the fields that rules may set.
	decisions = slices.Concat(stdInit.fields, stdAck.fields[:2], stdAck.fields[3:4], stdLoss.fields)
)
