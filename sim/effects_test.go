package sim_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/sim"
)

func (fp *fanPlan) admit(m *ir.Member, cost ir.Expr) *ir.Admit {
	return &ir.Admit{Row: fp.row, Member: m, Cost: cost, Refused: fanCredit, Contended: fanContended}
}

func (fp *fanPlan) emit(e *ir.Event) *ir.Emit {
	full := -1
	if e.Required {
		full = fanRing
	}
	return &ir.Emit{Event: e, Row: fp.row, Full: full, Values: []ir.MemberValue{
		{Member: e.Fields.Members[0], Value: load(44, 16)},
		{Member: e.Fields.Members[1], Value: &ir.RowMember{Row: fp.row, Member: fp.layer}},
	}}
}

func TestCredit(t *testing.T) {
	const most = math.MaxUint64
	for _, c := range []struct {
		limit, spent, cost, floor uint64
		admitted                  bool
	}{
		{100, 0, 100, 0, true}, {100, 1, 100, 0, false}, {100, 0, 0, 0, true}, {0, 0, 0, 0, true}, {0, 0, 1, 0, false},
		// user space moved the limit below what is spent
		{100, 0, 90, 10, true}, {100, 0, 91, 10, false}, {100, 101, 0, 0, false},
		{most, most, 0, 0, true}, {most, most, 1, 0, false}, {most, most - 5, 5, 1, false}, {most, 1, most, 0, false},
		{most, 0, 1, most, false},
	} {
		t.Run(fmt.Sprintf("%d+%d+%d<=%d", c.spent, c.cost, c.floor, c.limit), func(t *testing.T) {
			fp := newFanPlan()
			a := fp.admit(fp.credit, num(c.cost))
			a.Floor = num(c.floor)
			fp.copy.Admits = []*ir.Admit{a}
			s := anna
			s.credit = 5
			r := fp.open(t, s)
			r.Credits[5].Limit, r.Credits[5].Spent = c.limit, c.spent
			_, turns := fp.run(t, r)
			want, spent, refused := "copied", c.spent+c.cost, uint64(0)
			if !c.admitted {
				want, spent, refused = "credit", c.spent, 1
			}
			if got := r.Credits[5]; turns[0] != want || got.Spent != spent || got.Refused[0] != refused ||
				got.Limit != c.limit {
				t.Errorf("%s, credit %+v", turns[0], got)
			}
		})
	}
}

// A bucket of 1000 bytes at 100 bytes a second: times are in nanoseconds.
func TestBucket(t *testing.T) {
	const second = 1_000_000_000
	for _, c := range []struct {
		name                            string
		rate, burst, spent, cost, floor uint64
		now                             uint64
		after                           uint64 // 0: refused
	}{
		{"full", 100, 1000, 0, 1000, 0, 50 * second, 60 * second},
		{"more than a burst", 100, 1000, 0, 1001, 0, 50 * second, 0},
		{"half full", 100, 1000, 55 * second, 500, 0, 50 * second, 60 * second},
		{"less than half full", 100, 1000, 55 * second, 501, 0, 50 * second, 0},
		{"spent long ago", 100, 1000, 2 * second, 100, 0, 50 * second, 51 * second},
		{"empty", 100, 1000, 60 * second, 1, 0, 50 * second, 0},
		{"a second later", 100, 1000, 60 * second, 100, 0, 51 * second, 61 * second},
		{"above the floor", 100, 1000, 0, 900, 100, 50 * second, 59 * second},
		{"below the floor", 100, 1000, 0, 901, 100, 50 * second, 0},
		{"a floor above the burst", 100, 1000, 0, 1, 1001, 50 * second, 0},
		{"nothing costs nothing", 100, 0, 0, 0, 0, 50 * second, 50 * second},
		{"spent for ever", 100, 1000, math.MaxUint64 - 5, 1, 0, 50 * second, 0},
		{"no rate", 0, 1000, 0, 0, 0, 50 * second, 0},
		{"a cost beyond 32 bits", 1 << 32, 1 << 40, 0, 1 << 40, 0, second, second + (1<<32-1)*second>>32},
		{"a burst beyond 33 bits", 1, 1 << 40, 0, 1<<32 - 1, 1<<33 - 1, second, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			fp := newFanPlan()
			a := fp.admit(fp.bucket, num(c.cost))
			a.Floor = num(c.floor)
			fp.copy.Admits = []*ir.Admit{a}
			s := anna
			s.bucket = 5
			r := fp.open(t, s)
			r.World.Clock = c.now
			r.Credits[5].Limit, r.Credits[5].Burst, r.Credits[5].Spent = c.rate, c.burst, c.spent
			_, turns := fp.run(t, r)
			want, after, refused := "copied", c.after, uint64(0)
			if c.after == 0 {
				want, after, refused = "credit", c.spent, 1
			}
			if got := r.Credits[5]; turns[0] != want || got.Spent != after || got.Refused[0] != refused {
				t.Errorf("%s, bucket %+v, want %s, spent up to %d", turns[0], got, want, after)
			}
		})
	}
}

