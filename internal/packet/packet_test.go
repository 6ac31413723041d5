package packet_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/spec"
)

func name(s string) spec.Name { return spec.Name{Value: s} }

func names(dotted string) *spec.Expr {
	e := &spec.Expr{Op: spec.OpName}
	for _, n := range strings.Split(dotted, ".") {
		e.Path = append(e.Path, name(n))
	}
	return e
}

func integer(v uint64) *spec.Expr { return &spec.Expr{Op: spec.OpInt, Int: v} }

func is(v uint64) *spec.Constraint {
	return &spec.Constraint{Op: spec.IsEq, Value: spec.Literal{Int: v}}
}

func uintField(n string, bits int) *spec.Field { return &spec.Field{Name: name(n), Bits: bits} }

func after(parent, field string, v uint64) []*spec.After {
	return []*spec.After{{Parent: name(parent), Match: []*spec.FieldMatch{{Field: names(field), Is: is(v)}}}}
}

// protocols declares eth, ipv4 with options, udp, and headers with fields of every kind.
func protocols() *spec.Spec {
	mac := func(n, role string) *spec.Field {
		return &spec.Field{Name: name(n), Kind: spec.FieldBytes, Bytes: 6, Type: "mac", Role: name(role)}
	}
	ip := func(n string) *spec.Field {
		return &spec.Field{Name: name(n), Kind: spec.FieldBytes, Bytes: 4, Type: "ip"}
	}
	counts := func(f *spec.Field, what string, unit int, slack int) *spec.Field {
		f.Counts = &spec.Counts{What: what, Unit: unit, Slack: slack}
		return f
	}
	dst := ip("dst")
	dst.Role = name("destination")
	version := uintField("version", 4)
	version.Is = is(4)
	ttl := uintField("ttl", 8)
	ttl.Role = name("hop_limit")
	ipSum := uintField("checksum", 16)
	ipSum.Checksum = &spec.Checksum{Covers: "header"}
	options := &spec.Field{Name: name("options"), Kind: spec.FieldSized, Max: 40, Size: &spec.Expr{Op: spec.OpMul,
		Args: []*spec.Expr{
			{Op: spec.OpSub, Args: []*spec.Expr{names("ihl"), integer(5)}}, integer(4),
		}}}
	udpSum := uintField("checksum", 16)
	udpSum.Checksum = &spec.Checksum{
		Covers: "all", Pseudo: []*spec.Expr{names("ip.src"), names("ip.dst"), integer(17), names("length")},
		Absent: []spec.Name{name("ipv4")}, Optional: true, Offloaded: true,
	}
	pnSize := uintField("pn_size", 2)
	number := uintField("number", 16)
	number.Is = &spec.Constraint{Op: spec.IsAnd, Args: []*spec.Constraint{
		{Op: spec.IsGe, Value: spec.Literal{Int: 0x4000}}, {Op: spec.IsLe, Value: spec.Literal{Int: 0x4fff}},
	}}
	little := uintField("little", 32)
	little.Little = true
	return &spec.Spec{
		Alternatives: []*spec.Alternatives{{Name: name("ip"), Headers: []spec.Name{name("ipv4"), name("ipv6")}}},
		Headers: []*spec.Header{
			{
				Name: name("eth"), Fields: []*spec.Field{
					mac("dst", "link_destination"), mac("src", "link_source"), uintField("type", 16),
				},
			},
			{Name: name("ipv4"), After: after("eth", "type", 0x800), Fields: []*spec.Field{
				version, counts(uintField("ihl", 4), "header", 4, 0), uintField("dscp", 6), uintField("ecn", 2),
				counts(uintField("length", 16), "all", 1, -1), uintField("id", 16), uintField("flags", 3),
				uintField("offset", 13),
				ttl, uintField("protocol", 8), ipSum, ip("src"), dst, options,
			}, Parts: []*spec.Part{{Name: name("hop_limit"), Alias: names("ttl")}}},
			{Name: name("udp"), After: after("ipv4", "protocol", 17), Fields: []*spec.Field{
				uintField("src_port", 16), uintField("dst_port", 16), counts(uintField("length", 16), "all", 1, 0),
				udpSum,
			}, Parts: []*spec.Part{
				{Name: name("src"), Addr: names("ip.src"), Port: names("src_port")},
				{Name: name("dst"), Addr: names("ip.dst"), Port: names("dst_port")},
			}},
			{
				Name: name("channel_data"), Fields: []*spec.Field{
					number, counts(uintField("length", 16), "payload", 1, 3),
				},
			},
			{Name: name("odd"), Trailer: 4, Fields: []*spec.Field{
				uintField("a", 3), uintField("has_extra", 1), uintField("b", 2), pnSize,
				{
					Name: name("pn"), Kind: spec.FieldSized, Max: 4,
					Size: &spec.Expr{Op: spec.OpAdd, Args: []*spec.Expr{names("pn_size"), integer(1)}},
				},
				little,
				{Name: name("id"), Kind: spec.FieldVarint},
				{Name: name("extra"), Bits: 16, When: names("has_extra")},
			}},
			{Name: name("sized"), Fields: []*spec.Field{
				uintField("size", 8),
				{
					Name: name("n"), Kind: spec.FieldSized, Max: 4, Type: "uint",
					Size: &spec.Expr{Op: spec.OpAdd, Args: []*spec.Expr{names("size"), integer(1)}},
				},
				{
					Name: name("rest"), Kind: spec.FieldSized, Max: 8, Size: &spec.Expr{
						Op: spec.OpCall, Fn: name("low"), Args: []*spec.Expr{integer(0x1_0000_0003), names("n")},
					},
				},
			}},
		},
	}
}

