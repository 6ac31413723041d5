/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright 2026 The fastrelay-gen authors */
/*
 * fastrelay.h: what every generated relay is made of. Nothing else is included: the types and
 * numbers of the kernel's user interface (include/uapi/linux/bpf.h) that a relay uses stand here,
 * so that the same clang makes the same object on every machine.
 *
 * A relay defines these before it includes the header:
 *	FR_REASONS	entries of fr_reasons
 *	FR_NEEDS_ROWS	bytes for copies of rows, where it has tables whose memory is reused at once
 *	FR_NEEDS_LEARNED	tables among them that programs write to
 *	FR_NEEDS_SLOTS	entries of fr_slots and fr_usage, where it has sessions
 *	FR_USAGES	usage counters in a slot, where it has sessions
 *	FR_NEEDS_SHARED	entries of fr_shared, where it has counters in tables
 *	FR_NEEDS_NAMED	entries of fr_named, where it has named counters
 *	FR_NEEDS_SCRATCH	where it moves payloads
 *	FR_NEEDS_ZEROS	a power of two, where it makes zeros of up to so many bytes of a header
 *	FR_NEEDS_FACTS	where it asks what the kernel knows about a packet
 *	FR_NEEDS_SEGMENTS	where GSO packets enter tunnels
 *
 * Sums are ones' complement sums (RFC 1071) of 16-bit words as they lie in memory. That gives the
 * same checksum as network order does (RFC 1071, 2.B), and needs no byte swaps.
 */
#ifndef FASTRELAY_H
#define FASTRELAY_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef int __s32;
typedef long long __s64;

/* In the order of bytes that the packet has. */
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef struct {
	__be64 head, tail;
} __be128;

#define NULL ((void *)0)
#define SEC(name) __attribute__((section(name), used))
#define __always_inline inline __attribute__((always_inline, unused))
#define __noinline __attribute__((noinline, unused))
#define __packed_aligned(n) __attribute__((packed, aligned(n)))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/*
 * Keep clang from knowing a value, so that it can't move or drop a check that the verifier needs.
 */
#define barrier_var(v) asm volatile("" : "+r"(v))

/* Map definitions, as BTF. */
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name
#define FR_ARRAY(name, kind, flags, entries, val)                                                  \
	struct {                                                                                   \
		__uint(type, kind);                                                                \
		__uint(map_flags, flags);                                                          \
		__uint(max_entries, entries);                                                      \
		__type(key, __u32);                                                                \
		__type(value, val);                                                                \
	} name SEC(".maps")

#define bpf_htons(x) ((__u16)__builtin_bswap16((__u16)(x)))
#define bpf_htonl(x) ((__u32)__builtin_bswap32((__u32)(x)))
#define bpf_cpu_to_be64(x) ((__u64)__builtin_bswap64((__u64)(x)))

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LRU_PERCPU_HASH = 10,
	BPF_MAP_TYPE_LPM_TRIE = 11,
};

enum {
	BPF_ANY = 0,
	BPF_F_NO_PREALLOC = 1 << 0,
	BPF_F_MMAPABLE = 1 << 10,
	BPF_F_RECOMPUTE_CSUM = 1 << 0,	    /* bpf_skb_store_bytes */
	BPF_F_PSEUDO_HDR = 1 << 4,	    /* bpf_l4_csum_replace */
	BPF_F_MARK_MANGLED_0 = 1 << 5,	    /* bpf_l4_csum_replace */
	BPF_F_ADJ_ROOM_NO_CSUM_RESET = 1 << 5, /* bpf_skb_adjust_room, as all that follow */
	BPF_F_ADJ_ROOM_FIXED_GSO = 1 << 0,
	BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 = 1 << 1,
	BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 = 1 << 2,
	BPF_F_ADJ_ROOM_ENCAP_L4_UDP = 1 << 4,
	BPF_F_ADJ_ROOM_ENCAP_L2_ETH = 1 << 6,
	BPF_ADJ_ROOM_ENCAP_L2_SHIFT = 56,
	BPF_ADJ_ROOM_MAC = 1,
	BPF_CSUM_LEVEL_DEC = 2,
};

enum {
	TC_ACT_UNSPEC = -1, /* the next program decides; TCX_NEXT */
	TC_ACT_SHOT = 2,
};

enum {
	AF_INET = 2,
	AF_INET6 = 10,
	ETH_HLEN = 14,
	ETH_P_IP = 0x0800,
	ETH_P_IPV6 = 0x86DD,
	IPPROTO_ICMP = 1,
	IPPROTO_IPIP = 4,
	IPPROTO_TCP = 6,
	IPPROTO_UDP = 17,
	IPPROTO_IPV6 = 41,
	IPPROTO_GRE = 47,
	IPPROTO_ICMPV6 = 58,
};

/* skb->pkt_type: whom the frame is addressed to (linux/if_packet.h). */
enum {
	PACKET_HOST,
	PACKET_BROADCAST,
	PACKET_MULTICAST,
	PACKET_OTHERHOST,
};

struct __sk_buff {
	__u32 len, pkt_type, mark, queue_mapping, protocol;
	__u32 vlan_present, vlan_tci, vlan_proto;
	__u32 priority, ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid;
	__u32 data, data_end;
	__u32 napi_id, family, remote_ip4, local_ip4, remote_ip6[4], local_ip6[4];
	__u32 remote_port, local_port, data_meta;
	__u64 flow_keys, tstamp;
	__u32 wire_len, gso_segs;
	__u64 sk;
	__u32 gso_size;
};

struct bpf_fib_lookup {
	__u8 family, l4_protocol;
	__u16 sport, dport, tot_len;
	__u32 ifindex;
	__u32 flowinfo; /* IPv4: the first byte is the type of service */
	__u32 src[4];	/* IPv4: the first word */
	__u32 dst[4];	/* likewise; comes back as the next hop */
	__u32 vlan;
	__u8 smac[6], dmac[6];
};

struct bpf_redir_neigh {
	__u32 nh_family;
	__u32 nh[4]; /* IPv4: the first word */
};

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value,
				   __u64 flags) = (void *)2;
static long (*bpf_skb_store_bytes)(struct __sk_buff *skb, __u32 off, const void *from, __u32 len,
				   __u64 flags) = (void *)9;
static long (*bpf_l4_csum_replace)(struct __sk_buff *skb, __u32 off, __u64 from, __u64 to,
				   __u64 flags) = (void *)11;
