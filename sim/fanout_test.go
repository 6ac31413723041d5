package sim_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// Every receiver gets its own copy, in the order of the group, made of the packet that came; that packet goes on as it
// came.
func TestFanOut(t *testing.T) {
	fp := newFanPlan()
	unresolved := subscriber{remote: "203.0.113.4:6004", layer: 3, hop: sim.Hop{State: ir.HopNeighbour, MTU: 1500}}
	narrow := subscriber{remote: "203.0.113.5:6005", layer: 3, hop: sim.Hop{State: ir.HopDirect, MTU: 47}}
	r := fp.open(t, clara, bert, anna, unresolved, narrow)
	in := fanFrame(1)
	before := bytes.Clone(in)
	res, err := r.Run("forward", sim.Packet{Data: in, Mark: 5})
	if err != nil {
		t.Fatal(err)
	}
	if res.Verdict != sim.VerdictPass || res.Reason != "passed" || res.Modified || res.Hop != nil ||
		!bytes.Equal(res.Packet.Data, before) || !bytes.Equal(in, before) {
		t.Errorf("the packet that came: %+v", res)
	}
	wants := []struct {
		reason string
		addr   []byte
		port   uint16
		number uint16
	}{
		{"copied", []byte{203, 0, 113, 3}, 6003, 18}, {reason: "layer"}, {"copied", []byte{203, 0, 113, 1}, 6001, 19},
		{reason: "hop"}, {reason: "too_big"},
	}
	if len(res.Copies) != len(wants) {
		t.Fatalf("%d turns", len(res.Copies))
	}
	for i, want := range wants {
		got := res.Copies[i]
		if got.Receiver != uint32(i+1) || got.Reason != want.reason || got.Sent != (want.addr != nil) {
			t.Errorf("turn %d: %+v", i, got)
		}
		if !got.Sent {
			continue
		}
		out := got.Packet.Data
		checkIndependently(t, out)
		if !bytes.Equal(out[:12], []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8}) || !bytes.Equal(out[30:34], want.addr) ||
			binary.BigEndian.Uint16(out[36:]) != want.port || binary.BigEndian.Uint16(out[44:]) != want.number ||
			!bytes.Equal(out[46:], before[46:]) {
			t.Errorf("copy %d: %x", i, out)
		}
		if got.Hop.Ifindex != 3 || got.Packet.Mark != 5 {
			t.Errorf("copy %d: hop %+v, mark %d", i, got.Hop, got.Packet.Mark)
		}
	}
	size := uint64(len(in))
	for i, want := range []sim.ReceiverUsage{
		{}, {Packets: 1, Bytes: size}, {Declined: 1}, {Packets: 1, Bytes: size}, {Declined: 1}, {Declined: 1},
	} {
		if got := r.Receivers[i]; got != want {
			t.Errorf("usage of %d: %+v, want %+v", i, got, want)
		}
	}
	for reason, n := range map[int]uint64{fanPassed: 1, fanCopied: 2, fanLayer: 1, fanHop: 1, fanTooBig: 1} {
		if got := r.Reasons[r.Tally(r.Plan().Programs[0], reason)]; got != (sim.Tally{Packets: n, Bytes: n * size}) {
			t.Errorf("reason %d: %+v, want %d packets", reason, got, n)
		}
	}
	missed := map[string]bool{}
	for _, p := range r.Coverage() {
		missed[p.What] = p.Hits == 0
	}
	for what, want := range map[string]bool{
		"fan out: passed": false, "fan out: no_group": true, "copy: copied": false, "copy: refused_clone": true,
		"skip: layer":        false,
		"hop: neighbour hop": false, "hop: too_big": false, "hop: prohibit hop": true,
	} {
		if got, there := missed[what]; !there || got != want {
			t.Errorf("coverage of %q: missed %t (there: %t), want %t", what, got, there, want)
		}
	}
}

// Level and kind of the priority and the mark come from the packet and the row, and one copy's are not the next one's.
func TestFanOutMetadata(t *testing.T) {
	fp := newFanPlan()
	layer := &ir.RowMember{Row: fp.row, Member: fp.layer}
	fp.copy.Rewrite.Priority = bin(ir.Add, &ir.Meta{Kind: ir.SKBPrio}, layer)
	fp.copy.Rewrite.Mark = layer
	r := fp.open(t, clara, anna)
	res, err := r.Run("forward", sim.Packet{Data: fanFrame(1), Priority: 10, Mark: 99})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := res.Copies[0].Packet, res.Copies[1].Packet; a.Priority != 12 || a.Mark != 2 || b.Priority != 13 ||
		b.Mark != 3 {
		t.Errorf("priority %d and %d, mark %d and %d", a.Priority, b.Priority, a.Mark, b.Mark)
	}
	if res.Packet.Priority != 10 || res.Packet.Mark != 99 {
		t.Errorf("the packet that came: priority %d, mark %d", res.Packet.Priority, res.Packet.Mark)
	}
}

