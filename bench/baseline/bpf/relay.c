// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The channels of a TURN relay as one writes them by hand, for TC and for XDP: what examples/turn does for ChannelData over
 * IPv4, with the next hop in the row. Numbers are those of the kernel's user interface (linux/bpf.h, linux/pkt_cls.h).
 *
 * It passes to the stack what the generated relay does, too: fragments, IP options, a wrong IP checksum, a packet that would
 * exceed the MTU, a length that doesn't fit. It leaves out: IPv6, partial checksums, padding (which goes to the stack),
 * counters and reasons, sessions that end by themselves, the lease, and addresses that are no host's.
 */

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define bpf_htons(x) ((__u16)__builtin_bswap16((__u16)(x)))

enum { TC_ACT_UNSPEC = -1, TC_ACT_SHOT = 2, XDP_DROP = 1, XDP_PASS = 2 };
enum { ETH_P_IP = 0x0800, IPPROTO_UDP = 17, BPF_MAP_TYPE_HASH = 1 };
enum { BPF_ADJ_ROOM_NET = 0, BPF_F_ADJ_ROOM_FIXED_GSO = 1, BPF_F_ADJ_ROOM_NO_CSUM_RESET = 1 << 5 };
/* A multiple of 0xffff, larger than all that is taken from a sum. */
#define ZERO ((__u64)0xffff << 32)

enum { HOP_LIMIT = 64, IP_DONT_FRAGMENT = 0x4000 };

struct __sk_buff {
	__u32 len, pkt_type, mark, queue_mapping, protocol;
	__u32 vlan_present, vlan_tci, vlan_proto;
	__u32 priority, ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid;
	__u32 data, data_end;
	__u32 napi_id, family, remote_ip4, local_ip4, remote_ip6[4], local_ip6[4], remote_port, local_port, data_meta;
	__u64 flow_keys, tstamp;
	__u32 wire_len, gso_segs;
	__u64 sk;
	__u32 gso_size;
};

struct xdp_md {
	__u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static long (*bpf_skb_pull_data)(struct __sk_buff *skb, __u32 len) = (void *)39;
static long (*bpf_xdp_adjust_head)(struct xdp_md *xdp, int delta) = (void *)44;
static long (*bpf_skb_adjust_room)(struct __sk_buff *skb, int delta, __u32 mode, __u64 flags) = (void *)50;

struct udp {
	__u16 src, dst, length, check;
};

struct headers {
	__u8 macs[12];
	__u16 type;
	__u8 version_ihl, tos;
	__u16 total, id, fragment;
	__u8 ttl, protocol;
	__u16 check;
	__u32 src, dst;
	struct udp udp;
} __attribute__((packed));

struct channel_data {
	__u16 number, length;
};

struct long_headers {
	struct headers h;
	struct channel_data ch;
} __attribute__((packed));

/* All in network byte order, except ifindex and mtu. number is 0 for packets of a peer. */
struct key {
	__u32 src, dst;
	__u16 src_port, dst_port, number, unused;
};

struct row {
	__u32 src, dst;
	__u16 src_port, dst_port, number, mtu;
	__u32 ifindex;
	__u8 macs[12];
};

struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*max_entries)[4096];
	struct key *key;
	struct row *value;
} channels SEC(".maps");

INLINE __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* The sum of an IPv4 header without options. */
INLINE __u64 sum_ip(const struct headers *h)
{
	const __u32 *w = (const void *)&h->version_ihl;

	return (__u64)w[0] + w[1] + w[2] + w[3] + w[4];
}

/* What the headers add to the UDP checksum: pseudo-header, ports and length. */
INLINE __u64 sum_udp(const struct headers *h)
{
	return (__u64)h->src + h->dst + h->udp.src + h->udp.dst + 2 * (__u64)h->udp.length;
}

/* Whether it is a datagram that either direction may take; size is that of the frame. */
INLINE int ours(const struct headers *h, __u32 size)
{
	return h->type == bpf_htons(ETH_P_IP) && h->version_ihl == 0x45 && h->protocol == IPPROTO_UDP &&
	       !(h->fragment & ~bpf_htons(IP_DONT_FRAGMENT)) && size == bpf_htons(h->total) + 14 &&
	       size == bpf_htons(h->udp.length) + 34 && fold(sum_ip(h)) == 0xffff;
}

INLINE struct row *find(const struct headers *h, __u16 number)
{
	struct key k = {h->src, h->dst, h->udp.src, h->udp.dst, number, 0};

	return bpf_map_lookup_elem(&channels, &k);
}

/*
 * New headers from old ones: delta bytes of payload more, whose words sum up to added. The UDP checksum is updated, not computed
 * anew (RFC 1624), so that a wrong one stays wrong.
 */