static long (*bpf_skb_vlan_pop)(struct __sk_buff *skb) = (void *)19;
static long (*bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static long (*bpf_skb_load_bytes)(const void *skb, __u32 off, void *to, __u32 len) = (void *)26;
static __s64 (*bpf_csum_diff)(void *from, __u32 from_size, void *to, __u32 to_size,
			      __u32 seed) = (void *)28;
static long (*bpf_skb_change_proto)(struct __sk_buff *skb, __u16 proto, __u64 flags) = (void *)31;
static long (*bpf_skb_change_tail)(struct __sk_buff *skb, __u32 len, __u64 flags) = (void *)38;
static long (*bpf_skb_pull_data)(struct __sk_buff *skb, __u32 len) = (void *)39;
static __s64 (*bpf_csum_update)(struct __sk_buff *skb, __u32 csum) = (void *)40;
static long (*bpf_skb_change_head)(struct __sk_buff *skb, __u32 len, __u64 flags) = (void *)43;
static long (*bpf_skb_adjust_room)(struct __sk_buff *skb, __s32 diff, __u32 mode,
				   __u64 flags) = (void *)50;
static long (*bpf_fib_lookup)(void *ctx, struct bpf_fib_lookup *params, int plen,
			      __u32 flags) = (void *)69;
static __u64 (*bpf_jiffies64)(void) = (void *)118;
static long (*bpf_probe_read_kernel)(void *to, __u32 size, const void *from) = (void *)113;
static long (*bpf_csum_level)(struct __sk_buff *skb, __u64 level) = (void *)135;
static long (*bpf_redirect_neigh)(__u32 ifindex, struct bpf_redir_neigh *params, int plen,
				  __u64 flags) = (void *)152;

/*
 * Layouts that the runtime shares (docs/internals.md).
 */

struct fr_endpoint {
	__u8 addr[16];
	__u16 port; /* host order */
};

enum fr_hop_state {
	FR_HOP_NONE,
	FR_HOP_DIRECT,
	FR_HOP_NEIGHBOUR,
	FR_HOP_LOCAL, FR_HOP_UNREACHABLE, FR_HOP_BLACKHOLE, FR_HOP_PROHIBIT,
	FR_HOP_XFRM, FR_HOP_RULE, FR_HOP_ENCAP,
	FR_HOP_FORWARDING_OFF,
};

struct fr_hop {
	__u32 ifindex;
	__u16 mtu;
	__u8 state, pad;
	__u8 dst[6], src[6];
};

struct fr_next_hop {
	struct fr_hop hop;
	__u8 addr[16];
};

struct fr_prefix {
	__u32 len; /* bits of the mapped address */
	__u8 addr[16];
};

struct fr_lease {
	__u64 deadline, now;
	__u64 changes; /* goes up before user space replaces or deletes a row */
	/* goes up before and after user space writes an entry of an array: odd in between */
	__u64 storing;
	__u64 policy; /* what route lookups in the kernel don't see */
};

/* Bits of policy, for IPv4; those of IPv6 are one further to the left. */
enum fr_policy { FR_POLICY_XFRM = 1, FR_POLICY_RULES = 4 };

struct fr_reason {
	__u64 packets, bytes;
};

FR_ARRAY(fr_lease, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, 1, struct fr_lease);

FR_ARRAY(fr_reasons, BPF_MAP_TYPE_PERCPU_ARRAY, 0, FR_REASONS, struct fr_reason);

/*
 * Memory. Packets and table values are read and written in the width that is asked for, whatever
 * their alignment: the verifier allows it, and the processors that have a just-in-time compiler do
 * it at full speed. The stack is different: there every access has to be aligned, and generated
 * code takes care of it.
 */

static __always_inline __u8 ld8(const void *p) { return *(const __u8 *)p; }
static __always_inline __u16 ld16(const void *p) { return *(const __u16 *)p; }
static __always_inline __u32 ld32(const void *p) { return *(const __u32 *)p; }
static __always_inline __u64 ld64(const void *p) { return *(const __u64 *)p; }
static __always_inline __be128 ld128(const void *p)
{
	return (__be128) { .head = ld64(p), .tail = ld64(p + 8) };
}

static __always_inline void st8(void *p, __u8 v) { *(__u8 *)p = v; }
static __always_inline void st16(void *p, __u16 v) { *(__u16 *)p = v; }
static __always_inline void st32(void *p, __u32 v) { *(__u32 *)p = v; }
static __always_inline void st64(void *p, __u64 v) { *(__u64 *)p = v; }
static __always_inline void st128(void *p, __be128 v)
{
	st64(p, v.head);
	st64(p + 8, v.tail);
}

/* Settings: written before the program is loaded, so not what clang thinks they are. */
static __always_inline __u8 ldv8(const volatile void *p) { return *(const volatile __u8 *)p; }
static __always_inline __u16 ldv16(const volatile void *p) { return *(const volatile __u16 *)p; }
static __always_inline __u32 ldv32(const volatile void *p) { return *(const volatile __u32 *)p; }
static __always_inline __u64 ldv64(const volatile void *p) { return *(const volatile __u64 *)p; }

/* Big-endian integers in the packet. */
static __always_inline __u64 be8(const void *p) { return ld8(p); }
static __always_inline __u64 be16(const void *p) { return bpf_htons(ld16(p)); }
static __always_inline __u64 be32(const void *p) { return bpf_htonl(ld32(p)); }
static __always_inline __u64 be64(const void *p) { return bpf_cpu_to_be64(ld64(p)); }

/*
 * Whether a lookup has found a row, as a number. Clang would make one question about two pointers
 * at once of two questions, and the verifier prohibits that.
 */
static __always_inline __u32 fr_has(const void *row)
{
	__u32 has = row != NULL;

	barrier_var(has);
	return has;
}

/*
 * A variable offset, for use in packet access. The mask is one less than a power of two, and the
 * value never exceeds it; but a kernel forgets the bounds of a value that it had to put on the
 * stack.
 */
static __always_inline __u64 fr_bound(__u64 v, __u64 mask)
{
	barrier_var(v);
	return v & mask;
}

/*
 * The place of a value among those for each level of priority. It is below their number; but a
 * kernel forgets the bounds of a value that it had to put on the stack.
 */
static __always_inline __u64 fr_level(__u64 level, __u64 levels)
{
	asm("if %0 < %1 goto +1\n\t%0 = 0" : "+r"(level) : "i"(levels));
	return level;
}

/*
 * One side of a choice between facts about the packet: clang would choose the address first, which
 * the verifier forbids.
 */
static __always_inline __u64 fr_fact(__u64 v)
{
	barrier_var(v);
	return v;
}

/*
 * A size between 1 and max, a power of two, for helpers that want one they can trust. It is that
 * already, but old kernels don't learn it from comparisons.
 */
static __always_inline __u32 fr_size(__u32 n, __u32 max)
{
	n--;
	barrier_var(n);
	return (n & (max - 1)) + 1;
}

/*
 * A pointer whose offset clang must not compute in another way, because the verifier checked this
 * one.
 */
static __always_inline void *fr_pin(void *p)
{
	barrier_var(p);
	return p;
}

/*
 * An offset of at most 4095 in the packet, of which the verifier is to forget what it knows: after
 * each field that may be missing it would follow two ways through all of the rest. A frame is
 * shorter than a megabyte, so that nothing is added.
 */
static __always_inline __u64 fr_forget(const struct __sk_buff *skb, __u64 off)
{
	off += skb->len >> 20;
	barrier_var(off);
	return off & 0xFFF;
}

/*
 * What stands beside the packet, by one instruction: fr_vlan_tci, the tag in its metadata, fr_mark
 * and fr_priority. Where several places read it, clang may compute the field's address once, and
 * the verifier refuses a context pointer that was added to.
 */
#define FR_BESIDE(field)                                                                           \
	static __always_inline __u32 fr_##field(const struct __sk_buff *skb)                       \
	{                                                                                          \
		__u32 v;                                                                           \
                                                                                                   \
		asm volatile("%0 = *(u32 *)(%1 + %2)"                                              \
			     : "=r"(v)                                                             \
			     : "r"(skb), "i"(__builtin_offsetof(struct __sk_buff, field)));        \
		return v;                                                                          \
	}

FR_BESIDE(vlan_tci)
FR_BESIDE(mark)
FR_BESIDE(priority)

/* 0, but an address that it is added to isn't known before v is. */
static __always_inline __u64 fr_after(__u64 v)
{
	asm volatile("%0 &= 0" : "+r"(v));
	return v;
}

/* An IPv4 address (as on the wire) into a zeroed 16-byte one: ::ffff:a.b.c.d. */
static __always_inline void fr_put_v4(__u8 *dst, __u32 addr)
{
	st16(dst + 10, 0xFFFF);
	__builtin_memcpy(dst + 12, &addr, 4);
}

/* A 16-byte address; at is the offset of dst from an address that is a multiple of 8. */
static __always_inline void fr_put_v6(void *dst, const void *src, __u32 at)
{
	switch (at & 7) {
	case 0:
		st64(dst, ld64(src));
		st64(dst + 8, ld64(src + 8));
		break;
	case 4:
		st32(dst, ld32(src));
		st64(dst + 4, ld64(src + 4));
		st32(dst + 12, ld32(src + 12));
		break;
	case 2:
		st16(dst, ld16(src));
		st32(dst + 2, ld32(src + 2));
		st64(dst + 6, ld64(src + 6));
		st16(dst + 14, ld16(src + 14));
		break;
	default:
		st16(dst, ld16(src));
		st64(dst + 2, ld64(src + 2));
		st32(dst + 10, ld32(src + 10));
		st16(dst + 14, ld16(src + 14));
	}
}

/* An endpoint into a zeroed one. */
static __always_inline void fr_put_endpoint_v4(struct fr_endpoint *dst, __u32 addr, __u16 port)
{
	fr_put_v4(dst->addr, addr);
	dst->port = port;
}

/* The same with a 16-byte address. */
static __always_inline void fr_put_endpoint_v6(struct fr_endpoint *dst, const void *addr,
					       __u16 port, __u32 at)
{
	fr_put_v6(dst->addr, addr, at);
	dst->port = port;
}

/*
 * Where the IPv4 address of ::ffff:a.b.c.d is, what it is (as on the wire), and the same of a
 * setting. Macros: clang makes more of an address that it sees whole than of an argument.
 */
#define fr_v4_in(mapped) ((mapped) + 12)
#define fr_v4(mapped) ld32(fr_v4_in(mapped))
#define fr_setting_v4(mapped) ldv32(fr_v4_in(mapped))

/* A 16-byte address is an IPv4 one. */
static __always_inline int fr_is_v4(const void *addr)
{
	return ld64(addr) == 0 && ld32(addr + 8) == 0xFFFF0000;
}

/* An IPv4 address (as on the wire) is a group's, or 255.255.255.255. */
static __always_inline int fr_multicast_v4(__u32 addr)
{
	return (addr & 0xF0) == 0xE0 || addr == 0xFFFFFFFF;
}

/*
 * An IPv4 address may be another host's: not in 0.0.0.0/8 or 127.0.0.0/8, no group's, not
 * 255.255.255.255. Two comparisons of its first byte suffice for nearly all of them.
 */
static __always_inline int fr_unicast_v4(__u32 addr)
{
	__u32 first = addr & 0xFF;

	return likely(first - 1 < 223 && first != 127) || (first >= 240 && addr != 0xFFFFFFFF);
}

static __always_inline int fr_multicast(const void *addr)
{
	return ld8(addr) == 0xFF || (fr_is_v4(addr) && fr_multicast_v4(fr_v4(addr)));
}

/* The same for a 16-byte address: not ::, ::1 or a group's. */
static __always_inline int fr_unicast(const void *addr)
{
	if (likely(ld64(addr)))
		return ld8(addr) != 0xFF;
	if (fr_is_v4(addr))
		return fr_unicast_v4(fr_v4(addr));
	return (ld64(addr + 8) & ~(1ULL << 56)) != 0;
}

/*
 * Counters and verdicts.
 */

static __always_inline void fr_count(__u32 reason, __u32 len)
{
	struct fr_reason *r = bpf_map_lookup_elem(&fr_reasons, &reason);

	if (likely(r)) {
		r->packets++;
		r->bytes += len;
	}
}

/* The packet passes to the stack, as it came. */
static __noinline int fr_punt(struct __sk_buff *skb, __u32 reason)
{
	fr_count(reason, skb->len);
	return TC_ACT_UNSPEC;
}

/* The same of a record of a socket, whose length is given. */
static __noinline int fr_leave(__u32 len, __u32 reason)
{
	fr_count(reason, len);
	return TC_ACT_UNSPEC;
}

static __always_inline __u32 fr_length(const void *data, const void *data_end)
{
	return data_end - data;
}

/* The packet is dropped; len is the length that it came with. */
static __noinline int fr_drop(__u32 len, __u32 reason)
{
	fr_count(reason, len);
	return TC_ACT_SHOT;
}

static __always_inline struct fr_lease *fr_the_lease(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&fr_lease, &zero);
}

/* The relay may forward: the process that answers for it is alive. */
static __always_inline int fr_lease_valid(const struct fr_lease *l, __u64 now)
{
	return l && now < *(const volatile __u64 *)&l->deadline;
}

#ifdef FR_NEEDS_ROWS

/*
 * Rows. Where user space replaces or deletes a row, the kernel may use its memory at once for the
 * next row that is written, under a program that has found it and is still reading. So a program
 * reads a row whole, into memory of this processor, and then looks whether user space has begun to
 * write or to delete one since before the lookup; if so, it reads again. A row that is being
 * written meanwhile does no harm: its memory was free before the lookup, and can't be what the
 * lookup found.
 *
 * On a processor that reorders loads, each has to come after the last one: the address of the next
 * load depends on it.
 */

FR_ARRAY(fr_rows, BPF_MAP_TYPE_PERCPU_ARRAY, 0, 1, struct { __u8 bytes[FR_NEEDS_ROWS]; });

enum fr_found {
	FR_MISSING,
	FR_FOUND,
	FR_CHANGING, /* rows changed at each attempt */
};

/*
 * Instead of an offset in fr_rows: the row is copied to where the caller says, on its stack. A
 * program that another one may interrupt on the same processor has to.
 */
#define FR_ON_STACK (~0U)

/*
 * Between two changes lies a system call, and between two readings less: more than one attempt is
 * needed once in a thousand.
 */
#define FR_ATTEMPTS 4

/* Tests define it to be slow where it matters. */
#ifndef FR_INJECT_DELAY
#define FR_INJECT_DELAY()
#endif

/*
 * What copies a row is generated for each table, piece by piece as programs read it: a processor
 * that reads what was written in two pieces waits until both are in memory. What is returned
 * depends on all that was read.
 */
#define FR_COPY(bits)                                                                              \
	static __always_inline __u##bits fr_copy##bits(void *to, const void *from)                 \
	{                                                                                          \
		__u##bits v = *(const volatile __u##bits *)from;                                   \
												   \
		FR_INJECT_DELAY();                                                                 \
		st##bits(to, v);                                                                   \
		return v;                                                                          \
	}
FR_COPY(8)
FR_COPY(16)
FR_COPY(32)
FR_COPY(64)

/* Members of more than one piece. */
static __always_inline __u64 fr_copy_endpoint(void *to, const void *from)
{
	__u64 all = fr_copy64(to, from);

	all |= fr_copy64(to + 8, from + 8);
	all |= fr_copy16(to + 16, from + 16);
	return all;
}

static __always_inline __u64 fr_copy_hop(void *to, const void *from)
{
	__u64 all = fr_copy64(to, from);

	all |= fr_copy64(to + 8, from + 8);
	all |= fr_copy32(to + 16, from + 16);
	return all;
}

/* Which word of fr_lease counts a table's changes. */
enum fr_changes {
	FR_CHANGES = __builtin_offsetof(struct fr_lease, changes),
	FR_STORING = __builtin_offsetof(struct fr_lease, storing),
};

#ifdef FR_NEEDS_LEARNED
/* Programs write to some tables as well: for each of these, rows that they have begun to write. */
FR_ARRAY(fr_learned, BPF_MAP_TYPE_ARRAY, 0, FR_NEEDS_LEARNED, __u64);