func TestFanOutEnds(t *testing.T) {
	for _, c := range []struct {
		name      string
		edit      func(*fanPlan)
		receivers []subscriber
		state     func(*sim.Relay)
		verdict   sim.Verdict
		reason    string
		turns     int
	}{
		{"passes", nil, []subscriber{anna}, nil, sim.VerdictPass, "passed", 1},
		{"drops", func(fp *fanPlan) { fp.fan.Drop, fp.fan.Reason = true, fanDropped }, []subscriber{anna, bert}, nil,
			sim.VerdictDrop, "dropped", 2},
		{"an empty group", nil, nil, nil, sim.VerdictPass, "passed", 0},
		{"no group", nil, []subscriber{anna}, func(r *sim.Relay) { r.Group("subscribers").Delete(fanKey) },
			sim.VerdictPunt, "no_group", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			fp := newFanPlan()
			if c.edit != nil {
				c.edit(fp)
			}
			r := fp.open(t, c.receivers...)
			if c.state != nil {
				c.state(r)
			}
			res, turns := fp.run(t, r)
			if res.Verdict != c.verdict || res.Reason != c.reason || len(turns) != c.turns ||
				!bytes.Equal(res.Packet.Data, fanFrame(1)) {
				t.Errorf("%s %s, %d turns", res.Verdict, res.Reason, len(turns))
			}
		})
	}
}

// What happens before the first copy stops the packet as a whole.
func TestFanOutEffects(t *testing.T) {
	fp := newFanPlan()
	values := func(e *ir.Event) []ir.MemberValue {
		return []ir.MemberValue{
			{Member: e.Fields.Members[0], Value: load(44, 16)}, {Member: e.Fields.Members[1], Value: load(42, 8)},
		}
	}
	fp.plan.Counters = []*ir.Counter{{Name: "fanned"}}
	fp.fan.Emits = []*ir.Emit{{Event: fp.required, Values: values(fp.required), Full: fanUpRing}}
	fp.fan.Counts = []*ir.Count{{Counter: fp.plan.Counters[0], By: num(2)}}
	r := fp.open(t, anna, clara)
	res, turns := fp.run(t, r)
	if len(turns) != 2 || r.Named[0] != 2 || len(res.Events) != 1 || res.Events[0].Receiver != 0 {
		t.Errorf("%d turns, counter %d, events %+v", len(turns), r.Named[0], res.Events)
	}
	r.RingUsed = fp.plan.Ring
	if res, turns = fp.run(t, r); res.Verdict != sim.VerdictPunt || res.Reason != "up_ring" || len(turns) != 0 ||
		r.Named[0] != 2 {
		t.Errorf("with a full ring: %s %s, %d turns, counter %d", res.Verdict, res.Reason, len(turns), r.Named[0])
	}
}

// A clone that the kernel refuses gets its credits back and has no records; its numbers are lost, and its room in the
// ring.
func TestRefusedClone(t *testing.T) {
	fp := newFanPlan()
	fp.copy.Emits = []*ir.Emit{fp.emit(fp.report), fp.emit(fp.required)}
	fp.copy.Admits = []*ir.Admit{fp.admit(fp.credit, num(100)), fp.admit(fp.bucket, num(3))}
	fp.copy.Allocs = []*ir.Alloc{{Var: fp.number, Row: fp.row, Member: fp.next, Step: 1}}
	fp.copy.Counts = []*ir.Count{{Row: fp.row, Member: fp.next, By: num(1000)}}
	rich := anna
	rich.credit, rich.bucket, rich.next = 1, 2, 1
	r := fp.open(t, rich, rich, rich)
	r.World.Clock = 1e9
	r.Credits[1].Limit = 1000
	r.Credits[2].Limit, r.Credits[2].Burst = 10, 30
	var asked []int
	r.World.Refuses = func(n int, h sim.Hop) bool {
		asked = append(asked, n)
		return n == 1 && h.Ifindex == 3
	}
	res, turns := fp.run(t, r)
	if want := []string{"copied", "refused_clone", "copied"}; !slices.Equal(turns, want) {
		t.Errorf("turns %v, want %v", turns, want)
	}
	if !slices.Equal(asked, []int{0, 1, 2}) {
		t.Errorf("the kernel was asked for %v", asked)
	}
	if got := r.Credits[1].Spent; got != 200 {
		t.Errorf("credit: %d spent, want 200", got)
	}
	if got := r.Credits[2].Spent; got != 1e9+600e6 {
		t.Errorf("bucket: spent up to %d", got)
	}
	if got := r.Shared[1]; got != 2003 { // 3 allocated, 2 counted
		t.Errorf("counter %d, want 2003", got)
	}
	var records []string
	for _, e := range res.Events {
		records = append(records, e.Event.Name)
	}
	if want := []string{"required", "report", "required", "report"}; !slices.Equal(records, want) {
		t.Errorf("records %v, want %v", records, want)
	}
	if want := 5 * sim.RecordRoom(32); r.RingUsed != want {
		t.Errorf("%d bytes of ring are used, want %d", r.RingUsed, want)
	}
	if u := r.Receivers[2]; u != (sim.ReceiverUsage{Declined: 1, Failed: 1}) || r.Credits[1].Refused[0] != 0 {
		t.Errorf("usage %+v, refused %d", u, r.Credits[1].Refused[0])
	}
}

