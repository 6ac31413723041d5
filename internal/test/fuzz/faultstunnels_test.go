package fuzz_test

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Faults in what is taken out of tunnels.
var tunnelFaults = []fault{
	{where: "back end", spec: "tunnels", what: "the checksum outside isn't verified", plan: noGuard("udp_checksum")},
	{where: "code", spec: "tunnels", what: "the last byte isn't a part of the checksum outside",
		old: `(fr_sum_whole\(skb, 34, pkt->udp_end -) 34`, new: `$1 35`},
	{where: "code", spec: "tunnels", what: "the UDP header isn't a part of the checksum outside",
		old: `fr_sum_whole\(skb, 54, pkt->udp_end - 54`, new: `fr_sum_whole(skb, 62, pkt->udp_end - 62`},
	{where: "code", spec: "tunnels", what: "the length isn't a part of the pseudo-header",
		old: `bpf_htons\(be16\(&udp->length\)\) \+\s+fr_sum_whole`, new: `fr_sum_whole`},
	{where: "helper", spec: "tunnels", what: "what comes after the last 512 bytes isn't summed up",
		old: `sum \+= fr_sum512\(skb, off, len\);\n\treturn fr_fold\(sum\);`, new: `return fr_fold(sum);`},
	{where: "helper", spec: "tunnels", what: "the first 512 bytes are summed up again and again",
		old: `fr_sum512\(skb, off, 512\);\n\t\toff \+= 512;`, new: `fr_sum512(skb, off, 512);`},
	{where: "code", spec: "tunnels", what: "no checksum outside is accepted over IPv6",
		old: `be16\(&udp->checksum\) == 0 \|\|\s+!fr_sum_ok`, new: `be16(&udp->checksum) != 0 && !fr_sum_ok`},
	{where: "code", spec: "tunnels", what: "no checksum outside is refused over IPv4",
		old: `!\(be16\(&udp->checksum\) == 0 \|\|`, new: `!(`},
	{where: "code", spec: "tunnels", what: "a mark of congestion outside is lost",
		old: `\(be8\(&ipv4->dscp_ecn\) & 3\) == 3 \? 3ULL :`, new: ``},
	{where: "code", spec: "tunnels", what: "ECT(1) outside is lost",
		old: `(\(be8\(&ipv4->dscp_ecn\) & 3\)) == 1 &&`, new: `$1 == 2 &&`},
	{where: "code", spec: "tunnels", what: "what doesn't know of marks comes out although it was marked",
		old: `(& 3\) == 3 &&\s+\(\(be8\(ipv6_2->version_to_flow_label \+ 1\) >> 4\) & 3\) == 0)\)`, new: `$1 && 0)`},
	{where: "code", spec: "tunnels", what: "the hop limit inside stays", old: `\(be8\(&ipv6->hop_limit\) - 1\)`,
		new: `be8(&ipv6->hop_limit)`},
	{where: "back end", spec: "tunnels", what: "the last hop inside isn't the last", plan: noGuard("hop_limit")},
	{where: "code", spec: "tunnels", what: "the length inside is trusted, of IPv4",
		old: ` \|\|\s+inner_end > pkt->udp_end(\)\n\t+return fr_punt\(skb, [^;]*reason_ipv4_any_total_length\);)`,
		new: `$1`},
	{where: "code", spec: "tunnels", what: "the length inside is trusted, of IPv6",
		old: `if \(inner_end > udp_end\)\n\t\treturn reason_ipv6_payload_length;`, new: ``},
	{where: "back end", spec: "tunnels", what: "the header checksum inside isn't verified",
		plan: noGuard("ipv4_any_checksum")},
	{where: "back end", spec: "tunnels", what: "the header checksum inside stays", plan: sumStays("inner.checksum")},
	{where: "code", spec: "found-field-reused", what: "a checksum is computed over what was there before it",
		old: `st16\(&new_udp->checksum, 0\);`, new: ``},
}

// sumStays leaves the first checksum of a name as it was.
func sumStays(name string) func(*ir.Plan) bool {
	return rewritten(func(w *ir.Rewrite) bool {
		i := slices.IndexFunc(w.Sums, func(s *ir.Sum) bool { return s.Name == name && !s.Fresh })
		if i < 0 {
			return false
		}
		w.Sums = slices.Delete(w.Sums, i, i+1)
		return true
	})
}