static __always_inline void fr_learning(__u32 table)
{
	__u64 *n = bpf_map_lookup_elem(&fr_learned, &table);

	if (likely(n))
		__sync_fetch_and_add(n, 1);
}

static __always_inline const void *fr_learned_in(__u32 table)
{
	return bpf_map_lookup_elem(&fr_learned, &table);
}
#endif

static __always_inline __u64 fr_count_of(const void *changes, const void *learned, __u64 after)
{
	__u64 n = *(const volatile __u64 *)(changes + after);

	return learned ? n + *(const volatile __u64 *)(learned + after) : n;
}

/*
 * Finds a row and copies it to fr_rows, row_at bytes from its start, or to the caller's stack;
 * learned counts what programs write to the table, or is NULL.
 */
static __always_inline enum fr_found fr_find(void *map, const void *key,
					     const struct fr_lease *lease, __u32 row_at, void **row,
					     __u64 (*copy)(void *, const void *),
					     enum fr_changes word, const void *learned)
{
	const void *changes;
	__u32 zero = 0, i;

	if (!lease)
		return FR_MISSING;
	changes = fr_pin((void *)lease) + word; /* not before the check */
	_Pragma("clang loop unroll(disable)")
	for (i = 0; i < FR_ATTEMPTS; i++) {
		__u64 before = fr_count_of(changes, learned, 0), after;
		const void *found = bpf_map_lookup_elem(map, key + fr_after(before));
		void *rows;

		if (!found)
			return FR_MISSING;
		if (row_at != FR_ON_STACK) { /* a constant */
			rows = bpf_map_lookup_elem(&fr_rows, &zero);
			if (!rows)
				return FR_MISSING;
			*row = rows + row_at;
		}
		FR_INJECT_DELAY();
		after = fr_count_of(changes, learned, fr_after(copy(*row, found)));
		if (likely(before == after) && !(word == FR_STORING && before & 1))
			return FR_FOUND;
	}
	return FR_CHANGING;
}

/* Why there is no row to go on with. */
static __always_inline __u32 fr_unfound(enum fr_found found, __u32 missing, __u32 changing)
{
	return found == FR_MISSING ? missing : changing;
}

static __always_inline int fr_missed(struct __sk_buff *skb, enum fr_found found, __u32 missing,
				     __u32 changing)
{
	return fr_punt(skb, fr_unfound(found, missing, changing));
}

#endif

#ifdef FR_NEEDS_SLOTS

struct fr_slot {
	__u64 deadline;
	__u32 gen, pad;
};

struct fr_usage {
	__u64 last;
	struct fr_reason rows[FR_USAGES];
};

FR_ARRAY(fr_slots, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, FR_NEEDS_SLOTS, struct fr_slot);

FR_ARRAY(fr_usage, BPF_MAP_TYPE_PERCPU_ARRAY, 0, FR_NEEDS_SLOTS, struct fr_usage);

/*
 * A session's row counts only while its slot is open, is still the row's, and has not reached its
 * deadline.
 */
static __always_inline int fr_alive(__u32 slot, __u32 gen, __u64 now)
{
	struct fr_slot *s = bpf_map_lookup_elem(&fr_slots, &slot);

	return s && gen && *(volatile __u32 *)&s->gen == gen &&
	       now < *(volatile __u64 *)&s->deadline;
}

static __always_inline void fr_use(__u32 slot, __u32 row, __u32 len, __u64 now)
{
	struct fr_usage *u = bpf_map_lookup_elem(&fr_usage, &slot);

	if (likely(u && row < FR_USAGES)) {
		u->last = now;
		u->rows[row].packets++;
		u->rows[row].bytes += len;
	}
}

#endif

#ifdef FR_NEEDS_SHARED

FR_ARRAY(fr_shared, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, FR_NEEDS_SHARED, __u64);

/* User space adds to the same counters, in memory that it maps; index 0 is no counter. */
static __always_inline void fr_shared_add(__u32 index, __u64 by)
{
	__u64 *v = bpf_map_lookup_elem(&fr_shared, &index);

	if (by && index && v) /* to add nothing costs as much as to add something */
		__sync_fetch_and_add(v, by);
}

static __always_inline __u64 fr_shared_get(__u32 index)
{
	__u64 *v = bpf_map_lookup_elem(&fr_shared, &index);

	return index && v ? *(volatile __u64 *)v : 0;
}

#endif

#ifdef FR_NEEDS_NAMED

FR_ARRAY(fr_named, BPF_MAP_TYPE_PERCPU_ARRAY, 0, FR_NEEDS_NAMED, __u64);

static __always_inline void fr_named_add(__u32 index, __u64 by)
{
	__u64 *v = bpf_map_lookup_elem(&fr_named, &index);

	if (likely(v))
		*v += by;
}

#endif

/*
 * The packet's memory.
 */

/* Make the first want bytes readable in place, or as many as there are. */
static __always_inline void fr_pull(struct __sk_buff *skb, __u32 want)
{
	__u32 have = skb->data_end - skb->data;

	if (unlikely(have < want && have < skb->len))
		bpf_skb_pull_data(skb, skb->len < want ? skb->len : want);
}

/* Make all of the packet linear, so that later changes need no memory. */
static __always_inline long fr_linear(struct __sk_buff *skb)
{
	if (likely(skb->data_end - skb->data == skb->len))
		return 0;
	return bpf_skb_pull_data(skb, skb->len);
}

/*
 * The size in bytes of the QUIC variable-length integer at p (RFC 9000, 16), or 0 where the packet
 * ends before it does.
 */
static __always_inline __u64 fr_varint(const void *p, const void *data_end, __u64 *value)
{
	if (p + 1 > data_end)
		return 0;
	switch (ld8(p) >> 6) {
	case 0:
		*value = ld8(p);
		return 1;
	case 1:
		if (p + 2 > data_end)
			return 0;
		*value = be16(p) & 0x3FFF;
		return 2;
	case 2:
		if (p + 4 > data_end)
			return 0;
		*value = be32(p) & 0x3FFFFFFF;
		return 4;
	default:
		if (p + 8 > data_end)
			return 0;
		*value = be64(p) & 0x3FFFFFFFFFFFFFFFULL;
		return 8;
	}
}

/*
 * The largest integer that there is room for in width bytes, 0 to 8: a shift by 64 bits takes two
 * halves.
 */
static __always_inline __u64 fr_room(__u64 width)
{
	return (1ULL << 4 * width << 4 * width) - 1;
}

/* The same of a QUIC variable-length integer, which has two bits less. */
static __always_inline __u64 fr_varint_room(__u64 width)
{
	return fr_room(width) >> 2;
}

/*
 * The integer in the last width bytes of size (1, 2, 4 or 8) bytes at p. It returns 0 if the packet
 * ends before them, which the program has made sure of: that the verifier can't know.
 */
static __always_inline int fr_uint(const void *p, const void *data_end, __u32 size, __u64 width,
				   __u64 *value)
{
	if (p + size > data_end)
		return 0;
	*value = size == 1 ? ld8(p) : size == 2 ? be16(p) : size == 4 ? be32(p) : be64(p);
	*value &= fr_room(width);
	return 1;
}

#ifdef FR_NEEDS_FACTS

/*
 * What the kernel knows about a packet. From Linux 6.2 on a program may look at struct sk_buff
 * itself; before, it may read the kernel's memory. The members' places come from the kernel's BTF
 * when the program is loaded (CO-RE). A kernel without BTF doesn't say, and one that is locked
 * down says less: the loader writes down what can be asked, and the rest isn't in the program that
 * the kernel runs.
 */

enum {
	FR_FACTS_CAST = 1 << 0, /* bpf_cast_to_kern_ctx */
	FR_FACTS_READ = 1 << 1, /* bpf_probe_read_kernel */
};

const volatile __u32 fr_facts;

struct sk_buff___fr {
	__u8 ip_summed : 2;
	__u16 csum_start, csum_offset;
	__u32 end;
	unsigned char *head, *data;
} __attribute__((preserve_access_index));

struct skb_shared_info___fr {
	__u32 gso_type;
} __attribute__((preserve_access_index));

extern void *bpf_cast_to_kern_ctx(void *ctx) __attribute__((weak, section(".ksyms")));

/* What is asked of the compiler about a member (enum in LLVM's BPFCORE.h). */
enum {
	FR_BYTE_OFFSET = 0,
	FR_LSHIFT = 4,
	FR_RSHIFT = 5,
};

enum {
	FR_CHECKSUM_PARTIAL = 3,     /* include/linux/skbuff.h */
	FR_GSO_ENCAP_ALL = 0x3f << 6, /* SKB_GSO_GRE to SKB_GSO_UDP_TUNNEL_CSUM */
	FR_GSO_TCP = 1 << 0 | 1 << 4, /* SKB_GSO_TCPV4, SKB_GSO_TCPV6 */
	FR_GSO_UDP_L4 = 1 << 17,
	/* and SKB_GSO_DODGY, _TCP_ECN, _TCP_FIXEDID (until Linux 6.17), _TCP_ACCECN */
	FR_GSO_KNOWN = FR_GSO_TCP | FR_GSO_UDP_L4 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 19,
};

#define FR_AT(type, member)                                                                        \
	__builtin_preserve_field_info(((struct type *)0)->member, FR_BYTE_OFFSET)

/* ip_summed is two bits of a byte. */
#define FR_BITS(what) __builtin_preserve_field_info(((struct sk_buff___fr *)0)->ip_summed, what)
#define FR_IP_SUMMED(byte) ((__u64)(byte) << FR_BITS(FR_LSHIFT) >> FR_BITS(FR_RSHIFT))

/* Reads size bytes of the kernel's memory; 0 where that isn't to be had: the helper clears v. */
static __always_inline __u64 fr_kernel(const void *from, __u32 size)
{
	__u64 v = 0;

	bpf_probe_read_kernel(&v, size, from);
	return v;
}

/* fr_partial where struct sk_buff can't be looked at. */
static __noinline __u32 fr_partial_read(struct __sk_buff *skb)
{
	const void *k = skb;
	__u32 start;

	if (likely(FR_IP_SUMMED(fr_kernel(k + FR_AT(sk_buff___fr, ip_summed), 1)) !=
		   FR_CHECKSUM_PARTIAL))
		return 0;
	start = fr_kernel(k + FR_AT(sk_buff___fr, csum_start), 2) -
		(fr_kernel(k + FR_AT(sk_buff___fr, data), 8) -
		 fr_kernel(k + FR_AT(sk_buff___fr, head), 8));
	return start << 16 | (__u16)(start + fr_kernel(k + FR_AT(sk_buff___fr, csum_offset), 2));
}

/*
 * Where a checksum is left to a device (CHECKSUM_PARTIAL): the offset of the first byte that it
 * covers, times 65536, plus that of its field. 0 where none is, or where the kernel doesn't say.
 */
#define FR_PARTIAL(start, field) ((start) << 16 | (field))

static __always_inline __u32 fr_partial(struct __sk_buff *skb)
{
	if (fr_facts & FR_FACTS_CAST) {
		const struct sk_buff___fr *k = bpf_cast_to_kern_ctx(skb);
		__u32 start;

		if (likely(FR_IP_SUMMED(ld8((const void *)k + FR_AT(sk_buff___fr, ip_summed))) !=
			   FR_CHECKSUM_PARTIAL))
			return 0;
		start = k->csum_start - ((__u64)k->data - (__u64)k->head);
		return start << 16 | (__u16)(start + k->csum_offset);
	}
	return fr_facts & FR_FACTS_READ ? fr_partial_read(skb) : 0;
}

