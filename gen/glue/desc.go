package glue

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// Desc describes a plan to the runtime.
func Desc(p *ir.Plan) runtime.Desc {
	d := runtime.Desc{
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
		sd := runtime.SettingDesc{Name: s.Name, Kind: kind(s.Type), Size: s.Type.Size, Bits: s.Type.Bits, Required: s.Default == nil, Min: s.Min, Max: s.Max}
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
		td := runtime.TableDesc{
			Name: t.Name, Kind: t.Kind, PerCPU: t.PerCPU, Size: t.Size,
			Key: members(t.Key), KeySize: t.Key.Size, Value: members(t.Value), ValueSize: t.Value.Size, Session: -1,
		}
		for i, s := range p.Sessions {
			if t.Session == s {
				td.Session = i
			}
		}
		d.Tables = append(d.Tables, td)
	}
	for _, s := range p.Sessions {
		sd := runtime.SessionDesc{Name: s.Name, Size: s.Size, Lifetime: s.Lifetime, Idle: s.Idle}
		for _, f := range s.Fields {
			fd := runtime.FieldDesc{Name: f.Name, Kind: kind(f.Type), Bits: f.Type.Bits, Size: f.Type.Size}
			for _, r := range f.Is {
				fd.Ranges = append(fd.Ranges, [2]uint64{r.Min, r.Max})
			}
			sd.Fields = append(sd.Fields, fd)
		}
		for _, r := range s.Rows {
			sd.Rows = append(sd.Rows, runtime.RowDesc{Table: tables[r.Table], Key: r.Key, Value: r.Value})
		}
		d.Sessions = append(d.Sessions, sd)
	}
	for _, g := range p.Groups {
		d.Groups = append(d.Groups, runtime.GroupDesc{
			Name: g.Name, Max: g.Max, Rows: g.Rows, Size: g.Size, Base: g.Base,
			Key: members(g.Key), KeySize: g.Key.Size, Receiver: members(g.Receivers.Value), ReceiverSize: g.Receivers.Value.Size,
		})
	}
	for _, e := range p.Events {
		d.Events = append(d.Events, runtime.EventDesc{Name: e.Name, Fields: members(e.Fields), Size: e.Fields.Size, Required: e.Required})
	}
	for _, c := range p.Counters {
		d.Counters = append(d.Counters, c.Name)
	}
	for _, prog := range p.Programs {
		pd := runtime.ProgramDesc{Name: prog.Name, Hook: prog.Hook, L2: prog.L2, Base: prog.Base}
		for _, r := range prog.Reasons {
			pd.Reasons = append(pd.Reasons, runtime.ReasonDesc{Name: r.Name, Kind: reasonKinds[r.Kind], Doc: r.Doc})
		}
		d.Programs = append(d.Programs, pd)
	}
	return d
}

var reasonKinds = map[ir.ReasonKind]string{
	ir.Sent: "sent", ir.Passed: "pass", ir.Dropped: "drop", ir.Punted: "up", ir.Fault: "fault",
	ir.Copied: "copy", ir.Declined: "declined",
}

func members(s ir.Struct) []runtime.MemberDesc {
	index := map[*ir.Member]int{}
	for i, m := range s.Members {
		index[m] = i
	}
	var out []runtime.MemberDesc
	for _, m := range s.Members {
		md := runtime.MemberDesc{Name: m.Name, Kind: kind(m.Type), Bits: m.Type.Bits, Size: m.Type.Size, Off: m.Off, Hidden: m.Hidden}
		if m.Type.Kind == ir.Hop {
			md.To, md.From = index[m.To], -1
			if m.From != nil {
				md.From = index[m.From]
			}
		}
		out = append(out, md)
	}
	return out
}

func kind(t ir.Type) runtime.Kind {
	switch t.Kind {
	case ir.Uint:
		return runtime.KindUint
	case ir.Bool:
		return runtime.KindBool
	case ir.Bytes:
		return runtime.KindBytes
	case ir.Mac:
		return runtime.KindMac
	case ir.Addr:
		return runtime.KindAddr
	case ir.Endpoint:
		return runtime.KindEndpoint
	case ir.Prefix:
		return runtime.KindPrefix
	case ir.NextHop:
		return runtime.KindNextHop
	case ir.Hop:
		return runtime.KindHop
	case ir.Ctr:
		return runtime.KindCounter
	case ir.Credit:
		return runtime.KindCredit
	case ir.Bucket:
		return runtime.KindBucket
	case ir.Translation:
		return runtime.KindTranslation
	}
	panic(fmt.Sprintf("glue: type of kind %d", t.Kind))
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
