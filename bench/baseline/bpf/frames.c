// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The channels of a TURN relay at XDP as one writes them by hand, over IPv4 and IPv6, in steps from
 * the least that works to what the generated program does. Numbers are those of the kernel's user
 * interface (linux/bpf.h).
 *
 * All leave out what relay.c leaves out, except IPv6: padding, and channels between the families.
 * What goes to the stack is untouched.
 */

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define bpf_htons(x) ((__u16)__builtin_bswap16((__u16)(x)))

enum { XDP_ABORTED, XDP_DROP, XDP_PASS };
enum { ETH_P_IP = 0x0800, ETH_P_IPV6 = 0x86DD, IPPROTO_UDP = 17, AF_INET = 2, AF_INET6 = 10 };
enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PERCPU_ARRAY = 6 };
enum { BPF_MAP_TYPE_DEVMAP_HASH = 25 };
/* A multiple of 0xffff, larger than all that is taken from a sum. */
#define ZERO ((__u64)0xffff << 32)

enum { HOP_LIMIT = 64, IP_DONT_FRAGMENT = 0x4000, DEVICES = 64 };
/* Or as many as user space says. */
enum { CHANNELS = 4096 };

/* What a program does beside the least. */
enum {
	/*
	 * The IPv4 header's checksum; frames and addresses that are no host's; a lease, which a
	 * process renews; a row that is read whole, while it may change; a checksum that is left
	 * to a device.
	 */
	CHECKS = 1,
	/* Counters of the program and of the session; its last use, and whether it has ended. */
	ACCOUNTS = 2,
	/* The kernel's route and neighbour for each packet, instead of those in the row. */
	ROUTES = 4,
};

struct xdp_md {
	__u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};

struct bpf_fib_lookup {
	__u8 family, l4_protocol;
	__u16 sport, dport, tot_len;
	__u32 ifindex, flowinfo;
	__u32 src[4], dst[4];
	__u32 vlan;
	__u8 smac[6], dmac[6];
};

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_xdp_adjust_head)(struct xdp_md *xdp, int delta) = (void *)44;
static long (*bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)51;
static long (*bpf_fib_lookup)(void *ctx, struct bpf_fib_lookup *fib, int size, __u32 flags) =
	(void *)69;
static __u64 (*bpf_jiffies64)(void) = (void *)118;

struct eth {
	__u32 to;
	__u16 to_end;
	__u16 from;
	__u32 from_end;
	__u16 type;
} __attribute__((packed));

struct ipv4 {
	__u8 version_ihl, tos;
	__u16 total, id, fragment;
	__u8 ttl, protocol;
	__u16 check;
	__u32 src, dst;
} __attribute__((packed));

struct ipv6 {
	__u32 flow;
	__u16 length;
	__u8 next, hop_limit;
	__u32 src[4], dst[4];
} __attribute__((packed));

struct udp {
	__u16 src, dst, length, check;
} __attribute__((packed));

struct channel_data {
	__u16 number, length;
} __attribute__((packed));

/* In network byte order. number is 0 for packets of a peer. */
struct key4 {
	__u32 src, dst;
	__u16 src_port, dst_port, number, unused;
};

struct key6 {
	__u32 src[4], dst[4];
	__u16 src_port, dst_port, number, unused;
};

/* The same, except ifindex, mtu, slot and generation. An IPv4 address is the first word. */
struct row {
	__u16 src_port, dst_port, number, mtu;
	__u32 ifindex;
	__u32 slot, generation;
	__u32 macs[3]; /* of a frame that leaves: to, from */
	__u32 src[4], dst[4];
};

struct lease {
	__u64 deadline, changes;
};

struct mac {
	__u32 start;
	__u16 end, unused;
};

struct slot {
	__u64 deadline;
	__u32 generation, unused;
};

struct count {
	__u64 frames, bytes;
};

struct usage {
	__u64 last;
	struct count rows[2];
};

#define MAP(name, kind, entries, k, v)                                                             \
	struct {                                                                                   \
		int (*type)[kind];                                                                 \
		int (*max_entries)[entries];                                                       \
		k *key;                                                                            \
		v *value;                                                                          \
	} name SEC(".maps")