/*
 * Of a GSO packet, outer checksums are left to segmentation. Where the kernel doesn't say which
 * checksums are left, the pseudo-header that one is the sum of may have another length: the
 * kernel's helper knows.
 */
static __always_inline int fr_is_segmented(struct __sk_buff *skb, __u32 partial, __u32 field)
{
	return skb->gso_size && (!fr_facts || field < partial >> 16);
}

/* What kind of GSO packet it is, as SKB_GSO_...; 0 where the kernel doesn't say. */
static __always_inline __u32 fr_gso_type(struct __sk_buff *skb)
{
	const void *k = skb, *shared;

	if (!(fr_facts & FR_FACTS_READ))
		return 0;
	shared = (const void *)fr_kernel(k + FR_AT(sk_buff___fr, head), 8) +
		 fr_kernel(k + FR_AT(sk_buff___fr, end), 4);
	return fr_kernel(shared + FR_AT(skb_shared_info___fr, gso_type), 4);
}

/*
 * Each segment of a GSO packet begins with the headers of a tunnel, up to the inner transport
 * header.
 */
static __noinline int fr_encapsulated(struct __sk_buff *skb)
{
	return (fr_gso_type(skb) & FR_GSO_ENCAP_ALL) != 0;
}

#ifdef FR_NEEDS_SEGMENTS

/*
 * Where the first segment's payload begins, of a GSO packet that the kernel can cut when the
 * headers of a tunnel are in front of it. 0 of others: of other types, in a tunnel already, or
 * a list of packets (SKB_GSO_FRAGLIST); and where the kernel doesn't say.
 */
static __noinline __u32 fr_super_front(struct __sk_buff *skb)
{
	__u32 type = fr_gso_type(skb), start = fr_partial(skb) >> 16;
	__u8 words;

	if (!start || type & ~FR_GSO_KNOWN)
		return 0;
	if (type & FR_GSO_UDP_L4)
		return start + 8;
	if (!(type & FR_GSO_TCP) || bpf_skb_load_bytes(skb, start + 12, &words, 1))
		return 0;
	words >>= 4;
	return words < 5 ? 0 : start + words * 4;
}

static __always_inline __u32 fr_segment_front(struct __sk_buff *skb)
{
	return skb->gso_size ? fr_super_front(skb) : 0;
}

#endif

#endif

/*
 * Room. A rewritten packet is [0, to) of headers and then the payload, which came at from. Ways to
 * make or close the room between the two:
 *
 * bpf_skb_adjust_room moves what is before the room, the link-layer header. That is fast,
 * but wrong where the transport checksum is partial: the kernel remembers where it begins
 * (csum_start), and the result is written over something else. Then (FR_PAYLOAD)
 * the payload moves, through memory of this processor.
 *
 * Changes of the link-layer header and of the IP family make or close room as well. What follows
 * the payload is cut off.
 */

enum {
	FR_PAYLOAD = 1 << 0,	/* move the payload, not the headers */
	FR_TO_IPV4 = 1 << 1,	/* the network header becomes IPv4: 20 bytes less */
	FR_TO_IPV6 = 1 << 2,	/* the network header becomes IPv6: 20 bytes more */
	FR_POP_INNER = 1 << 3,	/* take the VLAN tag in the frame out: 4 bytes less */
	FR_POP_TAG = 1 << 4,	/* and the one in the metadata, in front of it */
	FR_IN_IPV4 = 1 << 5,	/* a GSO packet gets the headers of a tunnel: IPv4, */
	FR_IN_IPV6 = 1 << 6,	/* or IPv6, */
	FR_IN_UDP = 1 << 7,	/* UDP without a checksum, */
	FR_IN_ETHERNET = 1 << 8, /* and Ethernet, as the last one */
};

enum {
	FR_UNCHANGED = 1, /* it failed, and the packet is as it came */
	FR_BROKEN = 2,	  /* it failed, and the packet is of no use */
};

#ifdef FR_NEEDS_SCRATCH

#define FR_SCRATCH_SIZE 16384

struct fr_scratch {
	__u8 bytes[FR_SCRATCH_SIZE];
};

FR_ARRAY(fr_scratch, BPF_MAP_TYPE_PERCPU_ARRAY, 0, 1, struct fr_scratch);

#endif

/* Tests define it to have the last step fail, which no real kernel does on demand. */
#ifndef FR_INJECT_FAULT
#define FR_INJECT_FAULT 0
#endif

#ifdef FR_NEEDS_SEGMENTS

/*
 * Room for the headers of a tunnel, in one step with which the kernel learns what they are: each
 * segment gets them, and keeps its size. A refusal does no harm.
 */
static __always_inline int fr_encapsulate(struct __sk_buff *skb, __u32 grow, __u32 how)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET;

	flags |= how & FR_IN_IPV6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
	if (how & FR_IN_UDP)
		flags |= BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	if (how & FR_IN_ETHERNET) {
		flags |= (__u64)ETH_HLEN << BPF_ADJ_ROOM_ENCAP_L2_SHIFT;
		/* Linux 5.13: devices that cut such packets themselves want to know it. */
		if (!bpf_skb_adjust_room(skb, grow, BPF_ADJ_ROOM_MAC,
					 flags | BPF_F_ADJ_ROOM_ENCAP_L2_ETH))
			return 0;
	}
	return bpf_skb_adjust_room(skb, grow, BPF_ADJ_ROOM_MAC, flags) ? FR_UNCHANGED : 0;
}

#endif

/*
 * The order of steps matters: first what fails without harm, then the changes. Once the packet is
 * linear and ours, and only gets shorter, the later ones need no memory.
 */
static __noinline int fr_move(struct __sk_buff *skb, __u32 from, __u32 to, __u32 payload, __u32 how)
{
	__s32 grow = to - from; /* what adjust_room or the payload still has to do */
	__u32 size = to + payload;
	int failed = FR_UNCHANGED;
#ifdef FR_NEEDS_SCRATCH
	struct fr_scratch *s = NULL;
	__u32 zero = 0;
#endif

#ifdef FR_NEEDS_SEGMENTS
	if (how & (FR_IN_IPV4 | FR_IN_IPV6)) {
		if (fr_encapsulate(skb, to - from, how))
			return failed;
		return FR_INJECT_FAULT ? FR_BROKEN : 0;
	}
#endif
	if ((how || skb->len > from + payload) && fr_linear(skb))
		return failed;
#ifdef FR_NEEDS_SCRATCH
	if (how & FR_PAYLOAD) {
		s = bpf_map_lookup_elem(&fr_scratch, &zero);
		if (!s || payload > FR_SCRATCH_SIZE)
			return failed;
		if (payload && bpf_skb_load_bytes(skb, from, s->bytes,
						  fr_size(payload, FR_SCRATCH_SIZE)))
			return failed;
	}
#endif
	/*
	 * The kernel cuts nothing off in front of where it knows the transport header to be. That
	 * doesn't follow headers that move, so the tail goes before they do, while a refusal does
	 * no harm. (Where it has come to be in front of the packet, old kernels refuse always.)
	 */
	if (to < from && skb->len > from + payload) {
		if (bpf_skb_change_tail(skb, from + payload, 0))
			return failed;
		failed = FR_BROKEN;
	}
	if (how & FR_POP_INNER) {
		if (how & FR_POP_TAG) {
			if (bpf_skb_vlan_pop(skb))
				return failed;
			failed = FR_BROKEN;
		}
		if (bpf_skb_vlan_pop(skb))
			return failed;
		failed = FR_BROKEN;
		grow += 4;
	}
	if (how & FR_TO_IPV4) {
		grow += 20;
		/* The 20 bytes are taken from the front of what may stay, so room comes first. */
		if (grow > 0 && !(how & FR_PAYLOAD)) {
			if (bpf_skb_adjust_room(skb, grow, BPF_ADJ_ROOM_MAC,
						BPF_F_ADJ_ROOM_NO_CSUM_RESET))
				return failed;
			failed = FR_BROKEN;
			grow = 0;
		}
		if (bpf_skb_change_proto(skb, bpf_htons(ETH_P_IP), 0))
			return failed;
		failed = FR_BROKEN;
	}
	if (how & FR_TO_IPV6) {
		if (bpf_skb_change_proto(skb, bpf_htons(ETH_P_IPV6), 0))
			return failed;
		failed = FR_BROKEN;
		grow -= 20;
	}
	if (!(how & FR_PAYLOAD)) {
		if (grow && bpf_skb_adjust_room(skb, grow, BPF_ADJ_ROOM_MAC,
						BPF_F_ADJ_ROOM_NO_CSUM_RESET))
			return failed;
		if (grow)
			failed = FR_BROKEN;
	}
#ifdef FR_NEEDS_SCRATCH
	else {
		if (skb->len < size) {
			if (bpf_skb_change_tail(skb, size, 0))
				return failed;
			failed = FR_BROKEN;
		}
		if (payload && bpf_skb_store_bytes(skb, to, s->bytes,
						   fr_size(payload, FR_SCRATCH_SIZE),
						   BPF_F_RECOMPUTE_CSUM))
			return failed;
		failed = FR_BROKEN;
	}
#endif
	if (skb->len > size && bpf_skb_change_tail(skb, size, 0))
		return failed;
	return FR_INJECT_FAULT ? FR_BROKEN : 0;
}

/* The same; then data is the packet that leaves, whose headers are in bounds where to is fixed. */
static __always_inline int fr_resize(struct __sk_buff *skb, __u32 from, __u32 to, __u32 payload,
				     __u32 how, void **data)
{
	int err = fr_move(skb, from, to, payload, how);

	if (unlikely(err))
		return err;
	*data = (void *)(long)skb->data;
	if (unlikely(*data + to > (void *)(long)skb->data_end))
		return FR_BROKEN;
	return 0;
}

/* The end of a packet that fr_resize has failed on. The reason after fault is no_memory. */
static __always_inline int fr_failed(struct __sk_buff *skb, __u32 len, int err, __u32 fault)
{
	return err == FR_BROKEN ? fr_drop(len, fault) : fr_punt(skb, fault + 1);
}

/*
 * Sums.
 */

/*
 * A multiple of 65535 from which sums can be subtracted: 0 in ones' complement, and larger than
 * any sum of ours.
 */
#define FR_ZERO (0xFFFFULL << 40)

/* 8 or 16 bytes as a summand. */
static __always_inline __u64 fr_add64(__u64 v) { return (v & 0xFFFFFFFF) + (v >> 32); }

static __always_inline __u64 fr_add128(__be128 v) { return fr_add64(v.head) + fr_add64(v.tail); }

/* The same at an odd position. */
static __always_inline __u64 fr_odd64(__u64 v) { return fr_add64(v << 8 | v >> 56); }
static __always_inline __u64 fr_odd128(__be128 v) { return fr_odd64(v.head) + fr_odd64(v.tail); }

/*
 * The sum in 16 bits; 0 only for 0. A number plus itself with its halves swapped has the folded
 * sum in its upper half.
 */