INLINE void rewrite(struct headers *h, const struct row *row, int delta, __u64 added)
{
	__u64 sum = (__u16)~h->udp.check + ZERO - sum_udp(h);

	for (int i = 0; i < 12; i++)
		h->macs[i] = row->macs[i];
	h->total = bpf_htons(bpf_htons(h->total) + delta);
	h->ttl = HOP_LIMIT;
	h->src = row->src;
	h->dst = row->dst;
	h->check = 0;
	h->check = ~fold(sum_ip(h));
	h->udp.src = row->src_port;
	h->udp.dst = row->dst_port;
	h->udp.length = bpf_htons(bpf_htons(h->udp.length) + delta);
	if (h->udp.check) {
		h->udp.check = ~fold(sum + added + sum_udp(h));
		if (!h->udp.check)
			h->udp.check = 0xffff;
	}
}

/* What the header of a channel adds to a sum, and takes from it. */
INLINE __u64 sum_channel(const struct channel_data *ch)
{
	return (__u64)ch->number + ch->length;
}

INLINE struct row *find_to_peer(struct long_headers *h, __u32 size)
{
	if (!ours(&h->h, size) || bpf_htons(h->ch.length) + sizeof(*h) != size)
		return 0;
	return find(&h->h, h->ch.number);
}

INLINE struct row *find_to_client(struct headers *h, __u32 size)
{
	struct row *row;

	if (!ours(h, size))
		return 0;
	row = find(h, 0);
	return row && size - 14 + sizeof(struct channel_data) <= row->mtu ? row : 0;
}

/* The first bytes of a packet, of which the kernel may have fewer in one piece. */
INLINE void *first(struct __sk_buff *skb, __u32 bytes)
{
	if ((void *)(long)skb->data + bytes > (void *)(long)skb->data_end)
		bpf_skb_pull_data(skb, bytes); /* where that fails, there are too few */
	return (void *)(long)skb->data;
}

SEC("tc") int tc_to_peer(struct __sk_buff *skb)
{
	struct long_headers *h = first(skb, sizeof(*h));
	struct headers new;
	struct row *row;

	if ((void *)(h + 1) > (void *)(long)skb->data_end || skb->gso_size)
		return TC_ACT_UNSPEC;
	row = find_to_peer(h, skb->len);
	if (!row)
		return TC_ACT_UNSPEC;
	new = h->h;
	rewrite(&new, row, -4, ~sum_channel(&h->ch) & 0xffffffff);
	if (bpf_skb_adjust_room(skb, -4, BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET))
		return TC_ACT_UNSPEC;
	h = (void *)(long)skb->data;
	if ((void *)(&h->h + 1) > (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	h->h = new;
	return bpf_redirect(row->ifindex, 0);
}

SEC("tc") int tc_to_client(struct __sk_buff *skb)
{
	struct headers *h = first(skb, sizeof(*h));
	struct long_headers new, *to;
	struct row *row;

	if ((void *)(h + 1) > (void *)(long)skb->data_end || skb->gso_size)
		return TC_ACT_UNSPEC;
	row = find_to_client(h, skb->len);
	if (!row)
		return TC_ACT_UNSPEC;
	new.h = *h;
	new.ch = (struct channel_data){row->number, bpf_htons(skb->len - sizeof(*h))};
	rewrite(&new.h, row, 4, sum_channel(&new.ch));
	if (bpf_skb_adjust_room(skb, 4, BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET))
		return TC_ACT_UNSPEC;
	to = (void *)(long)skb->data;
	if ((void *)(to + 1) > (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	*to = new;
	return bpf_redirect(row->ifindex, 0);
}

SEC("xdp") int xdp_to_peer(struct xdp_md *xdp)
{
	void *end = (void *)(long)xdp->data_end;
	struct long_headers *h = (void *)(long)xdp->data;
	struct headers new, *to;
	struct row *row;

	if ((void *)(h + 1) > end)
		return XDP_PASS;
	row = find_to_peer(h, end - (void *)h);
	if (!row)
		return XDP_PASS;
	new = h->h;
	rewrite(&new, row, -4, ~sum_channel(&h->ch) & 0xffffffff);
	if (bpf_xdp_adjust_head(xdp, 4))
		return XDP_PASS;
	to = (void *)(long)xdp->data;
	if ((void *)(to + 1) > (void *)(long)xdp->data_end)
		return XDP_DROP;
	*to = new;
	return bpf_redirect(row->ifindex, 0);
}

SEC("xdp") int xdp_to_client(struct xdp_md *xdp)
{
	void *end = (void *)(long)xdp->data_end;
	struct headers *h = (void *)(long)xdp->data;
	struct long_headers new, *to;
	struct row *row;

	if ((void *)(h + 1) > end)
		return XDP_PASS;
	row = find_to_client(h, end - (void *)h);
	if (!row)
		return XDP_PASS;
	new.h = *h;
	new.ch = (struct channel_data){row->number, bpf_htons(end - (void *)h - sizeof(*h))};
	rewrite(&new.h, row, 4, sum_channel(&new.ch));
	if (bpf_xdp_adjust_head(xdp, -4))
		return XDP_PASS;
	to = (void *)(long)xdp->data;
	if ((void *)(to + 1) > (void *)(long)xdp->data_end)
		return XDP_DROP;
	*to = new;
	return bpf_redirect(row->ifindex, 0);
}

char baseline_license[] SEC("license") = "Dual BSD/GPL";