MAP(channels4, BPF_MAP_TYPE_HASH, 2 * CHANNELS, struct key4, struct row);
MAP(channels6, BPF_MAP_TYPE_HASH, 2 * CHANNELS, struct key6, struct row);
MAP(devices, BPF_MAP_TYPE_DEVMAP_HASH, DEVICES, __u32, __u32);
MAP(macs, BPF_MAP_TYPE_HASH, DEVICES, __u32, struct mac);
MAP(leases, BPF_MAP_TYPE_ARRAY, 1, __u32, struct lease);
MAP(slots, BPF_MAP_TYPE_ARRAY, CHANNELS, __u32, struct slot);
MAP(counts, BPF_MAP_TYPE_PERCPU_ARRAY, 2, __u32, struct count);
MAP(usages, BPF_MAP_TYPE_PERCPU_ARRAY, CHANNELS, __u32, struct usage);

/* Where a bare redirect leads, by the device that a frame comes in by. */
MAP(across, BPF_MAP_TYPE_DEVMAP_HASH, DEVICES, __u32, __u32);

INLINE __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* The sum of an IPv4 header without options. */
INLINE __u64 sum_ipv4(const struct ipv4 *ip)
{
	const __u32 *w = (const void *)ip;

	return (__u64)w[0] + w[1] + w[2] + w[3] + w[4];
}

INLINE __u64 sum_addrs(const __u32 *src, const __u32 *dst, const int v6)
{
	__u64 sum = (__u64)src[0] + dst[0];

	if (v6)
		sum += (__u64)src[1] + src[2] + src[3] + dst[1] + dst[2] + dst[3];
	return sum;
}

/* Addresses of one host: none of 0.0.0.0/8, 127.0.0.0/8, 224.0.0.0/4, and not the broadcast. */
INLINE int of_host4(__u32 addr)
{
	__u8 first = addr;

	return first && first != 127 && (first < 224 || (first >= 240 && addr != ~0U));
}

/* None of ::/64 (unspecified, loopback, IPv4 in IPv6), and no group's. */
INLINE int of_host6(const __u32 *addr)
{
	return (addr[0] || addr[1]) && (__u8)addr[0] != 0xff;
}

INLINE int for_this_host(struct xdp_md *xdp, const struct eth *eth)
{
	__u32 index = xdp->ingress_ifindex;
	const struct mac *mac = bpf_map_lookup_elem(&macs, &index);

	return mac && eth->to == mac->start && eth->to_end == mac->end;
}

#define READ(p) (*(const volatile typeof(p) *)&(p))

/* A row while it may change: 0 if it has. */
INLINE int copy_row(struct row *to, const struct row *from, const struct lease *lease,
		    __u64 before, const int v6)
{
	const __u64 *f = (const void *)from;
	__u64 *t = (void *)to;

	/* all up to the addresses, then these */
#pragma unroll
	for (int i = 0; i < 4; i++)
		t[i] = READ(f[i]);
	to->src[0] = READ(from->src[0]);
	to->dst[0] = READ(from->dst[0]);
	if (v6) {
#pragma unroll
		for (int i = 1; i < 4; i++) {
			to->src[i] = READ(from->src[i]);
			to->dst[i] = READ(from->dst[i]);
		}
	}
	return READ(lease->changes) == before;
}

/* The session is open. */
INLINE int open(const struct row *row, __u64 now)
{
	__u32 at = row->slot;
	const struct slot *slot = bpf_map_lookup_elem(&slots, &at);

	return slot && READ(slot->generation) == row->generation && now < READ(slot->deadline);
}

INLINE void account(const struct row *row, const int up, __u32 size, __u64 now)
{
	__u32 at = up;
	struct count *count = bpf_map_lookup_elem(&counts, &at);
	struct usage *usage;

	if (count) {
		count->frames++;
		count->bytes += size;
	}
	at = row->slot;
	usage = bpf_map_lookup_elem(&usages, &at);
	if (usage) {
		usage->last = now;
		usage->rows[up].frames++;
		usage->rows[up].bytes += size;
	}
}

/* Asks the kernel for the next hop of a packet, which it puts into the row. */
INLINE int route(struct xdp_md *xdp, struct row *row, __u32 size, const int v6)
{
	struct bpf_fib_lookup fib = {
		.family = v6 ? AF_INET6 : AF_INET, .l4_protocol = IPPROTO_UDP, .tot_len = size,
		.sport = row->src_port, .dport = row->dst_port, .ifindex = xdp->ingress_ifindex,
	};

	for (int i = 0; i < (v6 ? 4 : 1); i++) {
		fib.src[i] = row->src[i];
		fib.dst[i] = row->dst[i];
	}
	if (bpf_fib_lookup(xdp, &fib, sizeof(fib), 0))
		return 0;
	row->ifindex = fib.ifindex;
	__builtin_memcpy(row->macs, fib.dmac, 6);
	__builtin_memcpy((__u8 *)row->macs + 6, fib.smac, 6);
	return 1;
}