static __always_inline __u16 fr_fold(__u64 s)
{
	__u32 n = (s + (s << 32 | s >> 32)) >> 32;

	return (n + (n << 16 | n >> 16)) >> 16;
}

/*
 * A sum of bytes that include their own checksum folds to 65535: it is a multiple of that, and not
 * 0. Multiplying by the inverse of 65535 modulo 2^64 divides the multiples by 65535, and makes
 * more of all other numbers than a multiple can give.
 */
static __always_inline int fr_sum_ok(__u64 s)
{
	return s * 0xFFFEFFFEFFFEFFFFULL - 1 < 0x0001000100010001ULL;
}

/*
 * The checksum of a sum. It is computed here and not where it is stored, in front of which the
 * summands would have to wait on the stack.
 */
static __always_inline __u16 fr_checksum(__u64 s)
{
	__u32 sum = (__u16)~fr_fold(s);

	barrier_var(sum);
	return sum;
}

/* The sum that a checksum is of, and FR_ZERO. */
static __always_inline __u64 fr_sum_of(__be16 checksum)
{
	return FR_ZERO + (__u16)~checksum;
}

/* A checksum where 0 means that there is no checksum: a sum of 0 is written as FFFF. */
static __always_inline __u16 fr_checksum_not_0(__u64 s)
{
	__u16 sum = fr_checksum(s);

	return sum ? sum : 0xFFFF;
}

/*
 * The sum of len bytes of the packet from off on (at most 64), unfolded; 0 where they can't be
 * read. In two steps, since the stack of 512 bytes is shared with the program that calls it. It
 * isn't static: such functions are verified once, however often they are called.
 */
__noinline __u32 fr_sum64(struct __sk_buff *skb, __u32 off, __u32 len)
{
	__u32 chunk[8] = {}, sum = 0;

	if (len == 0 || len > 2 * sizeof(chunk))
		return 0;
	if (len > sizeof(chunk)) {
		if (bpf_skb_load_bytes(skb, off, chunk, sizeof(chunk)))
			return 0;
		sum = bpf_csum_diff(NULL, 0, chunk, sizeof(chunk), 0);
		__builtin_memset(chunk, 0, sizeof(chunk));
		off += sizeof(chunk);
		len -= sizeof(chunk);
	}
	if (bpf_skb_load_bytes(skb, off, chunk, fr_size(len, sizeof(chunk))))
		return 0;
	return bpf_csum_diff(NULL, 0, chunk, sizeof(chunk), sum);
}

/*
 * The sum of the bytes from to end that are cut off the packet (at most 64); odd: what a checksum
 * covers has them at odd positions.
 */
static __always_inline __u64 fr_sum_cut64(struct __sk_buff *skb, __u64 from, __u64 end, int odd)
{
	__u64 sum = 0;

	if (unlikely(end > from)) {
		sum = fr_sum64(skb, from, end - from);
		if (odd)
			sum <<= 8;
	}
	return sum;
}

#ifdef FR_NEEDS_SCRATCH

/* The same of up to 512 bytes, as many as bpf_csum_diff takes. */
__noinline __u32 fr_sum512(struct __sk_buff *skb, __u32 off, __u32 len)
{
	__u32 zero = 0, n = fr_size(len, 512);
	struct fr_scratch *s = bpf_map_lookup_elem(&fr_scratch, &zero);

	if (len == 0 || len > 512 || !s || bpf_skb_load_bytes(skb, off, s->bytes, n))
		return 0;
	__builtin_memset(s->bytes + n, 0, 4);
	return bpf_csum_diff(NULL, 0, s->bytes, (n + 3) & ~3, 0);
}

/* The same of up to 2048 bytes. */
static __noinline __u32 fr_sum(struct __sk_buff *skb, __u32 off, __u32 len)
{
	__u64 sum = 0;
	int i;

	for (i = 0; i < 4 && len > 0; i++) {
		__u32 n = len < 512 ? len : 512;

		sum += fr_sum512(skb, off, n);
		off += n;
		len -= n;
	}
	return fr_fold(sum);
}

/*
 * The folded sum of a datagram of up to 16384 bytes, of which a device may have to complete a
 * checksum (partial is what fr_partial says): the bytes that it covers, with the completed checksum
 * among them, add up to the complement of what its field holds.
 */
__noinline __u32 fr_sum_whole(struct __sk_buff *skb, __u32 off, __u32 len, __u32 partial)
{
	__u32 start = partial >> 16, i;
	__u64 sum = 0;

	if (len > FR_SCRATCH_SIZE)
		return 0;
	if (start >= off && start < off + len) {
		__u16 field;

		if (bpf_skb_load_bytes(skb, partial & 0xFFFF, &field, sizeof(field)))
			return 0;
		if (field != 0xFFFF) /* it stays: only of zeros the sum is 0000 */
			field = ~field;
		len = start - off;
		sum = len & 1 ? __builtin_bswap16(field) : field;
	}
	/* The last bytes come after the loop: inside, each step would be two ways to verify. */
	_Pragma("clang loop unroll(disable)")
	for (i = 0; i < FR_SCRATCH_SIZE / 512 && len > 512; i++) {
		sum += fr_sum512(skb, off, 512);
		off += 512;
		len -= 512;
	}
	sum += fr_sum512(skb, off, len);
	return fr_fold(sum);
}

static __always_inline __u64 fr_sum_cut(struct __sk_buff *skb, __u64 from, __u64 end, int odd)
{
	__u64 sum = 0;

	if (unlikely(end > from)) {
		sum = fr_sum(skb, from, end - from);
		if (odd)
			sum <<= 8;
	}
	return sum;
}

#endif

#ifdef FR_NEEDS_ZEROS

static const volatile __u8 fr_zeros[FR_NEEDS_ZEROS];

/* Zeros in place of len bytes of the packet from off on, of one at least. */
static __always_inline long fr_blank(struct __sk_buff *skb, __u32 off, __u32 len)
{
	return bpf_skb_store_bytes(skb, off, (const void *)fr_zeros, fr_size(len, FR_NEEDS_ZEROS),
				   BPF_F_RECOMPUTE_CSUM);
}

#endif

/*
 * A device may have summed up the whole packet after the link-layer header (CHECKSUM_COMPLETE).
 * bpf_csum_update returns that sum, or an error where there is none. Writing to the packet in
 * place makes it stale: what will be written is taken out of the sum before, and put in again
 * after, at most 64 bytes at once.
 */

/* A sum of bytes from off on, as it counts in the packet's. */
static __always_inline __u32 fr_counted(__u32 off, __u32 sum)
{
	__u16 folded = fr_fold(sum);

	return off & 1 ? __builtin_bswap16(folded) : folded;
}

static __always_inline __u32 fr_counted_at(struct __sk_buff *skb, __u32 off, __u32 len)
{
	return fr_counted(off, fr_sum64(skb, off, len));
}

__noinline __s64 fr_complete_without(struct __sk_buff *skb, __u32 csum, __u32 off, __u32 len)
{
	return fr_fold(FR_ZERO + csum - fr_counted_at(skb, off, len));
}

static __always_inline __s64 fr_complete_with(struct __sk_buff *skb, __u32 csum, __u32 off,
					      __u32 len)
{
	return fr_fold((__u64)csum + fr_counted_at(skb, off, len));
}

/*
 * Room of an odd size was made or closed: the kernel's helpers leave the sum with its bytes
 * swapped.
 */
static __always_inline __s64 fr_complete_shifted(__u32 csum)
{
	return __builtin_bswap16(fr_fold(csum));
}

/* The last bytes; then the sum is the packet's again. */
static __noinline void fr_complete(struct __sk_buff *skb, __u32 csum, __u32 off, __u32 len)
{
	csum = fr_complete_with(skb, csum, off, len);
	bpf_csum_update(skb, fr_fold(FR_ZERO + csum - fr_fold((__u32)bpf_csum_update(skb, 0))));
}

/* Both where no other bytes change: fr_complete_begin before, fr_complete_end after. */
static __always_inline __s64 fr_complete_begin(struct __sk_buff *skb, __u32 off, __u32 len)
{
	__s64 csum = bpf_csum_update(skb, 0);

	if (unlikely(csum >= 0))
		csum = fr_complete_without(skb, csum, off, len);
	return csum;
}

static __always_inline void fr_complete_end(struct __sk_buff *skb, __s64 csum, __u32 off, __u32 len)
{
	if (unlikely(csum >= 0))
		fr_complete(skb, csum, off, len);
}

/*
 * Finish a checksum that may be partial (CHECKSUM_PARTIAL): its field holds the old value, and the
 * kernel knows which of the two it is. To a partial one it adds what changes in the pseudo-header,
 * and nothing else. To a full one it adds both, which makes it sum. sums has both values, the old
 * one in its upper half; pseudo is the change of the pseudo-header.
 */
static __noinline long fr_finish_sum(struct __sk_buff *skb, __u32 off, __u32 sums, __u64 pseudo,
				     __u64 flags)
{
	__u16 old = sums >> 16, sum = sums, diff = fr_fold(pseudo);
	long err = bpf_l4_csum_replace(skb, off, 0, diff, BPF_F_PSEUDO_HDR | flags);

	return err ? err :
		bpf_l4_csum_replace(skb, off, 0, fr_fold(FR_ZERO + old - sum - diff), flags);
}

#ifdef FR_NEEDS_FACTS

/*
 * A checksum that may be partial: what its field holds, what a full one will be, and the sums of
 * the pseudo-headers of the packet that came and of the one that leaves. rest is the sum that a
 * full one is of without what doesn't leave, and FR_ZERO. optional: a packet that came without a
 * checksum leaves without one.
 */
struct fr_csum {
	__be16 old, new;
	int partial, optional;
	__u64 old_pseudo, new_pseudo, rest;
};

/*
 * A checksum with this field is left to a device. Where the kernel doesn't say, it is one holding
 * the sum of the pseudo-header: a full one does so by chance, and what is done then is right for
 * both.
 */
static __always_inline int fr_is_partial(__u32 partial, __u32 field, __u16 old, __u64 pseudo)
{
	if (likely(fr_facts))
		return (__u16)partial == field;
	return old == fr_fold(pseudo);
}

/*
 * partial is what fr_partial says, and field the offset of the checksum in the packet that came;
 * gone is the sum of what doesn't leave.
 */
static __always_inline struct fr_csum fr_csum(__u32 partial, __u32 field, __be16 old,
					      __u64 old_pseudo, __u64 gone)
{
	return (struct fr_csum) {
		.old = old,
		.old_pseudo = old_pseudo,
		.rest = fr_sum_of(old) - (gone + old_pseudo),
		.partial = fr_is_partial(partial, field, old, old_pseudo),
	};
}

/* It gets what leaves. */
static __always_inline void fr_csum_set(struct fr_csum *c, __u64 new_pseudo, __u64 added)
{
	c->new_pseudo = new_pseudo;
	c->new = fr_checksum(c->rest + added + new_pseudo);
}

/* The same where 0 means that there is no checksum. */
static __always_inline void fr_csum_set_not_0(struct fr_csum *c, __u64 new_pseudo, __u64 added)
{
	c->new_pseudo = new_pseudo;
	c->new = fr_checksum_not_0(c->rest + added + new_pseudo);
	if (c->optional && !c->old)
		c->new = 0;
}

/*
 * What is written into the field. Where it is partial, that is the new sum of the pseudo-header;
 * where the kernel doesn't say, it stays for fr_finish.
 */
