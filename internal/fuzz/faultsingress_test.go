package fuzz_test

// Faults in what is looked at where a packet comes in.
var ingressFaults = []fault{
	{where: "helper", spec: "ingress", what: "sums are held to another number", old: `s \* 0xFFFEFFFEFFFEFFFFULL`, new: `s * 0xFFFEFFFEFFFEFFFBULL`},
	{where: "helper", spec: "ingress", what: "127.0.0.0/8 is another host's", old: ` && first != 127`, new: ``},
	{where: "helper", spec: "ingress", what: "0.0.0.0/8 is another host's", old: `first - 1 < 223 `, new: `first < 224 `},
	{where: "helper", spec: "ingress", what: "239.0.0.0/8 is a host's", old: `first >= 240 && `, new: `first >= 239 && `},
	{where: "helper", spec: "ingress", what: "240.0.0.0/8 is no host's", old: `first >= 240 && `, new: `first > 240 && `},
	{where: "helper", spec: "ingress", what: "255.255.255.255 is a host's", old: ` && addr != 0xFFFFFFFF`, new: ``},
	{where: "helper", spec: "ingress", what: "255.255.255.255 is no broadcast", old: ` \|\| addr == 0xFFFFFFFF`, new: ``},
	{where: "helper", spec: "ingress", what: "IPv6 groups are hosts", old: `return ld8\(addr\) != 0xFF;`, new: `return 1;`},
	{where: "helper", spec: "ingress", what: "::1 is another host's", old: ` & ~\(1ULL << 56\)`, new: ``},
	{where: "helper", spec: "ingress", what: "::2 is no host's", old: `~\(1ULL << 56\)`, new: `~(3ULL << 56)`},
	{where: "back end", spec: "ingress", what: "frames for another host are broadcasts", plan: noGuard("other_host")},
	{where: "back end", spec: "ingress", what: "broadcasts are multicasts", plan: noGuard("link_broadcast")},
	{where: "back end", spec: "ingress", what: "sources aren't looked at", plan: noGuard("martian_source")},
	{where: "back end", spec: "ingress", what: "checksums of one's own aren't verified", plan: noGuard("tag_checksum")},
	{where: "back end", spec: "ingress", what: "IPv4 checksums aren't verified", plan: noGuard("ipv4_checksum")},
}