INLINE int ipv4_is_fine(const struct ipv4 *ip, __u32 size, const __u32 does)
{
	if (ip->version_ihl != 0x45 || ip->protocol != IPPROTO_UDP ||
	    ip->fragment & ~bpf_htons(IP_DONT_FRAGMENT) || size != bpf_htons(ip->total))
		return 0;
	return !(does & CHECKS) ||
	       (fold(sum_ipv4(ip)) == 0xffff && of_host4(ip->src) && of_host4(ip->dst));
}

INLINE int ipv6_is_fine(const struct ipv6 *ip, __u32 size, const __u32 does)
{
	if ((__u8)ip->flow >> 4 != 6 || ip->next != IPPROTO_UDP ||
	    size != bpf_htons(ip->length) + sizeof(*ip))
		return 0;
	return !(does & CHECKS) || (of_host6(ip->src) && of_host6(ip->dst));
}

INLINE struct row *find4(const struct ipv4 *ip, const struct udp *udp, __u16 number)
{
	struct key4 key = {ip->src, ip->dst, udp->src, udp->dst, number, 0};

	return bpf_map_lookup_elem(&channels4, &key);
}

INLINE struct row *find6(const struct ipv6 *ip, const struct udp *udp, __u16 number)
{
	struct key6 key = {.src_port = udp->src, .dst_port = udp->dst, .number = number};

	__builtin_memcpy(key.src, ip->src, sizeof(key.src) + sizeof(key.dst));
	return bpf_map_lookup_elem(&channels6, &key);
}

/* The packet that came, as far as it goes on. */
struct old {
	struct ipv4 ipv4;
	__u32 flow;
	__u16 check;
	__u64 sum; /* of the UDP checksum, without what is replaced */
};

/* Writes the headers of a packet that leaves, with so many bytes of payload. */
INLINE void write(void *data, const struct old *old, const struct row *row, __u32 payload,
		  const int up, const int v6)
{
	const __u32 ip_size = v6 ? sizeof(struct ipv6) : sizeof(struct ipv4);
	__u16 length = bpf_htons(sizeof(struct udp) + (up ? 0 : 4) + payload), check = 0;
	struct udp *udp = data + sizeof(struct eth) + ip_size;
	struct channel_data *ch = (void *)(udp + 1);
	struct eth *eth = data;

	__builtin_memcpy(eth, row->macs, 12);
	if (v6) {
		struct ipv6 *ip = (void *)(eth + 1);

		eth->type = bpf_htons(ETH_P_IPV6);
		ip->flow = old->flow;
		ip->length = length;
		ip->next = IPPROTO_UDP;
		ip->hop_limit = HOP_LIMIT;
		__builtin_memcpy(ip->src, row->src, 16);
		__builtin_memcpy(ip->dst, row->dst, 16);
	} else {
		struct ipv4 *ip = (void *)(eth + 1), new = old->ipv4;

		eth->type = bpf_htons(ETH_P_IP);
		new.total = bpf_htons(bpf_htons(length) + sizeof(new));
		new.ttl = HOP_LIMIT;
		new.src = row->src[0];
		new.dst = row->dst[0];
		new.check = 0;
		new.check = ~fold(sum_ipv4(&new));
		*ip = new;
	}
	if (old->check) {
		__u64 sum = old->sum + sum_addrs(row->src, row->dst, v6) + row->src_port +
			    row->dst_port + 2 * (__u64)length;

		if (!up)
			sum += (__u64)row->number + bpf_htons(payload);
		check = ~fold(sum);
		if (!check)
			check = 0xffff;
	}
	udp->src = row->src_port;
	udp->dst = row->dst_port;
	udp->length = length;
	udp->check = check;
	if (!up) {
		ch->number = row->number;
		ch->length = bpf_htons(payload);
	}
}