static __always_inline __be16 fr_csum_field(const struct fr_csum *c)
{
	if (!c->partial)
		return c->new;
	return fr_facts ? fr_fold(FR_ZERO + c->old + (c->new_pseudo - c->old_pseudo)) : c->old;
}

static __always_inline int fr_finish(struct __sk_buff *skb, __u32 off, const struct fr_csum *c,
				     __u64 flags)
{
	return unlikely(c->partial) && !fr_facts &&
	       fr_finish_sum(skb, off, (__u32)c->old << 16 | c->new,
			     FR_ZERO + (c->new_pseudo - c->old_pseudo), flags);
}

#endif

/*
 * Transmission.
 */

/* A packet can leave through a hop. */
static __always_inline int fr_usable(const struct fr_hop *hop)
{
	return hop->state == FR_HOP_DIRECT || hop->state == FR_HOP_NEIGHBOUR;
}

/*
 * Why a packet can't leave through a hop. The reasons are numbered one after the other: too_big,
 * no_route, local, and those of states: unreachable, blackhole, prohibit, xfrm, rule, encap,
 * no_neighbour; and for a hop that is looked up, not_forwarded and forwarding_off.
 */
static __always_inline __u32 fr_barred(const struct fr_hop *hop, __u32 unreachable, __u32 other)
{
	__u32 state = hop->state - FR_HOP_UNREACHABLE;

	return state <= FR_HOP_ENCAP - FR_HOP_UNREACHABLE ? unreachable + state : other;
}

static __always_inline __u32 fr_unusable(const struct fr_hop *hop, __u32 no_route)
{
	return fr_barred(hop, no_route + 2, no_route + (hop->state == FR_HOP_LOCAL));
}

static __always_inline __u32 fr_unrouted(const struct fr_hop *hop, __u32 not_forwarded,
					 __u32 unreachable)
{
	return fr_barred(hop, unreachable,
			 not_forwarded + (hop->state == FR_HOP_FORWARDING_OFF));
}

/* Likewise of a copy: the kernel doesn't resolve neighbours for it. */
static __always_inline __u32 fr_indirect(const struct fr_hop *hop, __u32 no_route)
{
	return hop->state == FR_HOP_NEIGHBOUR ? no_route + 8 : fr_unusable(hop, no_route);
}

/* A packet of len bytes, network header included, can leave through a hop. */
static __always_inline int fr_fits(const struct fr_hop *hop, __u64 len)
{
	return fr_usable(hop) && len <= hop->mtu;
}

/* One that can't passes to the stack. */
static __always_inline int fr_unfit(struct __sk_buff *skb, const struct fr_hop *hop, __u32 too_big)
{
	return fr_punt(skb, fr_usable(hop) ? too_big : fr_unusable(hop, too_big + 1));
}

/* Write the link-layer addresses of a hop. */
static __always_inline void fr_link(void *frame, const struct fr_hop *hop)
{
	st64(frame, ld64(hop->dst));
	st32(frame + 8, ld32(hop->src + 2));
}

/* Send the packet through a hop, whose link-layer addresses it has where direct is set. */
static __always_inline int fr_send(const struct fr_hop *hop, int direct)
{
	if (direct)
		return bpf_redirect(hop->ifindex, 0);
	return bpf_redirect_neigh(hop->ifindex, NULL, 0, 0);
}

/* Let the kernel resolve the neighbour and write the link-layer header. */
static __always_inline long fr_redirect_neigh(__u32 ifindex, __u32 family, const void *next_hop)
{
	struct bpf_redir_neigh params = { .nh_family = family };

	params.nh[0] = ld32(next_hop);
	if (family == AF_INET6) {
		params.nh[1] = ld32(next_hop + 4);
		params.nh[2] = ld32(next_hop + 8);
		params.nh[3] = ld32(next_hop + 12);
	}
	return bpf_redirect_neigh(ifindex, &params, sizeof(params), 0);
}

/* Say which protocol and ports a packet leaves with: routing rules may ask for them. */
static __always_inline void fr_flow(struct bpf_fib_lookup *fib, __u8 protocol, __u16 source,
				    __u16 destination)
{
	fib->l4_protocol = protocol;
	fib->sport = bpf_htons(source);
	fib->dport = bpf_htons(destination);
}

/*
 * Ask the kernel's routing for the next hop of a packet of len bytes (network header included; of a
 * GSO packet, those of a segment) that came in by a device, and fill in a hop. Returns 1 where the
 * packet is too big for the route. Kernels before 5.12 compare the device's MTU with the packet
 * that came. The lookup sees no xfrm policies, and can't follow rules that ask for what the caller
 * doesn't know: where there are some, as the policy of the lease says, the packet is the stack's.
 */
static __always_inline int fr_route(void *ctx, __u32 ifindex, struct bpf_fib_lookup *fib,
				    __u32 len, struct fr_hop *hop)
{
	__u32 v6 = fib->family == AF_INET6;
	struct fr_lease *l = fr_the_lease();
	__u64 policy = l ? *(const volatile __u64 *)&l->policy : 0;
	long ret;

	if (unlikely(policy & FR_POLICY_XFRM << v6)) {
		hop->state = FR_HOP_XFRM;
		return 0;
	}
	if (unlikely(policy & FR_POLICY_RULES << v6) && !(fib->sport && fib->dport)) {
		hop->state = FR_HOP_RULE;
		return 0;
	}
	fib->ifindex = ifindex;
	fib->tot_len = len < 0xFFFF ? len : 0xFFFF;
	ret = bpf_fib_lookup(ctx, fib, sizeof(*fib), 0);
	hop->ifindex = fib->ifindex;
	hop->mtu = 0xFFFF; /* the lookup has compared it */
	__builtin_memcpy(hop->dst, fib->dmac, 6);
	__builtin_memcpy(hop->src, fib->smac, 6);
	/*
	 * NOT_FWDED, or an error: there is no route, or not a unicast one, in the first
	 * place to this host's own addresses
	 */
	hop->state = FR_HOP_NONE;
	if (ret == 0) /* SUCCESS */
		hop->state = FR_HOP_DIRECT;
	else if (ret == 1) /* BLACKHOLE */
		hop->state = FR_HOP_BLACKHOLE;
	else if (ret == 2) /* UNREACHABLE */
		hop->state = FR_HOP_UNREACHABLE;
	else if (ret == 3) /* PROHIBIT */
		hop->state = FR_HOP_PROHIBIT;
	else if (ret == 5) /* FWD_DISABLED */
		hop->state = FR_HOP_FORWARDING_OFF;
	else if (ret == 6) /* UNSUPP_LWT */
		hop->state = FR_HOP_ENCAP;
	else if (ret == 7) /* NO_NEIGH */
		hop->state = FR_HOP_NEIGHBOUR;
	else if (ret == 8) /* FRAG_NEEDED */
		return 1;
	return 0;
}

/* The process that answers for the relay runs this to learn the kernel's jiffies. */
SEC("tc") int fr_clock(struct __sk_buff *skb)
{
	struct fr_lease *l = fr_the_lease();

	if (l)
		*(volatile __u64 *)&l->now = bpf_jiffies64();
	return 0;
}

char fr_license[] SEC("license") = "Dual BSD/GPL";

#endif

/*
 * fanout.h: what relays are made of that send one packet to many, keep account of what they send,
 * and tell user space about it. It continues fastrelay.h, in the same file.
 *
 * A relay defines these as well:
 *	FR_NEEDS_RECEIVERS	entries of fr_receivers, where it has groups
 *	FR_NEEDS_FRONT		bytes of the saved front, a multiple of 8, where it has groups
 *	FR_NEEDS_SAME		numbers that go with the saved front
 *	FR_NEEDS_ELEMENTS	where it searches lists of elements
 *	FR_NEEDS_CREDITS	entries of fr_credits, where it has credits
 *	FR_LEVELS		levels of priority, where it has credits
 *	FR_NEEDS_TRANSLATIONS	rows of fr_translate, where it has translations
 *	FR_NEEDS_RING		bytes of fr_events, where it has events
 *	FR_EVENTS		entries of fr_lost, where it has events
 */
#ifndef FASTRELAY_FANOUT_H
#define FASTRELAY_FANOUT_H

enum {
	BPF_MAP_TYPE_HASH_OF_MAPS = 13,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_NOEXIST = 1,
	BPF_RB_NO_WAKEUP = 1 << 0,
	BPF_RB_FORCE_WAKEUP = 1 << 1,
	FR_EEXIST = -17,
};

static long (*bpf_clone_redirect)(struct __sk_buff *skb, __u32 ifindex, __u64 flags) = (void *)13;
static __u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static long (*bpf_ringbuf_output)(void *ring, void *data, __u64 size, __u64 flags) = (void *)130;
static void *(*bpf_ringbuf_reserve)(void *ring, __u64 size, __u64 flags) = (void *)131;
static void (*bpf_ringbuf_submit)(void *record, __u64 flags) = (void *)132;
static void (*bpf_ringbuf_discard)(void *record, __u64 flags) = (void *)133;
static long (*bpf_loop)(__u32 n, void *callback, void *ctx, __u64 flags) = (void *)181;

/*
 * The type of the values of a map of maps: a list of receivers. BTF has no more than the size of a
 * list.
 */
#define __array(name, val) typeof(val) *name[]
#define FR_LIST(list)                                                                              \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                  \
		__uint(max_entries, 1);                                                            \
		__uint(key_size, sizeof(__u32));                                                   \
		__uint(value_size, sizeof(list));                                                  \
	}

/* For loops with a fixed bound that usually end at once. */
#define FR_NO_UNROLL _Pragma("clang loop unroll(disable)")

/*
 * A number that the verifier takes for another one: what it learns about the copy, it doesn't
 * learn about v.
 */
static __always_inline __u64 fr_copy(__u64 v)
{
	__u64 zero = 0;

	barrier_var(zero);
	return v ^ zero;
}

#ifdef FR_NEEDS_RECEIVERS

/*
 * Receivers' turns. Each ends in one of these, and the loop goes on to the next one.
 */

struct fr_receiver {
	__u64 packets, bytes, declined, failed;
};

FR_ARRAY(fr_receivers, BPF_MAP_TYPE_PERCPU_ARRAY, 0, FR_NEEDS_RECEIVERS, struct fr_receiver);

/* The receiver gets no copy. */
static __noinline long fr_decline(__u32 receiver, __u32 len, __u32 reason)
{
	struct fr_receiver *r = bpf_map_lookup_elem(&fr_receivers, &receiver);

	if (likely(r))
		r->declined++;
	fr_count(reason, len);
	return 0;
}

/* The kernel has refused the copy. */
static __noinline long fr_refuse(__u32 receiver, __u32 len, __u32 reason)
{
	struct fr_receiver *r = bpf_map_lookup_elem(&fr_receivers, &receiver);

	if (likely(r))
		r->failed++;
	return fr_decline(receiver, len, reason);
}

static __always_inline void fr_copied(__u32 receiver, __u32 len)
{
	struct fr_receiver *r = bpf_map_lookup_elem(&fr_receivers, &receiver);

	if (likely(r)) {
		r->packets++;
		r->bytes += len;
	}
}

