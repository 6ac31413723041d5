package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// receiver is a receiver that `run` has put into a group.
type receiver struct {
	name     string // "subscribers 1": its group and its place on the command line
	to       string // where its copies go; "" where its row doesn't say
	handle   *runtime.AnyReceiver
	refusals []refusal
	first    []any // what its counters, credits, … began with
}

// refusal is a credit or a bucket of a receiver: what it refused, by level of priority.
type refusal struct {
	name    string
	refused func(level int) uint64
}

// openGroups opens the groups with their receivers. A group gets all of them in one step: the first packet finds them
// all.
func openGroups(ctx context.Context, relay *runtime.Relay, in *runInput) ([]*receiver, error) {
	var all []*receiver
	for _, g := range in.groups {
		kind := relay.GroupKind(g.kind)
		group, err := kind.Open(ctx, g.key...)
		var exists *runtime.ExistsError
		if errors.As(err, &exists) && relay.PinPath() != "" { // it was taken over, with its receivers
			continue
		}
		if err != nil {
			return nil, err
		}
		var added []*receiver
		err = group.Change(ctx, func(c *runtime.AnyChange) error {
			for _, want := range g.receivers {
				v, err := c.Add(want.values...)
				if err != nil {
					return err
				}
				for i, first := range want.state {
					begin(v.State(i), first)
				}
				added = append(added, &receiver{
					name: fmt.Sprintf("%s %d", g.kind, want.number), to: destination(kind.Desc(), want.values),
					handle: v, refusals: refusals(kind.Desc(), v), first: want.state,
				})
			}
			return nil
		})
		if err != nil && !in.traffic.refuse(g.receivers[0].text, err) {
			return nil, err
		} else if err == nil {
			all = append(all, added...)
		}
	}
	return all, nil
}

// begin gives a counter its first value, a credit its limit, a bucket its rate; those for each level of priority have a
// list of them.
func begin(state, first any) {
	if first == nil {
		return
	}
	switch s := state.(type) {
	case *runtime.Counter:
		s.Store(first.(uint64))
	case *runtime.Credit:
		s.SetLimit(first.(uint64))
	case []*runtime.Credit:
		for i, c := range s {
			begin(c, first.([]any)[i])
		}
	case *runtime.Bucket:
		rate := first.(runtime.Rate)
		s.SetRate(rate.PerSecond, rate.Burst)
	case []*runtime.Bucket:
		for i, b := range s {
			begin(b, first.([]any)[i])
		}
	}
}

// destination returns the value of the member that copies are sent to.
func destination(g *abi.Group, values []any) string {
	target := map[string]bool{}
	for _, m := range g.Receiver {
		if m.Kind == abi.KindHop {
			target[m.To] = true
		}
	}
	for _, m := range g.Receiver {
		switch {
		case m.Hidden, (member{kind: m.Kind}).isState():
			continue
		case target[m.Name], m.Kind == abi.KindNextHop:
			return fmt.Sprint(values[0])
		}
		values = values[1:]
	}
	return ""
}

// refusals lists what can refuse a copy to a receiver.
func refusals(g *abi.Group, v *runtime.AnyReceiver) []refusal {
	var out []refusal
	i := 0
	for _, m := range visible(g.Receiver) {
		if !m.isState() {
			continue
		}
		if r := refusalOf(m.name, v.State(i)); r != nil {
			out = append(out, *r)
		}
		i++
	}
	return out
}

// refusalOf returns nil for what refuses nothing, such as a counter.
func refusalOf(name string, state any) *refusal {
	switch s := state.(type) {
	case *runtime.Credit:
		return &refusal{name, s.Refused}
	case *runtime.Bucket:
		return &refusal{name, s.Refused}
	case []*runtime.Credit:
		return &refusal{name, sum(s)}
	case []*runtime.Bucket:
		return &refusal{name, sum(s)}
	}
	return nil
}

// sum adds up what credits refused. Each counts by level, although a packet asks the one of its own level as a rule.
func sum[C interface{ Refused(int) uint64 }](all []C) func(int) uint64 {
	return func(level int) (n uint64) {
		for _, c := range all {
			n += c.Refused(level)
		}
		return n
	}
}

// receiverTallies reads how many copies each receiver got, and how many were declined.
func receiverTallies(receivers []*receiver, levels int) ([]tally, error) {
	var out []tally
	for _, v := range receivers {
		u, err := v.handle.Usage()
		if err != nil {
			return nil, err
		}
		label := "copies"
		if v.to != "" {
			label += " to " + v.to
		}
		if u.Declined > 0 {
			label += fmt.Sprintf(", %s declined", thousands(u.Declined))
		}
		for _, r := range v.refusals {
			label += r.text(levels)
		}
		out = append(out, tally{program: v.name, kind: kindReceiver, reason: kindReceiver, doc: label,
			packets: u.Packets,
			bytes:   u.Bytes})
	}
	return out, nil
}

// text is what a credit refused: ", 31 refused by credit", and by priority where there are levels: "(0 0 31 0)".
func (r refusal) text(levels int) string {
	all := uint64(0)
	var each []string
	for level := range max(levels, 1) {
		n := r.refused(level)
		all += n
		each = append(each, thousands(n))
	}
	switch {
	case all == 0:
		return ""
	case len(each) == 1:
		return fmt.Sprintf(", %s refused by %s", thousands(all), r.name)
	}
	return fmt.Sprintf(", %s refused by %s (by priority: %s)", thousands(all), r.name, strings.Join(each, " "))
}

// lostTallies reads how many records of each event were lost.
func lostTallies(relay *runtime.Relay) []tally {
	var out []tally
	for i, e := range relay.Desc().Events {
		out = append(out, tally{program: "events", kind: kindLost, reason: e.Name, doc: "lost: " + e.Name,
			packets: relay.Lost(i + 1)})
	}
	return out
}
