package bpf_test

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Packets of both families leave as either one: what writes a kind of packet stands once, and is called for both kinds
// that come. What both sides know of the packet that came is computed once, and whether it can leave is checked where
// it is written. If there is one kind only, one function does all. What is checked in several places stands once, too;
// and functions that are alike are one (meet.go), which is why there are no others for IPv6.
func TestSharedWrite(t *testing.T) {
	for _, test := range []struct {
		file string
		want []string // functions, and how often they are called
	}{
		{"../../examples/turn/spec.cue", []string{
			"check_channel_data 2", "check_eth 2", "check_ipv4 2", "check_ipv6 2", "check_udp 4", "fr_csum 4",
			"fr_fits 2", "to_client_send_ip 4", "to_peer_send_ip 4",
		}},
		{"../../golden/checksum/spec.cue", []string{
			"check_eth 1", "check_ipv4 1", "check_ipv6 1", "check_udp 2", "fr_csum 1",
			"prog_hop_ip_send 2",
		}},
	} {
		text, err := os.ReadFile(test.file)
		if err != nil {
			t.Fatal(err)
		}
		s, diags := spec.Load(test.file, text)
		if err := diags.Err(); err != nil {
			t.Fatal(err)
		}
		for _, p := range s.Programs {
			p.XDP = false
		}
		plan, diags := gen.Compile(s)
		if err := diags.Err(); err != nil {
			t.Fatal(err)
		}
		source, err := bpf.Render(plan, bpf.Options{})
		if err != nil {
			t.Fatal(err)
		}
		calls := map[string]int{}
		shared := regexp.MustCompile(`(?:return |if \(|\?:\s+|=\s+|!)(check_\w+|\w+_send\w*|fr_csum|fr_fits)\(`)
		for _, m := range shared.FindAllStringSubmatch(source.C, -1) {
			calls[m[1]]++
		}
		delete(calls, "fr_send")
		var got []string
		for name, n := range calls {
			got = append(got, name+" "+string(rune('0'+n)))
		}
		slices.Sort(got)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, not %q", test.file, got, test.want)
		}
	}
}