/* The copies of one packet, counted at once. */
static __always_inline void fr_count_copies(__u32 reason, __u64 copies, __u32 len)
{
	struct fr_reason *r = bpf_map_lookup_elem(&fr_reasons, &reason);

	if (likely(r)) {
		r->packets += copies;
		r->bytes += copies * len;
	}
}

#endif

#ifdef FR_NEEDS_FRONT

/*
 * The front of the packet as it came: what is read from it is here, since copies are made by
 * writing to the packet. A program at ingress isn't interrupted by another one, so that there is
 * one for each processor.
 */

struct fr_front {
	__u8 bytes[FR_NEEDS_FRONT];
	__u64 same[FR_NEEDS_SAME]; /* numbers that are the same for all copies */
};

FR_ARRAY(fr_front, BPF_MAP_TYPE_PERCPU_ARRAY, 0, 1, struct fr_front);

static __always_inline void *fr_save_front(struct __sk_buff *skb, __u32 len)
{
	__u32 zero = 0;
	struct fr_front *f = bpf_map_lookup_elem(&fr_front, &zero);

	return f && !bpf_skb_load_bytes(skb, 0, f->bytes, len) ? f->bytes : NULL;
}

/*
 * len bytes of the packet from off on, one at least, as they came; room is a power of two that
 * they fit.
 */
static __always_inline long fr_put_back(struct __sk_buff *skb, __u32 off, const void *from,
					__u32 len, __u32 room)
{
	return bpf_skb_store_bytes(skb, off, from, fr_size(len, room), 0);
}

/*
 * What a checksum of the packet is: the same for all copies, so that none has to ask. A partial
 * one holds the pseudo-header's sum; a full one may hold the same number by chance, and the kernel
 * tells: to a partial checksum it adds nothing but changes of the pseudo-header. It can't be asked
 * at odd offsets.
 */
enum {
	FR_SUM_FULL,
	FR_SUM_PARTIAL,
	FR_SUM_ABSENT,
	FR_SUM_ODD,  /* it seems to be partial, at an odd offset */
	FR_SUM_FAULT,
};

static __noinline __u32 fr_sum_kind(struct __sk_buff *skb, __u32 off, __u16 old, __u16 pseudo)
{
	void *p;

	if (fr_facts)
		return (__u16)fr_partial(skb) == off ? FR_SUM_PARTIAL : FR_SUM_FULL;
	/* the pseudo-header of a GSO packet may have another length */
	if (old != pseudo && !skb->gso_size)
		return FR_SUM_FULL;
	if (off & 1)
		return FR_SUM_ODD;
	if (bpf_l4_csum_replace(skb, off, 0, 1, 0))
		return FR_SUM_FAULT;
	p = fr_pin((void *)(long)skb->data + fr_bound(off, 0x7fff));
	if (p + 2 > (void *)(long)skb->data_end)
		return FR_SUM_FAULT;
	if (ld16(p) == old)
		return FR_SUM_PARTIAL;
	st16(p, old);
	return FR_SUM_FULL;
}

#endif

/* A QUIC variable-length integer of width bytes (RFC 9000, 16), as the upper bytes of 8; v fits. */
static __always_inline __u64 fr_varint_word(__u64 v, __u64 width)
{
	switch (fr_bound(width, 15)) {
	case 1:
		return v << 56;
	case 2:
		return (v | 1ULL << 14) << 48;
	case 4:
		return (v | 2ULL << 30) << 32;
	default:
		return v | 3ULL << 62;
	}
}

/*
 * Write the first width bytes of 8, which are in the order that they have in memory. The packet
 * had an integer of that width here.
 */
static __always_inline void fr_put_varint(void *p, const void *data_end, __u64 word, __u64 width)
{
	switch (fr_bound(width, 15)) {
	case 1:
		if (p + 1 <= data_end)
			st8(p, word);
		break;
	case 2:
		if (p + 2 <= data_end)
			st16(p, word);
		break;
	case 4:
		if (p + 4 <= data_end)
			st32(p, word);
		break;
	default:
		if (p + 8 <= data_end)
			st64(p, word);
	}
}

/* An integer of width bytes, 0 to 8, as the upper bytes of 8; it fits. */
static __always_inline __u64 fr_uint_word(__u64 v, __u64 width)
{
	return v << (32 - 4 * width) << (32 - 4 * width);
}

/* The first width bytes of an integer of 8. */
static __always_inline __u64 fr_first(__u64 v, __u64 width)
{
	return v >> (32 - 4 * width) >> (32 - 4 * width);
}

/*
 * Write an integer to the last width bytes of size (1, 2, 4 or 8) bytes at p; those in front of
 * them stay. The packet has all of them.
 */
static __always_inline void fr_put_uint(void *p, const void *data_end, __u32 size, __u64 v,
					__u64 width)
{
	__u64 all = fr_room(width), stays;

	if (p + size > data_end)
		return;
	stays = (size == 1 ? ld8(p) : size == 2 ? be16(p) : size == 4 ? be32(p) : be64(p)) & ~all;
	v = stays | (v & all);
	switch (size) {
	case 1:
		st8(p, v);
		break;
	case 2:
		st16(p, bpf_htons(v));
		break;
	case 4:
		st32(p, bpf_htonl(v));
		break;
	default:
		st64(p, bpf_cpu_to_be64(v));
	}
}

/*
 * Lists of elements, each with an identifier and a length in front, in one byte or in two. A form
 * is how that looks; pad and stop are identifiers, 256 where there is none.
 */
#ifdef FR_NEEDS_ELEMENTS

#define FR_FORM(bytes, bias, pad, stop)                                                            \
	((__u64)(bytes) | (bias) << 8 | (__u64)(pad) << 32 | (__u64)(stop) << 48)
#define FR_NO_FORM 0
#define FR_MAX_ELEMENTS 32

/* Whether two numbers differ. The verifier learns nothing about them from it. */
static __always_inline __u64 fr_differ(__u64 a, __u64 b)
{
	a ^= b;
	barrier_var(a);
	return a;
}

/*
 * The offset of the first element's content in the packet, in the upper half, and its length and 1;
 * 0 where there is none. The function isn't static, so that the verifier looks at it once, and not
 * anew for every list that it knows something about. Each step begins where it knows no more than
 * before the last one, so that it looks at a step once, too.
 */
__noinline __u64 fr_find_element(struct __sk_buff *skb, __u32 from, __u32 end, __u64 form, __u32 id)
{
	void *data = (void *)(long)skb->data, *data_end = (void *)(long)skb->data_end;
	__u32 bias = form >> 8 & 0xffffff, pad = form >> 32 & 0xffff, stop = form >> 48;
	__u64 at = from, narrow = (form & 1) << 2;
	int i;

	FR_NO_UNROLL
	for (i = 0; i < FR_MAX_ELEMENTS; i++) {
		__u64 left, this, head = 1 + (form >> 1 & 1), len;
		void *p;

		at = fr_bound(at, 0x7fff);
		p = fr_pin(data + at);
		left = end - at;
		if (left - 1 > 0x7fff || p + 1 > data_end)
			break;
		this = ld8(p) >> narrow;
		len = ld8(p) & 15;
		if (!fr_differ(this, pad)) {
			at++;
			continue;
		}
		if (!fr_differ(this, stop))
			break;
		if (fr_bound(form, 2)) {
			if (p + 2 > data_end)
				break;
			len = ld8(p + 1);
		}
		len += bias;
		if (head + len > left)
			break;
		if (!fr_differ(this, id))
			return (at + head) << 32 | (len + 1);
		at += head + len;
	}
	return 0;
}

/* Up to 8 bytes of the packet as a big-endian integer, zeros after them where there are fewer. */
static __noinline __u64 fr_leading(struct __sk_buff *skb, __u32 at, __u32 len)
{
	__u64 v = 0;

	if (len == 0 || bpf_skb_load_bytes(skb, at, &v, fr_size(len < 8 ? len : 8, 8)))
		return 0;
	return bpf_cpu_to_be64(v);
}

#endif

#ifdef FR_NEEDS_SHARED

/* Take a number from a shared counter; index 0 is no counter. */
static __always_inline __u64 fr_alloc(__u32 index, __u64 step)
{
	__u64 *v = bpf_map_lookup_elem(&fr_shared, &index);

	return index && v ? __sync_fetch_and_add(v, step) : 0;
}

#endif

#ifdef FR_NEEDS_CREDITS

/*
 * Credits. User space moves the limit; the kernel spends, and so may user space. Of a credit that
 * refills, limit is the rate, and spent a time.
 */

struct fr_credit {
	__u64 limit, spent, burst, refused[FR_LEVELS];
};

FR_ARRAY(fr_credits, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, FR_NEEDS_CREDITS, struct fr_credit);

#define FR_ADMIT_TRIES 16

enum {
	FR_REFUSED,
	FR_CONTENDED, /* others were faster every time */
	FR_ADMITTED,
};

/* A credit of a row; first is 0 where it has none. */
static __always_inline __u32 fr_credit(__u32 first, __u32 level)
{
	return first ? first + level : 0;
}

/*
 * These functions aren't static, so that the verifier looks at them once, whatever it knows about
 * their arguments.
 */

/* Spend cost of what is above the floor. */
__noinline int fr_admit(__u32 credit, __u64 cost, __u64 floor)
{
	struct fr_credit *c = bpf_map_lookup_elem(&fr_credits, &credit);
	__u64 limit;
	int i;

	if (!c || !credit)
		return FR_REFUSED;
	limit = *(volatile __u64 *)&c->limit;
	if (cost > limit || floor > limit - cost)
		return FR_REFUSED;
	limit -= cost + floor;
	FR_NO_UNROLL
	for (i = 0; i < FR_ADMIT_TRIES; i++) {
		__u64 spent = *(volatile __u64 *)&c->spent;

		if (spent > fr_copy(limit))
			return FR_REFUSED;
		if (likely(__sync_val_compare_and_swap(&c->spent, spent, spent + cost) == spent))
			return FR_ADMITTED;
	}
	return FR_CONTENDED;
}

/*
 * Whether a time is at most units / rate. Where a product tells, it takes a tenth of a division's
 * time.
 */
static __always_inline int fr_refills(__u64 time, __u64 rate, __u64 units)
{
	if (likely(!(fr_copy(time | rate) >> 32)))
		return time * rate <= fr_copy(units);
	return time <= units / rate;
}

/*
 * Likewise of a credit that refills. What is spent is time: the nanoseconds that it takes to
 * refill. They come back after FR_ADMITTED, for fr_refund.
 */
__noinline __u64 fr_admit_timed(__u32 credit, __u64 cost, __u64 floor, __u64 now)
{
	struct fr_credit *c = bpf_map_lookup_elem(&fr_credits, &credit);
	__u64 rate, burst, room, takes;
	int i;

	if (!c || !credit)
		return FR_REFUSED;
	rate = *(volatile __u64 *)&c->limit;
	burst = *(volatile __u64 *)&c->burst;
	if (!rate)
		return FR_REFUSED;
	if (burst > 0x1FFFFFFFF)
		burst = 0x1FFFFFFFF;
	takes = (cost < 0xFFFFFFFF ? cost : 0xFFFFFFFF) * 1000000000 / rate;
	room = burst > floor ? (burst - floor) * 1000000000 : 0;
	FR_NO_UNROLL
	for (i = 0; i < FR_ADMIT_TRIES; i++) {
		__u64 spent = *(volatile __u64 *)&c->spent, from = fr_copy(now);

		if (from < spent)
			from = spent;
		/* a time near the end of all time wraps */
		if (from + takes < from || !fr_refills(from - now + takes, rate, room))
			return FR_REFUSED;
		if (likely(__sync_val_compare_and_swap(&c->spent, spent, from + takes) == spent))
			return FR_ADMITTED + takes;
	}
	return FR_CONTENDED;
}

