package cli

import (
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// groupInput is a group that `run` opens, with its receivers in the order of the command line.
type groupInput struct {
	kind      string
	key       []any // in the order of the key's members
	receivers []receiverInput
}

// receiverInput is one receiver. Counters, credits, buckets and translations are no values of its row: what they
// begin with is set before the first packet comes.
type receiverInput struct {
	number int    // among those of its kind of group, from 1 on
	values []any  // in the order of the plain members
	state  []any  // in the order of the others; nil: as it is, 0
	text   string // as it was given
}

// receiverForm is said wherever the form of --receiver is wrong.
const receiverForm = "for example --receiver 'subscribers=publisher=192.0.2.2:5004 ssrc=7 / " +
	"local=192.0.2.1:5004 remote=203.0.113.2:6000'"

// receiver reads 'GROUP=KEY=V KEY=V / FIELD=V FIELD=V'. The key is before the slash, since a key and a receiver may
// have members of the same name. Receivers with the same key are one group.
func (in *runInput) receiver(desc *abi.Desc, text string) error {
	kind, rest, ok := strings.Cut(text, "=")
	words := strings.Fields(rest)
	slash := slices.Index(words, "/")
	if !ok || strings.ContainsAny(kind, " /") || slash < 0 {
		return usage("--receiver %q isn't 'GROUP=KEY=VALUE… / FIELD=VALUE…'", text).hint(receiverForm)
	}
	var names []string
	for i := range desc.Groups {
		g := &desc.Groups[i]
		if g.Name != kind {
			names = append(names, g.Name)
			continue
		}
		key, err := receiverKey(g, words[:slash])
		if err != nil {
			return err
		}
		v, err := receiverValues(g, words[slash+1:])
		if err != nil {
			return err
		}
		v.number, v.text = 1, text
		for _, other := range in.groups {
			if other.kind == kind {
				v.number += len(other.receivers)
			}
		}
		group := in.group(kind, key)
		group.receivers = append(group.receivers, *v)
		return nil
	}
	return unknown("group", kind, names)
}

func receiverKey(g *abi.Group, words []string) ([]any, error) {
	members := visible(g.Key)
	key, err := parseMembers("the key of group "+g.Name, members, words)
	if err != nil {
		return nil, err
	}
	for i, m := range members {
		if key[i] == nil {
			return nil, usage("--receiver %s has no %s before the /", g.Name, m.name).
				hint("the key of %s is %s", g.Name, memberNames(members))
		}
	}
	return key, nil
}

func receiverValues(g *abi.Group, words []string) (*receiverInput, error) {
	members := visible(g.Receiver)
	all, err := parseMembers("receiver of "+g.Name, members, words)
	if err != nil {
		return nil, err
	}
	v := &receiverInput{}
	for i, m := range members {
		if all[i] == nil && !m.mayBeLeftOut() {
			return nil, usage("--receiver %s has no %s after the /", g.Name, m.name).
				hint("a receiver of %s has %s", g.Name, memberNames(members))
		}
		if m.isState() {
			v.state = append(v.state, all[i])
		} else {
			v.values = append(v.values, all[i])
		}
	}
	return v, nil
}

// group returns the group with a key, a new one where there is none yet.
func (in *runInput) group(kind string, key []any) *groupInput {
	for _, g := range in.groups {
		if g.kind == kind && join(g.key) == join(key) {
			return g
		}
	}
	in.groups = append(in.groups, &groupInput{kind: kind, key: key})
	return in.groups[len(in.groups)-1]
}