// Levels choose one of several credits, or only the counter of refused packets.
func TestCreditLevels(t *testing.T) {
	fp := newFanPlan()
	a := fp.admit(fp.credits, num(10))
	a.Level = load(42, 8) // 1
	a.Count = &ir.Count{Row: fp.row, Member: fp.next, By: num(7)}
	fp.copy.Admits = []*ir.Admit{a}
	rich, poor := anna, clara
	rich.credits, rich.next = 4, 1
	poor.credits, poor.next = 8, 2
	none := clara
	none.next = 3
	r := fp.open(t, rich, poor, none)
	r.Credits[4+1].Limit = 10
	r.Credits[8+0].Limit = 10 // of another level
	_, turns := fp.run(t, r)
	if want := []string{"copied", "credit", "credit"}; !slices.Equal(turns, want) {
		t.Errorf("turns %v, want %v", turns, want)
	}
	if r.Credits[5].Spent != 10 || r.Credits[8].Spent != 0 || !slices.Equal(r.Credits[9].Refused, []uint64{
		0, 1, 0, 0,
	}) {
		t.Errorf("credits %+v", r.Credits[4:10])
	}
	if got := r.Shared[1:4]; !slices.Equal(got, []uint64{0, 7, 7}) {
		t.Errorf("counted %v", got)
	}
	if got := r.Credits[0]; got.Spent != 0 || !slices.Equal(got.Refused, []uint64{0, 0, 0, 0}) {
		t.Errorf("no credit: %+v", got)
	}

	fp = newFanPlan()
	a = fp.admit(fp.credit, num(10))
	a.Level = load(42, 8)
	fp.copy.Admits = []*ir.Admit{a}
	poor.credit = 8
	r = fp.open(t, poor)
	if _, turns := fp.run(t, r); turns[0] != "credit" || !slices.Equal(r.Credits[8].Refused, []uint64{0, 1, 0, 0}) {
		t.Errorf("%s, credit %+v", turns[0], r.Credits[8])
	}
}

// Either all credits of a copy are spent, or none.
func TestAllOrNone(t *testing.T) {
	fp := newFanPlan()
	fp.copy.Emits = []*ir.Emit{fp.emit(fp.required)}
	fp.copy.Admits = []*ir.Admit{fp.admit(fp.bucket, num(1)), fp.admit(fp.credit, num(10))}
	fp.copy.Allocs = []*ir.Alloc{{Var: fp.number, Row: fp.row, Member: fp.next, Step: 1}}
	s := anna
	s.bucket, s.credit, s.next = 1, 2, 1
	r := fp.open(t, s)
	r.Credits[1].Limit, r.Credits[1].Burst, r.Credits[1].Spent = 1, 10, 5e9
	r.World.Clock = 2e9
	res, turns := fp.run(t, r)
	if turns[0] != "credit" || r.Credits[1].Spent != 5e9 || r.Credits[1].Refused[0] != 0 ||
		r.Credits[2].Refused[0] != 1 {
		t.Errorf("%s, credits %+v", turns[0], r.Credits[1:3])
	}
	if len(res.Events) != 0 || r.Shared[1] != 0 || r.RingUsed != sim.RecordRoom(32) {
		t.Errorf("%d records, counter %d, %d bytes of ring", len(res.Events), r.Shared[1], r.RingUsed)
	}
}

