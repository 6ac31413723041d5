package cli

import (
	"net"
	"net/netip"
	"reflect"
	"testing"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
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
		{abi.KindBucket, "125000/0x7530", runtime.Rate{PerSecond: 125000, Burst: 30000}},
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
		got, err := readValues(member{kind: abi.KindUint, levels: 3}, text)
		if (err != nil) != (want == nil) || err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
