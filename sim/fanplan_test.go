package sim_test

import (
	"encoding/binary"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// fanPlan is a relay over IPv4 that sends each datagram to all receivers of the group under its destination port,
// planned by hand. A datagram begins with its level (a byte, and one of padding) and its number (16 bits); a receiver
// whose layer is below the level gets no copy.
type fanPlan struct {
	plan    *ir.Plan
	group   *ir.Group
	program *ir.Program
	row     *ir.Row
	fan     *ir.FanOut
	copy    *ir.Copy
	number  *ir.Var // what a test allocates or translates

	remote, credits, credit, bucket, next, names, layer, hop, identity *ir.Member

	report, required *ir.Event
}

const (
	fanPassed = iota
	fanShort
	fanNoGroup
	fanNoRoom
	fanFault
	fanCopied
	fanRefusedClone
	fanLayer
	fanHop
	fanTooBig
	fanCredit
	fanContended
	fanUnfinished
	fanFull
	fanRing
	fanDropped
	fanUpRing
	fanUpCredit
)

// fanFront is where the number ends.
const fanFront = 46

func newFanPlan() *fanPlan {
	u16, u32, u64 := ir.UintType(16), ir.UintType(32), ir.UintType(64)
	index := func(name string, kind ir.Kind, levels, off int) *ir.Member {
		return &ir.Member{Name: name, Type: ir.Type{Kind: kind, Levels: levels, Size: 4}, Off: off}
	}
	fp := &fanPlan{
		remote:   &ir.Member{Name: "remote", Type: ir.Type{Kind: ir.Endpoint, Size: 18}},
		layer:    &ir.Member{Name: "layer", Type: ir.UintType(8), Off: 18},
		credits:  index("credits", ir.Credit, 4, 20),
		credit:   index("credit", ir.Credit, 0, 24),
		bucket:   index("bucket", ir.Bucket, 0, 28),
		next:     index("next", ir.Ctr, 0, 32),
		names:    index("names", ir.Translation, 0, 36),
		identity: &ir.Member{Name: "receiver", Type: u32, Off: 60, Hidden: true},
		number:   &ir.Var{Name: "number", Type: u64},
	}
	fp.hop = &ir.Member{Name: "hop_remote", Type: ir.Type{Kind: ir.Hop, Size: 20}, Off: 40, Hidden: true, To: fp.remote}
	key := &ir.Member{Name: "port", Type: u16}
	receivers := &ir.Table{Name: "subscribers", Kind: "receivers", Size: 24, Key: ir.Struct{
		Size: 4,
	}, Value: ir.Struct{Size: 64, Members: []*ir.Member{
		fp.remote, fp.layer, fp.credits, fp.credit, fp.bucket, fp.next, fp.names, fp.hop, fp.identity,
	}}}
	fp.group = &ir.Group{
		Name: "subscribers", Key: ir.Struct{Size: 4, Members: []*ir.Member{key}}, Receivers: receivers, Max: 8,
		Rows: 16, Size: 2, Base: 1,
	}
	fields := func() ir.Struct {
		return ir.Struct{
			Size: 32, Members: []*ir.Member{
				{Name: "number", Type: u64, Off: 16}, {Name: "level", Type: ir.UintType(8), Off: 24},
			},
		}
	}
	fp.report = &ir.Event{Name: "report", ID: 1, Fields: fields()}
	fp.required = &ir.Event{Name: "required", ID: 2, Fields: fields(), Required: true}
	fp.row = &ir.Row{Name: "r", Table: receivers}

	toAddr := &ir.RowMember{Row: fp.row, Member: fp.remote, Component: ir.AddrOf}
	toPort := &ir.RowMember{Row: fp.row, Member: fp.remote, Component: ir.PortOf}
	payload := bin(ir.Sub, &ir.Meta{Kind: ir.FrameLen}, num(fanFront))
	number := &ir.Bin{
		Op: ir.And, X: bin(ir.Add, load(44, 16), &ir.RowMember{Row: fp.row, Member: fp.layer}), Y: num(0xffff),
	}
	rewrite := &ir.Rewrite{
		Resize: ir.InPlace, L2: 14, OldFront: at(fanFront), NewFront: at(fanFront), Payload: payload,
		Stores: []ir.Store{{Off: at(30), Size: 4, Value: toAddr}, {Off: at(36), Size: 2, Value: toPort},
			{Off: at(44), Size: 2, Value: number}},
		Sums: []*ir.Sum{
			{Name: "ipv4.checksum", Old: at(24), New: at(24), OldTerms: []ir.Term{{Value: addr4(30), Size: 4}},
				NewTerms: []ir.Term{{Value: toAddr, Size: 4}}},
			{
				Name: "udp.checksum", Old: at(40), New: at(40), Absent: true, Optional: true, Offloaded: true,
				OldTerms:  []ir.Term{{Value: load(36, 16), Size: 2}, {Value: load(44, 16), Size: 2}},
				NewTerms:  []ir.Term{{Value: toPort, Size: 2}, {Value: number, Size: 2}},
				OldPseudo: []ir.Term{{Value: addr4(30), Size: 4}}, NewPseudo: []ir.Term{{Value: toAddr, Size: 4}},
			},
		},
	}
	hop := &ir.HopRef{Row: fp.row, Member: fp.hop, Family: 4}
	fp.copy = &ir.Copy{Rewrite: rewrite, Hop: hop, Reason: fanCopied, Failed: fanRefusedClone}
	fp.fan = &ir.FanOut{
		Group: fp.group, Key: []ir.MemberValue{{Member: key, Value: load(36, 16)}}, Miss: fanNoGroup, Row: fp.row,
		Front:  at(fanFront),
		Reason: fanPassed, NoRoom: fanNoRoom, Fault: fanFault,
		Each: []ir.Stmt{
			&ir.If{
				Cond: bin(ir.Gt, load(42, 8), &ir.RowMember{Row: fp.row, Member: fp.layer}), Note: "layer",
				Then: []ir.Stmt{&ir.Skip{Reason: fanLayer}},
			},
			&ir.CheckHop{Hop: hop, Length: bin(ir.Sub, &ir.Meta{Kind: ir.FrameLen}, num(14)), TooBig: fanTooBig,
				Reasons: [ir.HopStates]int{
					fanHop, fanHop, fanHop, fanHop, fanHop, fanHop, fanHop, fanHop, fanHop, fanHop, fanHop,
				}},
			fp.copy,
		},
	}
	fp.program = &ir.Program{
		Name: "forward", Hook: "tc/ingress", L2: true, Pull: fanFront, Vars: []*ir.Var{fp.number},
		Rows: []*ir.Row{fp.row},
		Body: []ir.Stmt{&ir.NeedBytes{End: at(fanFront), Reason: fanShort}, fp.fan},
		Reasons: []*ir.Reason{
			{Name: "passed", Kind: ir.Passed}, {Name: "short", Kind: ir.Punted}, {Name: "no_group", Kind: ir.Punted},
			{Name: "no_room", Kind: ir.Punted},
			{Name: "fault", Kind: ir.Fault}, {Name: "copied", Kind: ir.Copied},
			{Name: "refused_clone", Kind: ir.Declined},
			{Name: "layer", Kind: ir.Declined}, {Name: "hop", Kind: ir.Declined}, {Name: "too_big", Kind: ir.Declined},
			{Name: "credit", Kind: ir.Declined}, {Name: "contended", Kind: ir.Declined},
			{Name: "unfinished", Kind: ir.Declined},
			{Name: "full", Kind: ir.Declined}, {Name: "ring", Kind: ir.Declined}, {Name: "dropped", Kind: ir.Dropped},
			{Name: "up_ring", Kind: ir.Punted}, {Name: "up_credit", Kind: ir.Punted},
		},
	}
	fp.plan = &ir.Plan{
		Name: "fan", Levels: 4, Shared: 8, Credits: 16, Receivers: 17, Translations: 2, Ring: 4096,
		Groups: []*ir.Group{fp.group}, Events: []*ir.Event{fp.report, fp.required}, Programs: []*ir.Program{fp.program},
	}
	return fp
}

// subscriber is a receiver's row, by what it holds.
type subscriber struct {
	remote                               string
	layer                                uint8
	credits, credit, bucket, next, names uint32
	hop                                  sim.Hop // State 0: neighbour
}

func (fp *fanPlan) bytes(id uint32, s subscriber) []byte {
	b := make([]byte, fp.group.Receivers.Value.Size)
	copy(b, endpointBytes(s.remote))
	b[fp.layer.Off] = s.layer
	for m, v := range map[*ir.Member]uint32{
		fp.credits: s.credits, fp.credit: s.credit, fp.bucket: s.bucket, fp.next: s.next, fp.names: s.names,
		fp.identity: id,
	} {
		binary.LittleEndian.PutUint32(b[m.Off:], v)
	}
	if s.hop.State == ir.HopNone {
		s.hop = neighbour
	}
	copy(b[fp.hop.Off:], s.hop.Bytes())
	return b
}

var (
	anna  = subscriber{remote: "203.0.113.1:6001", layer: 3}
	bert  = subscriber{remote: "203.0.113.2:6002", layer: 0}
	clara = subscriber{remote: "203.0.113.3:6003", layer: 2}
)

// open returns a relay with one group, under port 3478, which gives its receivers identities from 1 on.
func (fp *fanPlan) open(t *testing.T, receivers ...subscriber) *sim.Relay {
	t.Helper()
	r, err := sim.New(fp.plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]byte
	for i, s := range receivers {
		rows = append(rows, fp.bytes(uint32(1+i), s))
	}
	if !r.Group("subscribers").Put(fanKey, rows) {
		t.Fatal("the group was refused")
	}
	return r
}

var fanKey = []byte{3478 & 0xff, 3478 >> 8, 0, 0}

// frame is a datagram of a level.
func fanFrame(level uint8) []byte {
	// in front of the text are the level and the number, 16
	frame := channelData([]byte("abcdefghijklmnop"), 0, 0, true)
	before := binary.BigEndian.Uint16(frame[42:])
	frame[42], frame[43] = level, 0
	sum := uint32(^binary.BigEndian.Uint16(frame[40:])) + uint32(^before) + uint32(level)<<8
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(frame[40:], ^uint16(sum))
	return frame
}

// run runs a datagram of level 1 and returns the reason of each receiver's turn.
func (fp *fanPlan) run(t *testing.T, r *sim.Relay) (sim.Result, []string) {
	t.Helper()
	res, err := r.Run("forward", sim.Packet{Data: fanFrame(1)})
	if err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for _, c := range res.Copies {
		if c.Sent != (c.Reason == "copied") {
			t.Errorf("receiver %d: sent %t under %q", c.Receiver, c.Sent, c.Reason)
		}
		reasons = append(reasons, c.Reason)
	}
	return res, reasons
}