func TestAlloc(t *testing.T) {
	fp := newFanPlan()
	fp.copy.Allocs = []*ir.Alloc{{Var: fp.number, Row: fp.row, Member: fp.next, Step: 4}}
	fp.copy.Rewrite.Stores[2].Value = &ir.VarRef{Var: fp.number}
	fp.copy.Rewrite.Sums = nil
	a, b, none := anna, clara, anna
	a.next, b.next = 1, 2
	r := fp.open(t, a, b, a, none)
	r.Shared[1], r.Shared[2] = 100, 0xfffe
	res, _ := fp.run(t, r)
	var numbers []uint16
	for _, c := range res.Copies {
		numbers = append(numbers, binary.BigEndian.Uint16(c.Packet.Data[44:]))
	}
	if want := []uint16{100, 0xfffe, 104, 0}; !slices.Equal(numbers, want) {
		t.Errorf("numbers %v, want %v", numbers, want)
	}
	if got := r.Shared[:3]; !slices.Equal(got, []uint64{0, 108, 0x10002}) {
		t.Errorf("counters %v", got)
	}
}

func TestTranslate(t *testing.T) {
	fp := newFanPlan() // with room for 2 translations
	id := &ir.Var{Name: "id", Type: ir.UintType(64)}
	fp.program.Vars = append(fp.program.Vars, id)
	fp.fan.Each = slices.Insert(fp.fan.Each, 2, ir.Stmt(&ir.Translate{
		Var: fp.number, Row: fp.row, Member: fp.names, Key: load(44, 16), Unfinished: fanUnfinished, Full: fanFull,
		Allocs: []*ir.Alloc{{Var: id, Row: fp.row, Member: fp.next, Step: 4}},
		Value:  bin(ir.Add, &ir.VarRef{Var: id}, num(1)),
	}))
	fp.copy.Emits = []*ir.Emit{fp.emit(fp.report)}
	fp.copy.Emits[0].Values[0].Value = &ir.VarRef{Var: fp.number}
	in := func(names uint32) subscriber {
		s := anna
		s.names, s.next = names, 1
		return s
	}
	r := fp.open(t, in(1), in(1), in(2), in(3), in(0))
	r.Shared[1] = 40
	res, turns := fp.run(t, r)
	if want := []string{"copied", "copied", "copied", "full", "full"}; !slices.Equal(turns, want) {
		t.Errorf("turns %v, want %v", turns, want)
	}
	var values []uint64
	for _, e := range res.Events {
		values = append(values, binary.LittleEndian.Uint64(e.Record[16:]))
	}
	if want := []uint64{41, 41, 45}; !slices.Equal(values, want) || r.Shared[1] != 48 {
		t.Errorf("values %v, want %v; counter %d", values, want, r.Shared[1])
	}
	if got := r.Translations[sim.TranslationKey{Key: 16, Namespace: 2}]; got != (sim.Translation{
		Value: 45, Done: true,
	}) {
		t.Errorf("translations %+v", r.Translations)
	}
	r.Translations[sim.TranslationKey{Key: 16, Namespace: 2}] = sim.Translation{}
	if _, turns = fp.run(t, r); turns[2] != "unfinished" || r.Shared[1] != 48 {
		t.Errorf("turns %v, counter %d", turns, r.Shared[1])
	}
	for _, p := range r.Coverage() {
		if p.Hits == 0 && len(p.What) > 9 && p.What[:9] == "translate" {
			t.Errorf("%q was not counted", p.What)
		}
	}
}