func values(kv ...any) []*spec.TestValue {
	var out []*spec.TestValue
	for i := 0; i < len(kv); i += 2 {
		l := spec.Literal{Pos: diag.Pos{Line: 1, Column: i + 1}}
		switch v := kv[i+1].(type) {
		case int:
			l.Int = uint64(v)
		case string:
			l.Kind, l.Text = spec.LitString, v
		}
		out = append(out, &spec.TestValue{Name: spec.Name{Value: kv[i].(string), Pos: l.Pos}, Value: l})
	}
	return out
}

func layer(h string, kv ...any) *spec.Layer {
	return &spec.Layer{Header: name(h), Fields: values(kv...)}
}

func raw(s string) *spec.Layer { return &spec.Layer{Bytes: []byte(s)} }

func build(t *testing.T, ls ...*spec.Layer) []byte {
	t.Helper()
	hs := packet.NewHeaders(protocols())
	var diags diag.List
	frame := hs.Make(&spec.Packet{Layers: ls}, &diags).Data
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	return frame
}

func TestBuildAgainstGopacket(t *testing.T) {
	for n := range 40 {
		payload := bytes.Repeat([]byte{0xa5}, n)
		got := build(t, layer("eth"), layer("ipv4", "src", "198.51.100.7", "dst", "192.0.2.1", "hop_limit", 57, "id",
			9), layer("udp", "src_port", 40001, "dst_port", 3478), raw(string(payload)))
		eth := &layers.Ethernet{
			SrcMAC: packet.DefaultSource[:], DstMAC: packet.DefaultDestination[:],
			EthernetType: layers.EthernetTypeIPv4,
		}
		ip := &layers.IPv4{
			Version: 4, IHL: 5, Id: 9, TTL: 57, Protocol: layers.IPProtocolUDP, SrcIP: []byte{198, 51, 100, 7},
			DstIP: []byte{192, 0, 2, 1},
		}
		udp := &layers.UDP{SrcPort: 40001, DstPort: 3478}
		if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
			t.Fatal(err)
		}
		buf := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
			eth, ip, udp, gopacket.Payload(payload)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, buf.Bytes()[:42+n]) { // gopacket pads to 60 bytes
			t.Fatalf("%d bytes:\ngot  %x\nwant %x", n, got, buf.Bytes())
		}
	}
}

