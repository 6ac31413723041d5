// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A small relay written by hand, for the tests of the runtime: it looks packets up and counts them as a generated one does,
// and then drops them instead of rewriting them. It includes nothing: bpf.h of tool/bpftest is prepended.
struct endpoint { __u8 addr[16]; __u16 port; };
struct hop { __u32 ifindex; __u16 mtu; __u8 state, pad, dst[6], src[6]; };

struct lease { __u64 deadline, now, changes, storing, policy; };
struct count { __u64 packets, bytes; };
struct slot { __u64 deadline; __u32 gen, last; };
struct usage { __u64 last; struct count rows[2]; };

#define ARRAY(n, t, v, e, f) struct { __uint(type, t); __uint(map_flags, f); __uint(max_entries, e); __type(key, __u32); __type(value, v); } n SEC(".maps")
#define TABLE(n, t, k, v, e, f) struct { __uint(type, t); __uint(map_flags, f); __uint(max_entries, e); __uint(key_size, k); __uint(value_size, v); } n SEC(".maps")

#ifndef SOURCES
#define SOURCES 4
#endif
#ifndef FLOWS
#define FLOWS 8
#endif

ARRAY(fr_lease, BPF_MAP_TYPE_ARRAY, struct lease, 1, BPF_F_MMAPABLE);
ARRAY(fr_reasons, BPF_MAP_TYPE_PERCPU_ARRAY, struct count, 5, 0);
ARRAY(fr_slots, BPF_MAP_TYPE_ARRAY, struct slot, FLOWS, BPF_F_MMAPABLE);
ARRAY(fr_usage, BPF_MAP_TYPE_PERCPU_ARRAY, struct usage, FLOWS, 0);
ARRAY(fr_shared, BPF_MAP_TYPE_ARRAY, __u64, 2 * SOURCES + 1, BPF_F_MMAPABLE);
ARRAY(fr_named, BPF_MAP_TYPE_PERCPU_ARRAY, __u64, 1, 0);

TABLE(tbl_by_client, BPF_MAP_TYPE_HASH, 40, 64, FLOWS, 0);
TABLE(tbl_by_peer, BPF_MAP_TYPE_HASH, 36, 72, FLOWS, 0);
TABLE(tbl_sources, BPF_MAP_TYPE_HASH, 16, 8, SOURCES, 0);
TABLE(tbl_routes, BPF_MAP_TYPE_LPM_TRIE, 20, 40, 16, BPF_F_NO_PREALLOC);
TABLE(tbl_things, BPF_MAP_TYPE_HASH, 8, 56, 2, 0);
TABLE(tbl_loads, BPF_MAP_TYPE_PERCPU_HASH, 4, 16, 4, 0);
TABLE(tbl_levels, BPF_MAP_TYPE_ARRAY, 4, 8, 4, 0);

const volatile __u16 set_port = 1;
const volatile __u8 set_on = 0;
const volatile __u8 set_self[16] = {};

enum { inactive, missed, sent, port, other };

static __always_inline int reason(struct __sk_buff *skb, __u32 i, int verdict)
{
	struct count *c = bpf_map_lookup_elem(&fr_reasons, &i);
	if (c) {
		c->packets++;
		c->bytes += skb->len;
	}
	return verdict;
}

SEC("tc") int fr_clock(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct lease *l = bpf_map_lookup_elem(&fr_lease, &zero);
	if (l)
		l->now = bpf_jiffies64();
	return 0;
}

SEC("tc") int prog_fwd(struct __sk_buff *skb)
{
	struct { struct endpoint client, server; __u16 number, pad; } key = {};
	struct { struct endpoint relayed, peer; struct hop hop; __u32 slot, gen; } *row;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + 14;
	struct udphdr *udp = data + 34;
	__u16 *number = data + 42;
	__u32 zero = 0;
	__u64 now = bpf_jiffies64();
	struct lease *l = bpf_map_lookup_elem(&fr_lease, &zero);

	if (!l || now >= l->deadline)
		return reason(skb, inactive, TC_ACT_UNSPEC);
	if (data + 44 > end || eth->h_proto != bpf_htons(ETH_P_IP) || ip->protocol != 17)
		return reason(skb, other, TC_ACT_UNSPEC);
	if (udp->dest == bpf_htons(set_port) && set_on && set_self[15])
		return reason(skb, port, TC_ACT_UNSPEC);
	key.client.addr[10] = key.client.addr[11] = key.server.addr[10] = key.server.addr[11] = 0xff;
	__builtin_memcpy(key.client.addr + 12, &ip->saddr, 4);
	__builtin_memcpy(key.server.addr + 12, &ip->daddr, 4);
	key.client.port = bpf_ntohs(udp->source);
	key.server.port = bpf_ntohs(udp->dest);
	key.number = bpf_ntohs(*number);
	row = bpf_map_lookup_elem(&tbl_by_client, &key);
	if (!row)
		return reason(skb, missed, TC_ACT_UNSPEC);
	__u32 i = row->slot;
	struct slot *s = bpf_map_lookup_elem(&fr_slots, &i);
	if (!s || s->gen != row->gen || now >= s->deadline)
		return reason(skb, missed, TC_ACT_UNSPEC);
	struct usage *u = bpf_map_lookup_elem(&fr_usage, &i);
	if (u) {
		u->last = now;
		u->rows[0].packets++;
		u->rows[0].bytes += skb->len;
	}
#ifdef REFLECT
	return reason(skb, sent, bpf_redirect(skb->ifindex, 0));
#else
	return reason(skb, sent, TC_ACT_SHOT);
#endif
}

// Uses the rest, so that the object holds it.
SEC("tc") int prog_out(struct __sk_buff *skb)
{
	__u32 key[9] = {};
	__u64 *n = bpf_map_lookup_elem(&fr_named, key);

	if (n)
		*n += 1;
	bpf_map_lookup_elem(&tbl_by_peer, key);
	bpf_map_lookup_elem(&tbl_routes, key);
	bpf_map_lookup_elem(&tbl_things, key);
	n = bpf_map_lookup_elem(&tbl_loads, key);
	if (n)
		*n += 1;
	bpf_map_lookup_elem(&tbl_levels, key);
	bpf_map_lookup_elem(&tbl_sources, key);
	key[0] = 1;
	n = bpf_map_lookup_elem(&fr_shared, key);
	if (n)
		__sync_fetch_and_add(n, 1);
	return TC_ACT_UNSPEC;
}

#ifdef UNSAFE
SEC("tc") int prog_unsafe(struct __sk_buff *skb)
{
	return *(int *)(long)skb->data;
}
#endif

char _license[] SEC("license") = "GPL";