// What one turn finds out, the next one doesn't know.
func TestTurnsAreApart(t *testing.T) {
	fp := newFanPlan()
	fp.fan.Each = slices.Insert(fp.fan.Each, 0, ir.Stmt(&ir.If{
		Cond: bin(ir.Eq, &ir.RowMember{Row: fp.row, Member: fp.layer}, num(3)), Note: "first",
		Then: []ir.Stmt{&ir.Let{Var: fp.number, Value: num(1)}},
	}))
	fp.copy.Lets = []*ir.Let{{Var: fp.number, Value: &ir.VarRef{Var: fp.number}}}
	if _, turns := fp.run(t, fp.open(t, anna, anna)); len(turns) != 2 {
		t.Errorf("%d turns", len(turns))
	}
	_, err := fp.open(t, anna, clara).Run("forward", sim.Packet{Data: fanFrame(1)})
	if err == nil || !strings.Contains(err.Error(), `"number" is read before it is set`) {
		t.Errorf("got %v", err)
	}
}

func TestFanOutContradictions(t *testing.T) {
	each := func(fp *fanPlan, s ir.Stmt) { fp.fan.Each = slices.Insert(fp.fan.Each, 0, s) }
	for _, c := range []struct {
		name, want string
		edit       func(*fanPlan)
	}{
		{"punt in Each", "*ir.Punt in a fan-out's Each", func(fp *fanPlan) { each(fp, &ir.Punt{Reason: fanShort}) }},
		{"a reason of the packet", `"short" is of kind 3, its use needs 6`, func(fp *fanPlan) {
			each(fp, &ir.Guard{Cond: num(1), Reason: fanShort})
		}},
		{"a copy of no receiver", "a copy outside of a fan-out", func(fp *fanPlan) { fp.program.Body[1] = fp.copy }},
		{"a skip of no receiver", "a skip outside of a fan-out", func(fp *fanPlan) {
			fp.program.Body[1] = &ir.Skip{Reason: fanLayer}
		}},
		{"no end", "ends without a copy", func(fp *fanPlan) { fp.fan.Each = fp.fan.Each[:2] }},
		{"beyond the front", "bytes 44 to 46 are read, but only 45 were checked", func(fp *fanPlan) {
			fp.fan.Front = at(45)
			each(fp, &ir.Let{Var: fp.number, Value: load(44, 16)})
		}},
		{"front beyond what is checked", "works on 47 bytes, but only 46 were checked", func(fp *fanPlan) {
			fp.fan.Front = at(47)
		}},
		{"rewrite beyond the front", "a copy changes bytes after the 46", func(fp *fanPlan) {
			w := fp.copy.Rewrite
			w.OldFront, w.NewFront, w.Payload = at(47), at(47), bin(ir.Sub, w.Payload, num(1))
			w.Stores = append(w.Stores, ir.Store{Off: at(46), Size: 1, Value: num(1)})
		}},
		{"not in place", "not rewritten in place", func(fp *fanPlan) { fp.copy.Rewrite.Resize = ir.MovePayload }},
		{"unchecked hop", "link-layer addresses aren't known", func(fp *fanPlan) { fp.fan.Each = []ir.Stmt{fp.copy} }},
		{"another group", "a group that is not in the plan", func(fp *fanPlan) {
			fp.fan.Group = &ir.Group{Receivers: fp.group.Receivers}
		}},
		{"another event", `event "report": the plan has no such event`, func(fp *fanPlan) {
			fp.plan.Events = nil
			fp.copy.Emits = []*ir.Emit{fp.emit(fp.report)}
		}},
		{"form of elements", "elements of 4 and 8 bits", func(fp *fanPlan) {
			found := &ir.FindElement{
				Found: fp.number, Len: fp.number, Value: fp.number, Size: num(0), ID: num(1),
				Forms: []ir.ElementForm{{IDBits: 4, LenBits: 8}},
			}
			fp.program.Body = slices.Insert(fp.program.Body, 0, ir.Stmt(found))
		}},
		{"level", "a credit of level 4, of 4", func(fp *fanPlan) {
			a := fp.admit(fp.credits, num(1))
			a.Level = num(4)
			fp.copy.Admits = []*ir.Admit{a}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fp := newFanPlan()
			c.edit(fp)
			r, err := sim.New(fp.plan, nil)
			if err == nil {
				far := anna
				far.hop = sim.Hop{State: ir.HopNeighbour, MTU: 1500}
				r.Group("subscribers").Put(fanKey, [][]byte{fp.bytes(1, anna), fp.bytes(2, far)})
				_, err = r.Run("forward", sim.Packet{Data: fanFrame(1)})
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestGroups(t *testing.T) {
	fp := newFanPlan()
	r := fp.open(t, anna)
	g := r.Group("subscribers")
	rows := func(n int) (rows [][]byte) {
		for i := range n {
			rows = append(rows, fp.bytes(uint32(10+i), bert))
		}
		return rows
	}
	if g.Put(fanKey, rows(9)) || !g.Put(fanKey, rows(8)) || !g.Put([]byte{1, 0, 0, 0}, nil) ||
		g.Put([]byte{2, 0, 0, 0}, nil) {
		t.Error("a group holds 8 receivers, and there are 2 groups")
	}
	got, known := g.Get(fanKey)
	if !known || len(got) != 8 || g.Identity(got[7]) != 17 {
		t.Errorf("%d receivers, known %t", len(got), known)
	}
	if _, known := g.Get([]byte{9, 0, 0, 0}); known {
		t.Error("a group that isn't there is known")
	}
	if want := []string{"\x01\x00\x00\x00", string(fanKey)}; !slices.Equal(g.Keys(), want) {
		t.Errorf("keys %q, want %q", g.Keys(), want)
	}
}

func TestCopyState(t *testing.T) {
	fp := newFanPlan()
	a := fp.open(t, anna)
	a.Credits[3] = sim.Credit{Limit: 1, Spent: 2, Burst: 3, Refused: []uint64{4, 5, 6, 7}}
	a.Receivers[2].Packets = 8
	a.Translations[sim.TranslationKey{Key: 9, Namespace: 1}] = sim.Translation{Value: 10}
	a.Lost[1], a.RingUsed, a.World.Clock = 11, 12, 13
	b, err := sim.New(fp.plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.CopyState(a)
	same := func(x, y *sim.Relay) string {
		return cmp.Diff([]any{x.Credits, x.Receivers, x.Translations, x.Lost, x.RingUsed, x.World.Clock,
			x.Group("subscribers").Keys()},
			[]any{y.Credits, y.Receivers, y.Translations, y.Lost, y.RingUsed, y.World.Clock,
				y.Group("subscribers").Keys()})
	}
	if diff := same(a, b); diff != "" {
		t.Errorf("the state differs:\n%s", diff)
	}
	b.Credits[3].Refused[0]++
	b.Translations[sim.TranslationKey{Key: 1}] = sim.Translation{}
	b.Group("subscribers").Clear()
	if a.Credits[3].Refused[0] != 4 || len(a.Translations) != 1 || len(a.Group("subscribers").Keys()) != 1 {
		t.Error("the copy shares memory with what it was made of")
	}
	fresh, err := sim.New(fp.plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	a.Reset()
	fresh.World = a.World
	if diff := same(a, fresh); diff != "" {
		t.Errorf("a reset left something:\n%s", diff)
	}
}

func FuzzFanOutNeverPanics(f *testing.F) {
	f.Add(fanFrame(1))
	f.Add([]byte{})
	fp := newFanPlan()
	fp.copy.Emits = []*ir.Emit{fp.emit(fp.report)}
	f.Fuzz(func(t *testing.T, frame []byte) {
		r := fp.open(t, anna, bert, clara)
		before := bytes.Clone(frame)
		res, err := r.Run("forward", sim.Packet{Data: frame})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(frame, before) || !bytes.Equal(res.Packet.Data, before) {
			t.Error("a packet that passes to the stack or on was changed")
		}
	})
}