func TestEndpointSetsTheAddress(t *testing.T) {
	a := build(t, layer("eth"), layer("ipv4"), layer("udp", "src", "1.2.3.4:5", "dst", "6.7.8.9:10"))
	b := build(t, layer("eth"), layer("ipv4", "src", "1.2.3.4", "dst", "6.7.8.9"),
		layer("udp", "src_port", 5, "dst_port", 10))
	if !bytes.Equal(a, b) {
		t.Errorf("got  %x\nwant %x", a, b)
	}
}

func TestFieldKinds(t *testing.T) {
	for _, c := range []struct {
		name string
		l    *spec.Layer
		want string
	}{
		{"defaults", layer("odd"), "00 00 00000000 00 00000000"},
		{"bits", layer("odd", "a", 5, "b", 2), "a8 00 00000000 00 00000000"},
		{"size follows the bytes", layer("odd", "pn", "010203"), "02 010203 00000000 00 00000000"},
		{"bytes follow the size", layer("odd", "pn_size", 3), "03 00000000 00000000 00 00000000"},
		{"both given", layer("odd", "pn_size", 1, "pn", "0a"), "01 0a 00000000 00 00000000"},
		{"little endian", layer("odd", "little", 0x01020304), "00 00 04030201 00 00000000"},
		{"varint of 2 bytes", layer("odd", "id", 64), "00 00 00000000 4040 00000000"},
		{"varint of 8 bytes", layer("odd", "id", 1<<40), "00 00 00000000 c000010000000000 00000000"},
		{"varint as written", layer("odd", "id", "80000001"), "00 00 00000000 80000001 00000000"},
		{"condition", layer("odd", "has_extra", 1, "extra", 7), "10 00 00000000 00 0007 00000000"},
		{"an integer in the fewest bytes", layer("sized", "n", 0x10203), "02 010203 000000"},
		{"an integer in bytes that are given", layer("sized", "size", 1, "n", 5), "01 0005 000000"},
		{"an integer as written", layer("sized", "n", "0005"), "01 0005 000000"},
		{"an integer of zeros", layer("sized", "size", 1), "01 0000 000000"},
		{"default from a range", layer("channel_data"), "4000 0000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, err := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			if got := build(t, c.l); !bytes.Equal(got, want) {
				t.Errorf("got %x, want %x", got, want)
			}
		})
	}
}

func TestLengths(t *testing.T) {
	options := build(t, layer("eth"), layer("ipv4", "options", "0101010001010100"), layer("udp"), raw("x"))
	if options[14] != 0x47 || binary.BigEndian.Uint16(options[16:]) != 37 {
		t.Errorf("ipv4 with options: %x", options)
	}
	cd := build(t, layer("channel_data", "number", 0x4001), raw("hello"))
	if !bytes.Equal(cd, []byte("\x40\x01\x00\x05hello")) {
		t.Errorf("channel data: %x", cd)
	}
	given := build(t, layer("channel_data", "length", 9), raw("hello"))
	if !bytes.Equal(given, []byte("\x40\x00\x00\x09hello")) {
		t.Errorf("length that is given: %x", given)
	}
}