#ifdef FR_NEEDS_ASKED
/* What fr_admit would answer now. */
__noinline int fr_ask(__u32 credit, __u64 cost, __u64 floor)
{
	struct fr_credit *c = bpf_map_lookup_elem(&fr_credits, &credit);
	__u64 limit;

	if (!c || !credit)
		return FR_REFUSED;
	limit = *(volatile __u64 *)&c->limit;
	if (cost > limit || floor > limit - cost)
		return FR_REFUSED;
	return *(volatile __u64 *)&c->spent > limit - cost - floor ? FR_REFUSED : FR_ADMITTED;
}

/* Likewise fr_admit_timed; the time is left out. */
__noinline __u64 fr_ask_timed(__u32 credit, __u64 cost, __u64 floor, __u64 now)
{
	struct fr_credit *c = bpf_map_lookup_elem(&fr_credits, &credit);
	__u64 rate, burst, room, takes, from = now, spent;

	if (!c || !credit)
		return FR_REFUSED;
	rate = *(volatile __u64 *)&c->limit;
	burst = *(volatile __u64 *)&c->burst;
	spent = *(volatile __u64 *)&c->spent;
	if (!rate)
		return FR_REFUSED;
	if (burst > 0x1FFFFFFFF)
		burst = 0x1FFFFFFFF;
	takes = (cost < 0xFFFFFFFF ? cost : 0xFFFFFFFF) * 1000000000 / rate;
	room = burst > floor ? (burst - floor) * 1000000000 : 0;
	if (from < spent)
		from = spent;
	if (from + takes < from || !fr_refills(from - now + takes, rate, room))
		return FR_REFUSED;
	return FR_ADMITTED;
}
#endif

#ifdef FR_NEEDS_OVERDRAFT
/* Spend cost, whatever is left, and return it for fr_refund: 0 where there is no credit. */
__noinline __u64 fr_overdraw(__u32 credit, __u64 cost)
{
	struct fr_credit *c = bpf_map_lookup_elem(&fr_credits, &credit);

	if (!c || !credit)
		return 0;
	__sync_fetch_and_add(&c->spent, cost);
	return cost;
}

/* Likewise of a credit that refills; what fr_admit_timed returns. */
__noinline __u64 fr_overdraw_timed(__u32 credit, __u64 cost, __u64 now)
{
	struct fr_credit *c = bpf_map_lookup_elem(&fr_credits, &credit);
	__u64 rate, takes;
	int i;

	if (!c || !credit)
		return FR_ADMITTED;
	rate = *(volatile __u64 *)&c->limit;
	if (!rate)
		return FR_ADMITTED;
	takes = (cost < 0xFFFFFFFF ? cost : 0xFFFFFFFF) * 1000000000 / rate;
	FR_NO_UNROLL
	for (i = 0; i < FR_ADMIT_TRIES; i++) {
		__u64 spent = *(volatile __u64 *)&c->spent, from = fr_copy(now);

		if (from < spent)
			from = spent;
		if (from + takes < from)
			return FR_ADMITTED;
		if (likely(__sync_val_compare_and_swap(&c->spent, spent, from + takes) == spent))
			return FR_ADMITTED + takes;
	}
	/* others have just spent from it, so it isn't full, and time is only added */
	__sync_fetch_and_add(&c->spent, takes);
	return FR_ADMITTED + takes;
}
#endif

__noinline int fr_refund(__u32 credit, __u64 cost)
{
	struct fr_credit *c = bpf_map_lookup_elem(&fr_credits, &credit);

	if (c)
		__sync_fetch_and_add(&c->spent, -cost);
	return 0;
}

/* The packet is counted by its level, under the credit that refused it. */
__noinline int fr_refused(__u32 credit, __u32 level)
{
	struct fr_credit *c = bpf_map_lookup_elem(&fr_credits, &credit);

	if (c && credit && level < FR_LEVELS)
		__sync_fetch_and_add(&c->refused[level], 1);
	return 0;
}

#endif

#ifdef FR_NEEDS_TRANSLATIONS

/*
 * Translations. Whoever inserts the row makes the value; until it is there, others find a row that
 * isn't done. Rows are never replaced: a reader could find another key's value in the old one's
 * memory.
 */

struct fr_translation_key {
	__u64 key;
	__u32 space, pad;
};

struct fr_translation {
	__u64 value, done;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FR_NEEDS_TRANSLATIONS);
	__type(key, struct fr_translation_key);
	__type(value, struct fr_translation);
} fr_translate SEC(".maps");

enum {
	FR_TRANSLATED,
	FR_TRANSLATE, /* make the value */
	FR_TRANSLATING,
	FR_TRANSLATIONS_FULL,
};

static __noinline int fr_translation(const struct fr_translation_key *key,
				     struct fr_translation **row)
{
	struct fr_translation blank = {};
	struct fr_translation *t;
	__u64 done;
	long err;

	if (!key->space)
		return FR_TRANSLATIONS_FULL;
	t = bpf_map_lookup_elem(&fr_translate, key);
	if (likely(t)) {
		done = *(volatile __u64 *)&t->done;
		*row = (void *)t + fr_after(done);
		return done ? FR_TRANSLATED : FR_TRANSLATING;
	}
	err = bpf_map_update_elem(&fr_translate, key, &blank, BPF_NOEXIST);
	if (err)
		return err == FR_EEXIST ? FR_TRANSLATING : FR_TRANSLATIONS_FULL;
	t = bpf_map_lookup_elem(&fr_translate, key);
	*row = t;
	return t ? FR_TRANSLATE : FR_TRANSLATING; /* user space may have deleted it already */
}

static __always_inline void fr_translated(struct fr_translation *t, __u64 value)
{
	t->value = value;
	__sync_lock_test_and_set(&t->done, 1); /* an exchange, which is a barrier, too */
}

#endif

#ifdef FR_NEEDS_RING

/*
 * Events. To wake the reader costs more than twenty copies (an interrupt of this processor to
 * itself, which a virtual machine leaves for). It is woken where it has read all records before
 * this one, so one that is behind costs nothing; and never while entry 0 of fr_lost says that it
 * is awake.
 */

struct fr_event {
	__u64 time;
	__u32 receiver;
	__u16 id, size;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, FR_NEEDS_RING);
} fr_events SEC(".maps");

FR_ARRAY(fr_lost, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, FR_EVENTS, __u64);

#ifdef FR_NEEDS_DATA

/* The first room bytes of the len that the packet has from off on. Returns how many those are. */
static __always_inline __u64 fr_data(struct __sk_buff *skb, __u32 off, void *to, __u64 len,
				     __u64 room)
{
	if (!len--)
		return 0;
	barrier_var(len);
	if (len >= room)
		len = room - 1;
	return bpf_skb_load_bytes(skb, off, to, len + 1) ? 0 : len + 1;
}

#endif

#ifdef FR_COPIES

/*
 * Records of all copies of a packet that may be lost are put together here. What has to be reported
 * is in the ring from the beginning, with room for all receivers.
 */

struct fr_copies {
	__u8 bytes[FR_COPIES_SIZE];
};

FR_ARRAY(fr_copies, BPF_MAP_TYPE_PERCPU_ARRAY, 0, FR_COPIES, struct fr_copies);

static __always_inline void *fr_copies_at(__u32 index)
{
	return bpf_map_lookup_elem(&fr_copies, &index);
}

#endif

static __always_inline void fr_head(struct fr_event *e, __u32 receiver, __u16 id, __u16 size)
{
	e->receiver = receiver;
	e->id = id;
	e->size = size;
}

/*
 * The reader is awake, or will look once more before it sleeps. It says that it isn't awake any
 * more, and then looks whether the producer has moved on: so the reservation has to be seen by all
 * before this is read, which an atomic operation makes sure of.
 */
static __always_inline int fr_reader_awake(void)
{
	__u32 zero = 0;
	__u64 *awake = bpf_map_lookup_elem(&fr_lost, &zero);

	return awake && *(volatile __u64 *)awake && __sync_fetch_and_or(awake, 0);
}

static __always_inline void fr_submit(struct fr_event *e, __u64 time)
{
	e->time = time;
	bpf_ringbuf_submit(e, fr_reader_awake() ? BPF_RB_NO_WAKEUP : 0);
}

/*
 * Likewise where more follow: whether the reader fell asleep meanwhile is asked once, after the
 * last one. Returns whether that is necessary.
 */
static __always_inline __u64 fr_submit_more(struct fr_event *e, __u64 time)
{
	__u32 zero = 0;
	__u64 *awake = bpf_map_lookup_elem(&fr_lost, &zero);
	__u64 quiet = awake && *(volatile __u64 *)awake ? BPF_RB_NO_WAKEUP : 0;

	e->time = time;
	bpf_ringbuf_submit(e, quiet);
	return quiet;
}

/*
 * Wake a reader that fell asleep while records were handed over quietly; it skips what is
 * discarded.
 */
static __always_inline void fr_wake(void)
{
	void *bell;

	if (likely(fr_reader_awake()))
		return;
	bell = bpf_ringbuf_reserve(&fr_events, sizeof(__u64), 0);
	if (bell)
		bpf_ringbuf_discard(bell, BPF_RB_FORCE_WAKEUP);
}

/* There was no room for a record. */
static __always_inline void fr_lose(__u32 id)
{
	__u64 *lost = bpf_map_lookup_elem(&fr_lost, &id);

	if (likely(lost))
		__sync_fetch_and_add(lost, 1);
}

#ifdef FR_NEEDS_REPORTED

/* Likewise a record of all copies of a packet; if there were none, it is none. */
static __always_inline void fr_submit_copies(struct fr_event *e, __u64 time, __u64 size,
					     __u64 copies)
{
	e->time = time;
	e->size = size;
	if (copies)
		bpf_ringbuf_submit(e, fr_reader_awake() ? BPF_RB_NO_WAKEUP : 0);
	else
		bpf_ringbuf_discard(e, fr_reader_awake() ? BPF_RB_NO_WAKEUP : 0);
}

#endif

#ifdef FR_COPIES

/*
 * Likewise one that was put together outside of the ring, which has each bytes for each of room
 * copies at most. It is in the ring when bpf_ringbuf_output returns: so whether the reader fell
 * asleep is asked once more.
 */
static __always_inline void fr_output_copies(struct fr_event *e, __u64 time, __u64 off, __u64 each,
					     __u64 copies, __u64 room)
{
	__u64 quiet = fr_reader_awake() ? BPF_RB_NO_WAKEUP : 0;
	__u64 size;

	barrier_var(copies);
	if (!copies)
		return;
	if (copies > room)
		copies = room;
	size = off + each * copies;
	barrier_var(size); /* clang may have ORed them, of which the verifier knows too little */
	if (size > off + each * room)
		return;
	e->time = time;
	e->size = size;
	if (bpf_ringbuf_output(&fr_events, e, size, quiet))
		fr_lose(e->id);
	else if (quiet)
		fr_wake();
}

#endif

#endif

#endif