INLINE int forward(struct xdp_md *xdp, const struct lease *lease, __u64 now, const int up,
		   const int v6, const __u32 does)
{
	const __u32 udp_at = sizeof(struct eth) + (v6 ? sizeof(struct ipv6) : sizeof(struct ipv4));
	const __u32 bare = udp_at + sizeof(struct udp), with = bare + sizeof(struct channel_data);
	const __u32 from = up ? with : bare, to = up ? bare : with;
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	const struct ipv4 *ipv4 = data + sizeof(struct eth);
	const struct ipv6 *ipv6 = data + sizeof(struct eth);
	const struct udp *udp = data + udp_at;
	const struct channel_data *ch = data + bare;
	__u64 before = 0, pseudo;
	__u32 size = end - data;
	struct row *row, copy;
	struct old old;

	if (data + from > end)
		return XDP_PASS;
	if (!(v6 ? ipv6_is_fine(ipv6, size - sizeof(struct eth), does) :
		   ipv4_is_fine(ipv4, size - sizeof(struct eth), does)))
		return XDP_PASS;
	if (size - udp_at != bpf_htons(udp->length) ||
	    (up && size - with != bpf_htons(ch->length)))
		return XDP_PASS;
	if (does & CHECKS)
		before = READ(lease->changes);
	row = v6 ? find6(ipv6, udp, up ? ch->number : 0) : find4(ipv4, udp, up ? ch->number : 0);
	if (!row)
		return XDP_PASS;
	if (does & CHECKS) {
		if (!copy_row(&copy, row, lease, before, v6))
			return XDP_PASS;
		row = &copy;
	}
	if (does & ACCOUNTS && !open(row, now))
		return XDP_PASS;
	if (does & ROUTES) {
		copy = *row;
		row = &copy;
		if (!route(xdp, row, size - sizeof(struct eth) + to - from, v6))
			return XDP_PASS;
	}

	pseudo = (v6 ? sum_addrs(ipv6->src, ipv6->dst, 1) : (__u64)ipv4->src + ipv4->dst) +
		 udp->length;
	if (v6 && !udp->check)
		return XDP_PASS;
	if (does & CHECKS && (!udp->check || udp->check == fold(pseudo + bpf_htons(IPPROTO_UDP))))
		return XDP_PASS; /* it is left to a device, or looks like it */
	if (size - sizeof(struct eth) + to - from > row->mtu)
		return XDP_PASS;
	old.check = udp->check;
	old.sum = (__u16)~udp->check + ZERO - pseudo - udp->src - udp->dst - udp->length;
	if (up)
		old.sum -= (__u64)ch->number + ch->length;
	if (v6)
		old.flow = ipv6->flow;
	else
		old.ipv4 = *ipv4;

	if (bpf_xdp_adjust_head(xdp, (int)from - (int)to))
		return XDP_PASS;
	data = (void *)(long)xdp->data;
	if (data + to > (void *)(long)xdp->data_end)
		return XDP_DROP;
	write(data, &old, row, size - from, up, v6);
	if (does & ACCOUNTS)
		account(row, up, size, now);
	return bpf_redirect_map(&devices, row->ifindex, XDP_ABORTED);
}

INLINE int relay(struct xdp_md *xdp, const int up, const __u32 does)
{
	const struct eth *eth = (void *)(long)xdp->data;
	const struct lease *lease = 0;
	__u32 zero = 0;
	__u64 now = 0;

	if (does & CHECKS) {
		now = bpf_jiffies64();
		lease = bpf_map_lookup_elem(&leases, &zero);
		if (!lease || now >= READ(lease->deadline))
			return XDP_PASS;
	}
	if ((void *)(eth + 1) > (void *)(long)xdp->data_end)
		return XDP_PASS;
	if (does & CHECKS && !for_this_host(xdp, eth))
		return XDP_PASS;
	if (eth->type == bpf_htons(ETH_P_IP))
		return forward(xdp, lease, now, up, 0, does);
	if (eth->type == bpf_htons(ETH_P_IPV6))
		return forward(xdp, lease, now, up, 1, does);
	return XDP_PASS;
}

#define RELAY(name, does)                                                                          \
	SEC("xdp.frags") int name##_to_peer(struct xdp_md *xdp) { return relay(xdp, 1, does); }    \
	SEC("xdp.frags") int name##_to_client(struct xdp_md *xdp) { return relay(xdp, 0, does); }

RELAY(lean, 0)
RELAY(routes, ROUTES)
RELAY(checks, CHECKS)
RELAY(all, CHECKS | ACCOUNTS)

INLINE int redirect(struct xdp_md *xdp)
{
	return bpf_redirect_map(&across, xdp->ingress_ifindex, XDP_ABORTED);
}

SEC("xdp.frags") int bare_to_peer(struct xdp_md *xdp) { return redirect(xdp); }
SEC("xdp.frags") int bare_to_client(struct xdp_md *xdp) { return redirect(xdp); }

char frames_license[] SEC("license") = "Dual BSD/GPL";
