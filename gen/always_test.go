package gen_test

import (
	"encoding/binary"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/always"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/sample"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// odd makes packets odd, each under the reason that it is counted by when a program takes none of the kind, and which
// its name begins with. It returns false if a packet can't be made so. A frame is a copy.
var odd = map[string]func(p *sim.Packet, w *sim.World) bool{
	"inactive":            func(_ *sim.Packet, w *sim.World) bool { w.Conditions = []string{"lapsed"}; return true },
	"vlan_tag":            func(p *sim.Packet, _ *sim.World) bool { p.VLAN = &sim.Tag{Proto: 0x8100}; return true },
	"other_host":          func(p *sim.Packet, _ *sim.World) bool { p.Link = ir.ToOther; return true },
	"link_broadcast":      func(p *sim.Packet, _ *sim.World) bool { p.Link = ir.ToBroadcast; return true },
	"link_multicast":      func(p *sim.Packet, _ *sim.World) bool { p.Link = ir.ToMulticast; return true },
	"gso_packet":          func(p *sim.Packet, _ *sim.World) bool { merge(p); return true },
	"gso_packet, others":  func(p *sim.Packet, _ *sim.World) bool { p.GSO = 600; return true },
	"gso_packet, tunnels": func(p *sim.Packet, _ *sim.World) bool { p.GSO, p.Tunnel = 600, true; return true },
	"truncated":           func(p *sim.Packet, _ *sim.World) bool { p.Data = p.Data[:10]; return true },
	"ip_options":          inIPv4(func(ip []byte) { ip[0]++ }),
	"fragment":            inIPv4(func(ip []byte) { ip[6] |= 0x20 }),
	"ipv4_reserved":       inIPv4(func(ip []byte) { ip[6] |= 0x80 }),
	"not_udp":             inIPv4(func(ip []byte) { ip[9] = 253 }),
	"martian_source":      inIPv4(func(ip []byte) { copy(ip[12:], []byte{127, 0, 0, 1}) }),
	"multicast":           inIPv4(func(ip []byte) { copy(ip[16:], []byte{239, 1, 1, 1}) }),
	"martian_destination": inIPv4(func(ip []byte) {
		copy(ip[16:], []byte{127, 0, 0, 1})
	}),
	"ipv4_checksum": func(p *sim.Packet, w *sim.World) bool {
		ok := inIPv4(func([]byte) {})(p, w)
		if ok {
			p.Data[14+11] ^= 1
		}
		return ok
	},
	"ipv6_payload_length": inIPv6(func(ip []byte) bool { ip[4] = 0xff; return true }),
	"not_udp, extension":  inIPv6(func(ip []byte) bool { ip[6] = 60; return true }),
	"mapped_address":      inIPv6(func(ip []byte) bool { copy(ip[8:], mapped); return true }),
	"udp_checksum, 0": inIPv6(func(ip []byte) bool {
		if ip[6] != 17 || len(ip) < 48 {
			return false
		}
		ip[46], ip[47] = 0, 0
		return true
	}),
	"not_ip": func(p *sim.Packet, _ *sim.World) bool { binary.BigEndian.PutUint16(p.Data[12:], 0x88B5); return true },
}

// merge makes a GSO packet of one, of a type that may enter tunnels.
func merge(p *sim.Packet) {
	start, proto, field := 0, byte(0), 6
	switch b := p.Data; {
	case len(b) >= 34 && b[12] == 0x08 && b[13] == 0:
		start, proto = 14+int(b[14]&15)*4, b[23]
	case len(b) >= 54 && b[12] == 0x86 && b[13] == 0xdd:
		start, proto = 54, b[20]
	}
	p.GSO = 600
	if start == 0 || start+20 > len(p.Data) {
		return
	}
	if p.Segments = 17; proto == 6 {
		p.Segments, field = 6, 16
	}
	p.Partial = sim.Partial{Start: start, Field: start + field}
}

var mapped = []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1}

// inIPv6 changes what begins with the IPv6 header that follows the link-layer header.
func inIPv6(change func(ip []byte) bool) func(p *sim.Packet, w *sim.World) bool {
	return func(p *sim.Packet, _ *sim.World) bool {
		return len(p.Data) >= 54 && binary.BigEndian.Uint16(p.Data[12:]) == 0x86DD && change(p.Data[14:])
	}
}

// inIPv4 changes the IPv4 header that follows the link-layer header, and its checksum.
func inIPv4(change func(ip []byte)) func(p *sim.Packet, w *sim.World) bool {
	return func(p *sim.Packet, _ *sim.World) bool {
		if len(p.Data) < 34 || binary.BigEndian.Uint16(p.Data[12:]) != 0x0800 {
			return false
		}
		ip := p.Data[14:34]
		change(ip)
		ip[10], ip[11] = 0, 0
		sum := uint32(0)
		for i := 0; i < 20; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(ip[i:]))
		}
		sum = sum>>16 + sum&0xffff
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
		return true
	}
}

// unlike are kinds of which a path takes packets, but not one that random packets get to: VLAN tags in the metadata, an
// address of the same family, a rule that leaves the datagram as it is.
var unlike = []string{
	"sized-uint change: udp_checksum, 0", "slack messages: udp_checksum, 0", "slack records: udp_checksum, 0",
	"tail-family forward: gso_packet", "tail-family forward: gso_packet, others",
	"tail-family forward: gso_packet, tunnels", "vlan forward: gso_packet", "vlan forward: gso_packet, others",
	"vlan forward: gso_packet, tunnels",
}

