package cli

import (
	"net"
	"net/netip"
	"reflect"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/literal"
)

func TestReadValue(t *testing.T) {
	for _, tt := range []struct {
		kind abi.Kind
		text string
		want any
	}{
		{abi.KindUint, "0x4001", uint64(0x4001)},
		{abi.KindCounter, " 4 ", uint64(4)},
		{abi.KindBool, "true", true},
		{abi.KindBytes, "0a0b", []byte{10, 11}},
		{abi.KindMAC, "02:00:00:00:00:01", net.HardwareAddr{2, 0, 0, 0, 0, 1}},
		{abi.KindNextHop, "2001:db8::1", netip.MustParseAddr("2001:db8::1")},
		{abi.KindEndpoint, "[2001:db8::1]:5", netip.MustParseAddrPort("[2001:db8::1]:5")},
		{abi.KindPrefix, "10.0.0.0/8", netip.MustParsePrefix("10.0.0.0/8")},
		{abi.KindCredit, "1000", uint64(1000)},
		{abi.KindBucket, "125000/0x7530", literal.Rate{PerSecond: 125000, Burst: 30000}},
		{abi.KindBucket, "125000", nil},
		{abi.KindBucket, "1/2/3", nil},
		{abi.KindTranslation, "1", nil},
		{abi.KindUint, "-1", nil},
		{abi.KindEndpoint, "192.0.2.1", nil},
		{abi.KindAddr, "example.com", nil},
		{abi.KindHop, "1", nil},
	} {
		got, err := readValue(tt.kind, tt.text)
		if (err != nil) != (tt.want == nil) || err == nil && !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%v %q: %v, %v", tt.kind, tt.text, got, err)
		}
	}
}

func TestReadValues(t *testing.T) {
	for text, want := range map[string]any{
		"7": []any{uint64(7), uint64(7), uint64(7)}, "7,8,0x9": []any{uint64(7), uint64(8), uint64(9)},
		"7,8": nil, "7,8,9,10": nil, "7,,9": nil,
	} {
		got, err := readValues(abi.KindUint, 3, text, func(v any) any { return v })
		if (err != nil) != (want == nil) || err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

// A text means the same in a spec, on the command line of run, and in a request to a control socket; what one of them
// refuses, all do.
func TestLiteralsAreTheSameEverywhere(t *testing.T) {
	const refused = ""
	for _, tt := range []struct {
		in   ir.Kind
		kind abi.Kind
		size int
		text string
		want string
	}{
		{ir.Prefix, abi.KindPrefix, 0, "203.0.113.0/24", "203.0.113.0/24"},
		{ir.Prefix, abi.KindPrefix, 0, "203.0.113.5/24", "203.0.113.0/24"},
		{ir.Prefix, abi.KindPrefix, 0, "2001:db8::5/32", "2001:db8::/32"},
		{ir.Prefix, abi.KindPrefix, 0, "::ffff:203.0.113.0/24", refused},
		{ir.Prefix, abi.KindPrefix, 0, "fe80::1%eth0/64", refused},
		{ir.Prefix, abi.KindPrefix, 0, "203.0.113.0", refused},
		{ir.Addr, abi.KindAddr, 0, "2001:DB8::1", "2001:db8::1"},
		{ir.Addr, abi.KindAddr, 0, "fe80::1%eth0", refused},
		{ir.NextHop, abi.KindNextHop, 0, "fe80::1%eth0", refused},
		{ir.Endpoint, abi.KindEndpoint, 0, "[2001:db8::1]:9", "[2001:db8::1]:9"},
		{ir.Endpoint, abi.KindEndpoint, 0, "[fe80::1%eth0]:9", refused},
		{ir.Mac, abi.KindMAC, 6, "02-00-00-00-00-01", "02:00:00:00:00:01"},
		{ir.Mac, abi.KindMAC, 6, "02:00:00:00:00:00:00:01", refused},
		{ir.Bytes, abi.KindBytes, 2, "00FF", "00ff"},
		{ir.Bytes, abi.KindBytes, 2, "0g", refused},
	} {
		where := func(place string, got any, err error) {
			t.Helper()
			if err != nil {
				got = refused
			}
			if got != tt.want {
				t.Errorf("%s, %v %q: %q (%v), want %q", place, tt.kind, tt.text, got, err, tt.want)
			}
		}
		spec := ir.Type{Kind: tt.in, Size: tt.size}
		b, err := spec.Parse(tt.text)
		if err != nil {
			where("in a spec", nil, err)
		} else {
			where("in a spec", spec.Show(b), nil)
		}
		v, err := readValue(tt.kind, tt.text)
		where("on the command line", api.Encode(v), err)
		v, err = api.Decode(abi.Member{Kind: tt.kind, Size: tt.size}, tt.text)
		where("in a request", api.Encode(v), err)
	}
}
