package glue

import (
	"encoding"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// Desc describes a plan to the runtime.
func Desc(p *ir.Plan) abi.Desc {
	d := abi.Desc{
		Name:   p.Name,
		Kernel: [2]int{p.Kernel.Major, p.Kernel.Minor},
		Slots:  p.Slots,
		Usages: p.Usages,
		Shared: p.Shared,

		Levels:       p.Levels,
		Receivers:    p.Receivers,
		Credits:      p.Credits,
		Translations: p.Translations,
		Ring:         p.Ring,
	}
	for _, s := range p.Settings {
		sd := abi.Setting{
			Name: s.Name, Kind: s.Type.Kind.ABI(), Size: s.Type.Size, Bits: s.Type.Bits, Required: s.Default == nil,
			Min: s.Min, Max: s.Max,
		}
		if s.Default != nil {
			sd.Default = value(s.Type, s.Default)
		}
		d.Settings = append(d.Settings, sd)
	}
	tables := map[*ir.Table]int{}
	for i, t := range p.Tables {
		tables[t] = i
	}
	for _, t := range p.Tables {
		td := abi.Table{
			Name: t.Name, PerCPU: t.PerCPU, Size: t.Size,
			Key: members(t.Key), KeySize: t.Key.Size, Value: members(t.Value), ValueSize: t.Value.Size,
		}
		parse(&td.Kind, t.Kind)
		if t.Session != nil {
			td.Session = t.Session.Name
		}
		d.Tables = append(d.Tables, td)
	}
	for _, s := range p.Sessions {
		d.Sessions = append(d.Sessions, describeSession(s, tables))
	}
	for _, g := range p.Groups {
		d.Groups = append(d.Groups, abi.Group{
			Name: g.Name, Max: g.Max, Rows: g.Rows, Size: g.Size, Base: g.Base,
			Key: members(g.Key), KeySize: g.Key.Size, Receiver: members(g.Receivers.Value),
			ReceiverSize: g.Receivers.Value.Size,
		})
	}
	for _, e := range p.Events {
		event := abi.Event{Name: e.Name, Fields: members(e.Fields), Size: e.Fields.Size, Required: e.Required}
		if c := e.Copies; c != nil {
			values := slices.DeleteFunc(members(c.Entry), func(m abi.Member) bool { return m.Hidden })
			event.Copies = &abi.Copies{Off: c.Off, Size: c.Entry.Size, Values: values}
		}
		d.Events = append(d.Events, event)
	}
	for _, c := range p.Counters {
		d.Counters = append(d.Counters, c.Name)
	}
	tallies := p.Tallies()
	for _, prog := range p.Programs {
		pd := describeProgram(prog, tallies)
		d.Programs = append(d.Programs, pd)
		d.Lookups = d.Lookups || len(pd.Lookups) > 0
	}
	return d
}

// describeSession describes a kind of sessions. tables are the indexes of tables.
func describeSession(s *ir.Session, tables map[*ir.Table]int) abi.Session {
	sd := abi.Session{Name: s.Name, Size: s.Size, Lifetime: time.Duration(s.Lifetime), Idle: time.Duration(s.Idle)}
	for _, f := range s.Fields {
		fd := abi.Field{
			Name: f.Name, Kind: f.Type.Kind.ABI(), Bits: f.Type.Bits, Levels: f.Type.Levels, Size: f.Type.Size,
		}
		for _, r := range f.Is {
			fd.Ranges = append(fd.Ranges, [2]uint64{r.Min, r.Max})
		}
		sd.Fields = append(sd.Fields, fd)
	}
	for _, r := range s.Rows {
		sd.Rows = append(sd.Rows, abi.Row{Table: tables[r.Table], Key: r.Key, Value: r.Value})
	}
	return sd
}

func describeProgram(prog *ir.Program, tallies *ir.Tallies) abi.Program {
	pd := abi.Program{Name: prog.Name, L2: prog.L2, Base: tallies.Base(prog)}
	parse(&pd.Hook, prog.Hook)
	if prog.XDP != nil {
		pd.XDPBase = tallies.Base(prog.XDP)
	}
	for i, r := range prog.Reasons {
		pd.Reasons = append(pd.Reasons, abi.Reason{
			Name: r.Name, Kind: reasonKinds[r.Kind], Number: tallies.Number(prog, i), Doc: r.Doc,
		})
	}
	for _, version := range []int{4, 6} {
		if looksUp(prog, version) {
			pd.Lookups = append(pd.Lookups, version)
		}
	}
	return pd
}

// looksUp reports whether a program asks the kernel for the routes of packets of an IP version.
func looksUp(prog *ir.Program, version int) bool {
	for s := range ir.Stmts(prog.Body) {
		if check, ok := s.(*ir.CheckHop); ok && check.Hop.Row == nil && check.Hop.Family == version {
			return true
		}
	}
	return false
}

// parse takes a word of the plan, which has no others.
func parse(to encoding.TextUnmarshaler, word string) {
	if err := to.UnmarshalText([]byte(word)); err != nil {
		panic("glue: " + err.Error())
	}
}

var reasonKinds = map[ir.ReasonKind]abi.ReasonKind{
	ir.Sent: abi.ReasonSent, ir.Passed: abi.ReasonPassed, ir.Dropped: abi.ReasonDropped, ir.Punted: abi.ReasonPunted,
	ir.Fault: abi.ReasonFault, ir.Copied: abi.ReasonCopied, ir.Declined: abi.ReasonDeclined,
}

func members(s ir.Struct) []abi.Member {
	var out []abi.Member
	for _, m := range s.Members {
		md := abi.Member{
			Name: m.Name, Kind: m.Type.Kind.ABI(), Bits: m.Type.Bits, Levels: m.Type.Levels, Size: m.Type.Size,
			Off: m.Off, Hidden: m.Hidden,
		}
		if m.Type.Kind == ir.Hop {
			md.To = m.To.Name
			if m.From != nil {
				md.From = m.From.Name
			}
			md.Proto = m.Proto
		}
		out = append(out, md)
	}
	return out
}

// value turns the bytes of a setting's default into the Go value that the runtime takes.
func value(t ir.Type, b []byte) any {
	switch t.Kind {
	case ir.Uint:
		var wide [8]byte
		copy(wide[:], b)
		return binary.LittleEndian.Uint64(wide[:])
	case ir.Bool:
		return b[0] != 0
	case ir.Mac:
		return net.HardwareAddr(b)
	case ir.Addr:
		return netip.AddrFrom16([16]byte(b)).Unmap()
	}
	return b
}