// What vet says always passes to the stack does: a packet that a rule has taken is made odd, and then passes to the
// stack, for a reason that is among those said. Of what isn't said, some packets are taken.
func TestAlways(t *testing.T) {
	said, dropped, counted, unsaid, missed := 0, 0, map[string]int{}, map[string]int{}, []string(nil)
	for _, pattern := range []string{"../golden/*/spec.cue", "../examples/*/spec.cue"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s, diags := spec.Load(file, src)
			if diags.Err() != nil {
				t.Fatal(diags.Err())
			}
			plan, diags := gen.Compile(s)
			if diags.Err() != nil {
				t.Fatal(diags.Err())
			}
			for _, p := range plan.Programs {
				if p.Hook == ir.Congestion {
					continue // there is no packet that could be odd
				}
				names := map[string]always.Case{}
				for _, up := range always.Punts(s, p) {
					names[up.Reason.Name] = up
				}
				tries := trials(t, s, plan, p)
				for _, kind := range slices.Sorted(maps.Keys(tries)) {
					what := filepath.Base(filepath.Dir(file)) + " " + p.Name + ": " + kind
					reason, _, _ := strings.Cut(kind, ",")
					up, named := names[reason]
					// What no single header tells apart can't be told here, either. What a tunnel takes isn't meant,
					// and a checksum of 0 only if it is named.
					certain := named && (len(up.In) == 0 || strings.HasPrefix(up.In[0], "ipv")) &&
						(kind != "gso_packet" || !strings.Contains(up.But, "its tunnel")) &&
						(kind != "gso_packet, tunnels" || !strings.Contains(up.But, "tunnel's headers")) &&
						(kind != "udp_checksum, 0" || strings.Contains(up.Reason.Doc, "is 0"))
					exact, taken := 0, 0
					for _, res := range tries[kind] {
						switch {
						case res.Verdict == sim.VerdictPunt && res.Reason == reason:
							exact++
						case res.Verdict != sim.VerdictPunt:
							taken++
						}
						switch _, ok := names[res.Reason]; {
						case !certain, res.Verdict == sim.VerdictPunt && ok:
						case res.Verdict == sim.VerdictDrop && strings.Contains(up.But, "drops"):
							dropped++
						default:
							t.Errorf("%s: it is said to pass to the stack always, and is %s, %s", what, res.Verdict,
								res.Reason)
						}
					}
					switch {
					case certain:
						said++
						counted[kind] += exact // 0 if the name is that of another header than the first IP header
					case taken == 0 && exact == len(tries[kind]) && !multicast(s, p): // whose addresses decide, too
						if !slices.Contains(unlike, what) {
							missed = append(missed, what)
						}
					case taken > 0:
						unsaid[kind]++
					}
				}
			}
		}
	}
	t.Logf("%d statements hold; of what isn't said, packets are taken in programs: %v", said, unsaid)
	for kind := range odd {
		if counted[kind] == 0 {
			t.Errorf("%s: no packet is counted so", kind)
		}
	}
	if dropped == 0 {
		t.Error("no packet that always passes to the stack is dropped where it is said that a rule may")
	}
	if len(missed) > 0 {
		t.Errorf("all packets are counted so, and it isn't said: %v", missed)
	}
	if said < 1000 || len(unsaid) < 6 {
		t.Errorf("only %d statements were tried, and %v that aren't made", said, unsaid)
	}
}

// multicast reports whether a program takes multicast.
func multicast(s *spec.Spec, p *ir.Program) bool {
	return slices.ContainsFunc(s.Programs, func(sp *spec.Program) bool {
		return sp.Name.Value == p.Name && sp.Multicast
	})
}

// trials runs packets that rules take in the model, made odd in each way, on the state on which they were taken.
func trials(t *testing.T, s *spec.Spec, plan *ir.Plan, p *ir.Program) map[string][]sim.Result {
	t.Helper()
	few, src := sample.Few(plan), sample.NewSource(3)
	settings := src.Settings(plan, 1)
	relay := func() *sim.Relay {
		r, err := sim.New(few, settings)
		if err != nil {
			t.Fatal(err)
		}
		r.World.Refuses, r.World.Clock = sim.Refuses, sample.Clock
		return r
	}
	model, probe := relay(), relay()
	all := map[string][]sim.Result{}
	taken := 0
	generators := src.Generators(s, plan, packet.NewHeaders(s), settings)
	for range 24 {
		for _, f := range src.State(few, model, generators...) {
			if f.Program.Name.Value != p.Name || taken == 12 {
				continue
			}
			run := func(change func(*sim.Packet, *sim.World) bool) (sim.Result, bool) {
				probe.CopyState(model)
				world := probe.World
				defer func() { probe.World = world }()
				pkt := sim.Packet{Data: slices.Clone(f.Frame.Data), Link: ir.ToHost}
				if len(pkt.Data) < 14 || !change(&pkt, &probe.World) {
					return sim.Result{}, false
				}
				res, err := probe.Run(p.Name, pkt)
				if err != nil {
					t.Fatal(err)
				}
				return res, true
			}
			res, ok := run(func(*sim.Packet, *sim.World) bool { return true })
			if !ok || res.Verdict == sim.VerdictPunt {
				continue
			}
			taken++
			for kind, change := range odd {
				if !p.L2 && !strings.Contains(kind, "inactive") {
					continue // of other frames than these
				}
				if res, ok := run(change); ok {
					all[kind] = append(all[kind], res)
				}
			}
		}
	}
	return all
}
