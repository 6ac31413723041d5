package sim_test

import (
	"bytes"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// A watcher knows the key of a lookup before it is made, may put the row there, and is not held to what has no meaning
// yet.
func TestWatch(t *testing.T) {
	tp := newTurnPlan()
	r := openTurn(t, tp)
	key := []byte(r.Table("by_channel").Keys()[0])
	value := r.Table("by_channel").Get(key)
	r.Table("by_channel").Delete(key)
	lookups := 0
	r.Watch = func(s ir.Stmt, m sim.Moment) {
		l, ok := s.(*ir.Lookup)
		if !ok {
			return
		}
		lookups++
		if got, ok := m.Key(&tp.table.Key, l.Key); !ok || !bytes.Equal(got, key) {
			t.Errorf("the key is %x, want %x", got, key)
		}
		peer := &ir.RowMember{Row: l.Row, Member: tp.table.Value.Members[1], Component: ir.PortOf}
		if v, ok := m.Uint(peer); ok {
			t.Errorf("a row that is not found has port %d", v)
		}
		if m.Has(tp.table, key) {
			t.Error("the row is there before it was put")
		}
		r.Table("by_channel").Put(key, value)
	}
	in := sim.Packet{Data: channelData([]byte("hello"), 3, 0, true)}
	if res, err := r.Run("to_peer", in); err != nil || res.Verdict != sim.VerdictSent || lookups != 1 {
		t.Errorf("%s %s, %v, %d lookups", res.Verdict, res.Reason, err, lookups)
	}
	r.Watch = nil
	r.ClearCounts()
	if n := r.Reasons[r.Tally(r.Plan().Programs[0], turnSent)].Packets; n != 0 {
		t.Errorf("%d packets are counted, and none is known of", n)
	}
	if res, err := r.Run("to_peer", in); err != nil || res.Verdict != sim.VerdictSent {
		t.Errorf("%s %s, %v", res.Verdict, res.Reason, err)
	}
}
