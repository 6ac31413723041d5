package specgen_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/test/specgen"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Each byte of each field of bytes, of the standard headers and of others, is the one that is there in the packet. The
// offsets are those of the RFCs, and no part of the compiler knows them.
func TestBytesOfFields(t *testing.T) {
	offsets := map[string]map[string]int{
		"eth":      {"dst": 0, "src": 6},
		"ipv4":     {"src": 14 + 12, "dst": 14 + 16},
		"ipv4_any": {"src": 14 + 12, "dst": 14 + 16},
		"ipv6":     {"src": 14 + 8, "dst": 14 + 24},
		"own":      {"four": 0, "sixteen": 4, "mac": 20, "plain": 26, "maybe": 32},
	}
	const own = `headers: own: fields: [
		{name: "four", bytes: 4, type: "ip"}, {name: "sixteen", bytes: 16, type: "ip"},
		{name: "mac", bytes: 6, type: "mac"}, {name: "plain", bytes: 5}, {name: "kind", bits: 8},
		{name: "maybe", bytes: 4, type: "ip", when: "kind != 300 && four[3] != 256"},
	]
headers: gap: fields: [{name: "ports", bits: 64}]
`
	s, _, _ := specgen.Plan([]byte("name: \"s\"\n" + own))
	rnd := rand.New(rand.NewPCG(1, 1))
	seen := 0
	for _, h := range s.Headers {
		if h.Std && h.Name.Value != "eth" && (len(h.After) == 0 || h.After[0].Parent.Value == "socket") {
			continue // of a socket: there is no packet
		}
		for _, f := range h.Fields {
			if f.Kind != spec.FieldBytes {
				continue
			}
			at, known := offsets[h.Name.Value][f.Name.Value]
			if !known {
				t.Errorf("nothing says where %s.%s is", h.Name.Value, f.Name.Value)
				continue
			}
			for _, ip := range []string{"ipv4", "ipv6", "ipv4_any"} {
				if h.Std && h.Name.Value != "eth" && h.Name.Value != ip {
					continue
				}
				front := map[string]int{"ipv4": 34, "ipv6": 54, "ipv4_any": 34}[ip] + 8
				start := at
				if !h.Std {
					start += front
				}
				seen += f.Bytes
				for _, name := range []string{h.Name.Value, "entry"} {
					entry := func(n string) string {
						if n == h.Name.Value && name == "entry" {
							return fmt.Sprintf("{entry: %q}", n)
						}
						return fmt.Sprintf("%q", n)
					}
					text := "name: \"bytes\"\n" + own + "headers: out: fields: ["
					var sets []string
					for i := range f.Bytes {
						text += fmt.Sprintf("{name: \"b%d\", bits: 8}, ", i)
						sets = append(sets, fmt.Sprintf("\"out.b%d\": \"%s.%s[%d]\"", i, name, f.Name.Value, i))
					}
					text += fmt.Sprintf("]\nprograms: p: {hook: \"tc/egress\", stack: [%s, %s, \"gap\", %s, \"out\"], "+
						"do: [{set: {%s}}, \"pass\"]}\n",
						entry("eth"), entry(ip), entry("own"), strings.Join(sets, ", "))
					copied(t, text, ip, front, start, f.Bytes, rnd)
				}
			}
		}
	}
	total := 0
	for _, h := range slices.Sorted(maps.Keys(offsets)) {
		total += len(offsets[h])
	}
	t.Logf("%d fields, %d bytes", total, seen)
}

// copied runs a program that copies n bytes of a packet to its end, on random packets.
func copied(t *testing.T, text, ip string, front, from, n int, rnd *rand.Rand) {
	t.Helper()
	_, plan, res := specgen.Plan([]byte(text))
	if plan == nil {
		t.Errorf("%s\n%s", res.Log, text)
		return
	}
	r, err := sim.New(plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	to := front + 36
	for range 20 {
		p := make([]byte, to+n+rnd.IntN(9))
		for i := range p {
			p[i] = byte(rnd.Uint32())
		}
		length := len(p) - 14
		if ip == "ipv6" {
			copy(p[12:], []byte{0x86, 0xdd, 0x60, 0})
			binary.BigEndian.PutUint16(p[18:], uint16(length-40))
			p[20] = 17
		} else {
			copy(p[12:], []byte{8, 0, 0x45, 0})
			binary.BigEndian.PutUint16(p[16:], uint16(length))
			p[20], p[21], p[23] = 0x40, 0, 17
		}
		res, err := r.Run("p", sim.Packet{Data: p})
		if err != nil {
			t.Errorf("%v\n%s", err, text)
			return
		}
		if res.Verdict != sim.VerdictPass {
			t.Errorf("%s %s\n%x\n%s", res.Verdict, res.Reason, p, text)
			return
		}
		if got := res.Packet.Data[to : to+n]; !slices.Equal(got, p[from:from+n]) {
			t.Errorf("read %x, but %x is in the packet\n%s", got, p[from:from+n], text)
			return
		}
	}
}

// If a name may stand for addresses of both versions, an index means a byte of the form with 16 bytes.
func TestBytesOfEitherFamily(t *testing.T) {
	const text = `name: "either"
headers: out: fields: [{name: "a", bits: 8}, {name: "b", bits: 8}, {name: "c", bits: 8}, {name: "d", bits: 8}]
programs: p: {
	hook: "tc/egress"
	stack: ["eth", "ip", "udp", "out"]
	rules: [
		{when: "ipv4", do: [
			{let: last: "ipv4.src"},
			{set: {"out.a": "ipv4.src[3]", "out.b": "ip.src[15]", "out.c": "udp.src.addr[15]", "out.d": "last[15]"}},
			"pass",
		]},
		{do: [
			{set: {"out.a": "ipv6.src[15]", "out.b": "ip.src[15]", "out.c": "udp.src.addr[15]", "out.d": "ip.dst[10]"}},
			"pass",
		]},
	]
}
`
	rnd := rand.New(rand.NewPCG(1, 1))
	_, plan, res := specgen.Plan([]byte(text))
	if plan == nil {
		t.Fatal(res.Log)
	}
	r, err := sim.New(plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, v6 := range []bool{false, true} {
		p := make([]byte, 46)
		front := 42
		if v6 {
			p, front = make([]byte, 66), 62
		}
		for i := range p {
			p[i] = byte(rnd.Uint32())
		}
		last := p[29]
		want := []byte{last, last, last, last}
		if v6 {
			copy(p[12:], []byte{0x86, 0xdd, 0x60, 0})
			copy(p[18:], []byte{0, 12, 17})
			want = []byte{p[37], p[37], p[37], p[48]}
		} else {
			copy(p[12:], []byte{8, 0, 0x45, 0, 0, 32})
			p[20], p[21], p[23] = 0x40, 0, 17
		}
		copy(p[front-4:], []byte{0, 12})
		res, err := r.Run("p", sim.Packet{Data: p})
		if err != nil {
			t.Fatal(err)
		}
		if got := res.Packet.Data[front:]; res.Verdict != sim.VerdictPass || !slices.Equal(got, want) {
			t.Errorf("IPv6 %t: %s %s: %x, want %x", v6, res.Verdict, res.Reason, got, want)
		}
	}
}