func TestMistakes(t *testing.T) {
	for _, c := range []struct {
		name, want string
		layers     []*spec.Layer
	}{
		{"header", `no header "etth" [FR0310]`, []*spec.Layer{layer("etth")}},
		{"group", `no header "ip" [FR0310]`, []*spec.Layer{layer("ip")}},
		{"field", `no field "scr_port" in header "udp" [FR0311]`, []*spec.Layer{layer("udp", "scr_port", 1)}},
		{"too large", `udp.src_port: 65536 doesn't fit into its 16 bits [FR0312]`,
			[]*spec.Layer{layer("udp", "src_port", 65536)}},
		{"address", `ipv4.src: "2001:db8::1" is not an IPv4 address [FR0312]`,
			[]*spec.Layer{layer("ipv4", "src", "2001:db8::1")}},
		{"link address", `is not a link-layer address`, []*spec.Layer{layer("eth", "src", "2:3")}},
		{"endpoint", `src is an endpoint [FR0312]`, []*spec.Layer{layer("ipv4"), layer("udp", "src", "1.2.3.4")}},
		{"absent", `odd.extra is given, but its condition doesn't hold [FR0313]`,
			[]*spec.Layer{layer("odd", "extra", 1)}},
		{"unit", `22 bytes are no multiple of its unit, 4 [FR0313]`, []*spec.Layer{layer("ipv4", "options", "0101")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var diags diag.List
			frame := packet.NewHeaders(protocols()).Make(&spec.Packet{Layers: c.layers}, &diags).Data
			if err := diags.Err(); frame != nil || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	hs := packet.NewHeaders(protocols())
	good := build(t, layer("eth"), layer("ipv4", "src", "198.51.100.7", "dst", "192.0.2.1"),
		layer("udp", "src_port", 40001, "dst_port", 3478), layer("channel_data", "number", 0x4001), raw("hello"))
	expect := []*spec.Layer{
		layer("eth"), layer("ipv4", "ttl", 64), layer("udp", "src", "198.51.100.7:40001"),
		layer("channel_data", "number", 0x4001), raw("hello"),
	}
	for _, c := range []struct {
		name string
		edit func([]byte) []byte
		want string
	}{
		{"good", func(f []byte) []byte { return f }, ""},
		{"field", func(f []byte) []byte { f[22], f[24] = 57, f[24]+7; return f }, "ipv4.ttl: got 57, want 64"},
		{"checksum", func(f []byte) []byte { f[41]++; return f }, "udp.checksum: got 0x"},
		{"no checksum", func(f []byte) []byte { f[40], f[41] = 0, 0; return f }, ""},
		{"length", func(f []byte) []byte { f[39]++; return f }, "udp.length: got 18, want 17"},
		{"constraint", func(f []byte) []byte {
			f[42] = 0x50
			return f
		}, "channel_data.number: got 20481 (0x5001), which the header doesn't allow"},
		{"payload", func(f []byte) []byte { f[46] = 'H'; return f }, `payload: got "Hello", want "hello"`},
		{"endpoint", func(f []byte) []byte { f[26] = 1; return f }, "ipv4.src: got 1.51.100.7, want 198.51.100.7"},
		{"cut", func(f []byte) []byte { return f[:30] }, "ipv4.dst: the packet ends inside of it"},
		{"after the datagram", func(f []byte) []byte { return append(f, 0, 0, 0) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var diags diag.List
			ls := hs.Resolve(expect, &diags)
			problems := hs.Check(c.edit(bytes.Clone(good)), ls, packet.Options{})
			var text []string
			for _, p := range problems {
				text = append(text, p.String())
			}
			got := strings.Join(text, "\n")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	var diags diag.List
	got := hs.Check(append(good, 0, 0, 0), hs.Resolve(expect, &diags), packet.Options{Exact: true})
	if len(got) != 1 || got[0].Text != "3 bytes follow the IP datagram" {
		t.Errorf("after the datagram of a packet that was sent: %v", got)
	}
}

func TestDiffNamesFields(t *testing.T) {
	hs := packet.NewHeaders(protocols())
	want := build(t, layer("eth"), layer("ipv4"), layer("udp"), raw("hello"))
	got := bytes.Clone(want)
	got[22], got[15], got[44] = 9, 0xb9, 'L'
	var text []string
	for _, p := range hs.Diff(got, want, hs.Guess(want, hs.Header("eth"))) {
		text = append(text, p.String())
	}
	if s := strings.Join(text, "; "); s !=
		`ipv4.dscp: got 46, want 0; ipv4.ecn: got 1, want 0; ipv4.ttl: got 9, want 64; byte 44: got "L", want "l"` {
		t.Error(s)
	}
}

func FuzzParseNeverPanics(f *testing.F) {
	f.Add([]byte{}, uint8(0))
	hs := packet.NewHeaders(protocols())
	all := protocols().Headers
	f.Fuzz(func(t *testing.T, frame []byte, from uint8) {
		before := bytes.Clone(frame)
		hs.Parse(frame, all[int(from)%len(all):], packet.Options{})
		hs.Guess(frame, all[0])
		if !bytes.Equal(frame, before) {
			t.Error("the frame was changed")
		}
	})
}