func TestRecords(t *testing.T) {
	fp := newFanPlan()
	fp.copy.Emits = []*ir.Emit{fp.emit(fp.report), fp.emit(fp.required)}
	r := fp.open(t, anna, clara)
	res, _ := fp.run(t, r)
	if len(res.Events) != 4 {
		t.Fatalf("%d records", len(res.Events))
	}
	want := make([]byte, 32)
	binary.LittleEndian.PutUint32(want[8:], 2)
	binary.LittleEndian.PutUint16(want[12:], 1)
	binary.LittleEndian.PutUint16(want[14:], 32)
	want[16], want[24] = 16, 2
	if got := res.Events[3]; got.Event != fp.report || got.Receiver != 2 || !slices.Equal(got.Record, want) {
		t.Errorf("got %s %d %x, want %x", got.Event.Name, got.Receiver, got.Record, want)
	}

	// A ring with room for three more: a required record that doesn't fit stops the copy, another one is lost.
	r.RingUsed = fp.plan.Ring - 3*sim.RecordRoom(32) - 1
	res, turns := fp.run(t, r)
	if !slices.Equal(turns, []string{"copied", "copied"}) || len(res.Events) != 3 ||
		res.Events[2].Event != fp.required || r.Lost[1] != 1 || r.Lost[2] != 0 {
		t.Errorf("turns %v, %d records, lost %v", turns, len(res.Events), r.Lost)
	}
	if res, turns = fp.run(t, r); !slices.Equal(turns, []string{"ring", "ring"}) || len(res.Events) != 0 ||
		r.Lost[1] != 1 {
		t.Errorf("turns %v, %d records, lost %v", turns, len(res.Events), r.Lost)
	}
	r.RingUsed = fp.plan.Ring - sim.RecordRoom(32) // one byte always stays free
	if _, turns = fp.run(t, r); turns[0] != "ring" {
		t.Errorf("turns %v", turns)
	}
}

// The effects of a packet that is sent, and of one that is dropped.
func TestEffectsOfPackets(t *testing.T) {
	tp := newTurnPlan()
	row := tp.plan.Programs[0].Rows[0]
	credit := &ir.Member{Name: "credit", Type: ir.KindType(ir.Credit), Off: 64}
	tp.table.Value.Members = append(tp.table.Value.Members, credit)
	tp.table.Value.Size = 68
	event := &ir.Event{
		Name: "sent", ID: 1, Fields: ir.Struct{
			Size: 24, Members: []*ir.Member{{Name: "number", Type: ir.UintType(16), Off: 16}},
		},
	}
	tp.plan.Credits, tp.plan.Events, tp.plan.Ring = 4, []*ir.Event{event}, 4096
	emit := &ir.Emit{
		Event: event, Full: -1, Values: []ir.MemberValue{{Member: event.Fields.Members[0], Value: load(42, 16)}},
	}
	branch := tp.plan.Programs[0].Body[15].(*ir.If)
	forward := branch.Then[1].(*ir.Forward)
	forward.Emits = []*ir.Emit{emit}
	forward.Admits = []*ir.Admit{
		{Row: row, Member: credit, Cost: &ir.Meta{Kind: ir.FrameLen}, Refused: turnHop, Contended: turnHop},
	}
	r := openTurn(t, tp)
	table := r.Table("by_channel")
	key := []byte(table.Keys()[0])
	table.Put(key, append(table.Get(key)[:64], 3, 0, 0, 0))
	in := channelData([]byte("hello"), 0, 0, true)
	r.Credits[3].Limit = uint64(len(in))
	for _, want := range []struct {
		verdict sim.Verdict
		reason  string
		events  int
	}{{sim.VerdictSent, "sent", 1}, {sim.VerdictPunt, "hop", 0}} {
		res, err := r.Run("to_peer", sim.Packet{Data: in})
		if err != nil || res.Verdict != want.verdict || res.Reason != want.reason || len(res.Events) != want.events {
			t.Errorf("%s %s, %d events, %v, want %+v", res.Verdict, res.Reason, len(res.Events), err, want)
		}
	}
	if c := r.Credits[3]; c.Spent != uint64(len(in)) || c.Refused[0] != 1 {
		t.Errorf("credit %+v", c)
	}

	reasons := tp.plan.Programs[0].Reasons
	tp.plan.Programs[0].Reasons = append(reasons, &ir.Reason{Name: "dropped", Kind: ir.Dropped})
	branch.Then[1] = &ir.Drop{Effects: ir.Effects{Emits: []*ir.Emit{emit}}, Reason: len(reasons)}
	if res, err := openTurn(t, tp).Run("to_peer", sim.Packet{Data: in}); err != nil || res.Verdict != sim.VerdictDrop ||
		len(res.Events) != 1 {
		t.Errorf("%s, %d events, %v", res.Verdict, len(res.Events), err)
	}
}
