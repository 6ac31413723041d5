package sim_test

import (
	"encoding/binary"
	"net/netip"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// turnPlan is the direction from client to peer of a TURN relay over IPv4, planned by hand: eth ipv4 udp channel_data,
// the ChannelData header (RFC 8656 §12.4) taken out, and the datagram sent on from another address.
type turnPlan struct {
	plan  *ir.Plan
	table *ir.Table
	rw    *ir.Rewrite
}

const (
	turnSent = iota
	turnInactive
	turnHeader
	turnLength
	turnMissing
	turnHop
	turnTooBig
	turnFault
	turnNoRoom
)

func at(c int) ir.Off { return ir.Off{Const: c} }

func load(off, bits int) *ir.Load {
	return &ir.Load{Off: at(off), Bits: bits, Field: "field"}
}

func num(v uint64) *ir.Const { return &ir.Const{V: v, T: ir.UintType(64)} }

func bin(op ir.BinOp, x, y ir.Expr) *ir.Bin { return &ir.Bin{Op: op, X: x, Y: y} }

func addr4(off int) *ir.LoadBytes {
	return &ir.LoadBytes{Off: at(off), N: 4, T: ir.AddrType, Field: "address"}
}

func newTurnPlan() *turnPlan {
	u32, u16 := ir.UintType(32), ir.UintType(16)
	endpoint := ir.Type{Kind: ir.Endpoint, Size: 18}
	key := ir.Struct{Size: 38, Members: []*ir.Member{
		{Name: "client", Type: endpoint}, {Name: "server", Type: endpoint, Off: 18},
		{Name: "number", Type: u16, Off: 36},
	}}
	from := &ir.Member{Name: "relayed", Type: endpoint}
	to := &ir.Member{Name: "peer", Type: endpoint, Off: 18}
	hop := &ir.Member{Name: "hop", Type: ir.Type{Kind: ir.Hop, Size: 20}, Off: 36, Hidden: true, To: to, From: from}
	value := ir.Struct{Size: 64, Members: []*ir.Member{from, to, hop,
		{Name: "slot", Type: u32, Off: 56, Hidden: true}, {Name: "gen", Type: u32, Off: 60, Hidden: true},
	}}
	session := &ir.Session{Name: "channel", Size: 16}
	table := &ir.Table{Name: "by_channel", Kind: "hash", Size: 16, Key: key, Value: value, Session: session}
	row := &ir.Row{Name: "ch", Table: table}
	ref := &ir.HopRef{Row: row, Member: hop, Family: 4}
	payload := &ir.Var{Name: "payload", Type: u16}
	fromAddr := &ir.RowMember{Row: row, Member: from, Component: ir.AddrOf}
	fromPort := &ir.RowMember{Row: row, Member: from, Component: ir.PortOf}
	toAddr := &ir.RowMember{Row: row, Member: to, Component: ir.AddrOf}
	toPort := &ir.RowMember{Row: row, Member: to, Component: ir.PortOf}
	n := &ir.VarRef{Var: payload}
	udpLength := bin(ir.Add, n, num(8))

	rw := &ir.Rewrite{
		Resize: ir.MoveEither, L2: 14, OldFront: at(46), NewFront: at(42), Payload: n, Trim: true,
		Stores: []ir.Store{
			{Off: at(12), Size: 2, Value: load(12, 16)},
			{Off: at(14), Size: 2, Value: load(14, 16)},
			{Off: at(16), Size: 2, Value: bin(ir.Add, n, num(28))},
			{Off: at(18), Size: 4, Value: load(18, 32)},
			{Off: at(22), Size: 1, Value: num(64)},
			{Off: at(23), Size: 1, Value: load(23, 8)},
			{Off: at(26), Size: 4, Value: fromAddr},
			{Off: at(30), Size: 4, Value: toAddr},
			{Off: at(34), Size: 2, Value: fromPort},
			{Off: at(36), Size: 2, Value: toPort},
			{Off: at(38), Size: 2, Value: udpLength},
		},
		Sums: []*ir.Sum{
			{
				Name: "ipv4.checksum", Old: at(24), New: at(24),
				OldTerms: []ir.Term{{Value: load(16, 16), Size: 2}, {Value: load(22, 8), Size: 1},
					{Value: addr4(26), Size: 4}, {Value: addr4(30), Size: 4}},
				NewTerms: []ir.Term{{Value: bin(ir.Add, n, num(28)), Size: 2}, {Value: num(64), Size: 1},
					{Value: fromAddr, Size: 4}, {Value: toAddr, Size: 4}},
			},
			{
				Name: "udp.checksum", Old: at(40), New: at(40), Absent: true, Optional: true, Offloaded: true,
				OldTerms: []ir.Term{{Value: load(34, 32), Size: 4}, {Value: load(38, 16), Size: 2},
					{Value: load(42, 32), Size: 4}},
				NewTerms: []ir.Term{{Value: fromPort, Size: 2}, {Value: toPort, Size: 2}, {Value: udpLength, Size: 2}},
				OldPseudo: []ir.Term{{Value: addr4(26), Size: 4}, {Value: addr4(30), Size: 4},
					{Value: load(38, 16), Size: 2}},
				NewPseudo: []ir.Term{{Value: fromAddr, Size: 4}, {Value: toAddr, Size: 4}, {Value: udpLength, Size: 2}},
				Tail:      true, TailEnd: ir.Off{Base: &ir.Var{}}, TailMax: 3,
				TailOdd: bin(ir.And, n, num(1)),
			},
		},
	}
	end := &ir.Var{Name: "udp_end", Type: u16}
	rw.Sums[1].TailEnd = ir.Off{Base: end, Const: 34}

	guard := func(cond ir.Expr, reason int) ir.Stmt { return &ir.Guard{Cond: cond, Reason: reason} }
	body := []ir.Stmt{
		guard(&ir.Meta{Kind: ir.LeaseValid}, turnInactive),
		&ir.NeedBytes{End: at(46), Reason: turnHeader},
		guard(bin(ir.Eq, load(12, 16), num(0x0800)), turnHeader),
		guard(bin(ir.Eq, load(14, 8), num(0x45)), turnHeader),
		guard(bin(ir.Eq, load(20, 16), num(0)), turnHeader),
		guard(bin(ir.Eq, load(23, 8), num(17)), turnHeader),
		guard(&ir.SumOK{Off: at(14), Len: 20}, turnHeader),
		guard(bin(ir.Le, bin(ir.Add, load(16, 16), num(14)), &ir.Meta{Kind: ir.FrameLen}), turnLength),
		guard(bin(ir.Eq, bin(ir.Add, load(38, 16), num(20)), load(16, 16)), turnLength),
		guard(bin(ir.Ge, load(38, 16), num(12)), turnLength),
		&ir.Let{Var: payload, Value: load(44, 16)},
		&ir.Let{Var: end, Value: load(38, 16)},
		guard(bin(ir.Le, bin(ir.Add, n, num(12)), load(38, 16)), turnLength),
		guard(bin(ir.Le, load(38, 16), bin(ir.Add, n, num(15))), turnLength),
		&ir.Lookup{Row: row, Miss: turnMissing, Key: []ir.MemberValue{
			{Member: key.Members[0], Component: ir.AddrOf, Value: addr4(26)},
			{Member: key.Members[0], Component: ir.PortOf, Value: load(34, 16)},
			{Member: key.Members[1], Component: ir.AddrOf, Value: addr4(30)},
			{Member: key.Members[1], Component: ir.PortOf, Value: load(36, 16)},
			{Member: key.Members[2], Value: load(42, 16)},
		}},
		&ir.If{Cond: &ir.IsV4{X: toAddr}, Note: "ipv4",
			Then: []ir.Stmt{
				&ir.CheckHop{Hop: ref, Length: bin(ir.Add, n, num(28)), TooBig: turnTooBig,
					Reasons: [ir.HopStates]int{
						turnHop, turnHop, turnHop, turnHop, turnHop, turnHop,
						turnHop, turnHop, turnHop, turnHop, turnHop,
					}},
				&ir.Forward{
					Rewrite: rw, Hop: ref, Usage: []*ir.Row{row}, Reason: turnSent, Fault: turnFault,
					NoRoom: turnNoRoom,
				},
			},
			Else: []ir.Stmt{&ir.Punt{Reason: turnHop}},
		},
	}
	p := &ir.Program{
		Name: "to_peer", Hook: "tc/ingress", L2: true, Pull: 46, Body: body,
		Vars: []*ir.Var{payload, end}, Rows: []*ir.Row{row},
		Reasons: []*ir.Reason{
			{Name: "sent"}, {Name: "inactive", Kind: ir.Punted}, {Name: "header", Kind: ir.Punted},
			{Name: "length", Kind: ir.Punted},
			{Name: "no_by_channel", Kind: ir.Punted}, {Name: "hop", Kind: ir.Punted},
			{Name: "too_big", Kind: ir.Punted},
			{Name: "fault", Kind: ir.Fault}, {Name: "no_room", Kind: ir.Punted},
		},
	}
	plan := &ir.Plan{
		Name: "turn", Tables: []*ir.Table{table}, Sessions: []*ir.Session{session}, Programs: []*ir.Program{p},
		Slots: 16, Usages: 1,
	}
	return &turnPlan{plan: plan, table: table, rw: rw}
}

func endpointBytes(s string) []byte {
	ap := netip.MustParseAddrPort(s)
	a := ap.Addr().As16()
	return binary.LittleEndian.AppendUint16(a[:], ap.Port())
}
