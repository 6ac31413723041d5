package fuzz

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/sample"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// fanOut saves the state of a one-to-many relay.
func (c *Case) fanOut(plan *ir.Plan, state *sim.Relay) {
	for _, g := range plan.Groups {
		group := state.Group(g.Name)
		for _, k := range group.Keys() {
			rows, _ := group.Get([]byte(k))
			out := CaseGroup{Group: g.Name, Key: hex.EncodeToString([]byte(k)), Receivers: []string{}}
			for _, row := range rows {
				out.Receivers = append(out.Receivers, hex.EncodeToString(row))
			}
			c.Groups = append(c.Groups, out)
		}
	}
	split := sample.FirstBucket(state.Plan())
	for i, credit := range state.Credits {
		out := CaseCredit{Index: i, Limit: credit.Limit, Spent: credit.Spent, Burst: credit.Burst}
		if now := state.World.Clock; i >= split && credit.Spent > now {
			out.Spent, out.Ahead = 0, credit.Spent-now
		}
		if out != (CaseCredit{Index: i}) {
			c.Credits = append(c.Credits, out)
		}
	}
	for _, k := range translationKeys(state) {
		t := state.Translations[k]
		c.Names = append(c.Names, CaseTranslation{k.Namespace, k.Key, t.Value, !t.Done})
	}
}

// translationKeys are the keys of all translations, sorted.
func translationKeys(r *sim.Relay) []sim.TranslationKey {
	return slices.SortedFunc(maps.Keys(r.Translations), func(a, b sim.TranslationKey) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Key, b.Key))
	})
}

// putFanOut makes the state of a one-to-many relay that of a case.
func (c *Case) putFanOut(b *bench, bytes func(string) []byte) error {
	m := b.model
	for _, saved := range c.Groups {
		i := slices.IndexFunc(b.plan.Groups, func(g *ir.Group) bool { return g.Name == saved.Group })
		key := bytes(saved.Key)
		if i < 0 || len(key) != b.plan.Groups[i].Key.Size {
			return fmt.Errorf("case of %s: a key doesn't fit group %q", c.Relay, saved.Group)
		}
		rows := make([][]byte, len(saved.Receivers))
		for j, r := range saved.Receivers {
			if rows[j] = bytes(r); len(rows[j]) != b.plan.Groups[i].Receivers.Value.Size {
				return fmt.Errorf("case of %s: a receiver doesn't fit group %q", c.Relay, saved.Group)
			}
		}
		m.Group(saved.Group).Put(key, rows)
	}
	if err := b.setClock(m); err != nil {
		return err
	}
	for _, saved := range c.Credits {
		if saved.Index >= len(m.Credits) {
			return fmt.Errorf("case of %s: there is no credit %d", c.Relay, saved.Index)
		}
		credit := &m.Credits[saved.Index]
		credit.Limit, credit.Spent, credit.Burst = saved.Limit, saved.Spent, saved.Burst
		if saved.Ahead > 0 {
			credit.Spent = m.World.Clock + saved.Ahead
		}
	}
	for _, saved := range c.Names {
		m.Translations[sim.TranslationKey{Key: saved.Key, Namespace: saved.Namespace}] = sim.Translation{
			Value: saved.Value, Done: !saved.Unfinished,
		}
	}
	return nil
}
