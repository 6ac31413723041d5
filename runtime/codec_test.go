package runtime

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// Values for each level of priority are given as an array or a slice, and come back as a slice.
func TestLevelValues(t *testing.T) {
	members := []abi.Member{
		{Name: "id", Kind: abi.KindBytes, Levels: 3, Size: 6},
		{Name: "port", Kind: abi.KindUint, Bits: 12, Levels: 3, Size: 6, Off: 6},
		{Name: "at", Kind: abi.KindEndpoint, Levels: 2, Size: 2 * abi.EndpointSize, Off: 12},
	}
	size := 12 + 2*abi.EndpointSize
	ends := [2]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:5"), netip.MustParseAddrPort("[2001:db8::1]:6")}
	b, err := encodeMembers("row", members, size, []any{[3][2]byte{{1, 2}, {3, 4}, {5, 6}}, []int{7, 8, 0xFFF}, ends})
	if err != nil {
		t.Fatal(err)
	}
	want := []any{
		[]any{[]byte{1, 2}, []byte{3, 4}, []byte{5, 6}}, []any{uint64(7), uint64(8), uint64(0xFFF)},
		[]any{ends[0], ends[1]},
	}
	got := decodeMembers(members, b, nil)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	back := Levels(got[2], func(v any) netip.AddrPort { return v.(netip.AddrPort) })
	if [2]netip.AddrPort(back) != ends {
		t.Errorf("the endpoints are %v", back)
	}
	for reason, ports := range map[string]any{
		"has 2 values, must have 3":                       []int{7, 8},
		"doesn't fit in 12 bits (at most 4095) (level 2)": []int{7, 8, 0x1000},
		"is a int, an array of 3 values":                  7, "is missing": nil,
	} {
		_, err := encodeMembers("row", members, size, []any{[3][2]byte{}, ports, ends})
		if err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%v: %v", ports, err)
		}
	}
}
