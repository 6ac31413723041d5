// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The programs that the one-to-many bench needs beside what it measures: the bare clone, which is the limit; what counts
 * and times the copies; and a counter of system calls. Numbers are those of the kernel's user interface (linux/bpf.h,
 * linux/pkt_cls.h).
 */

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;

#define SEC(name) __attribute__((section(name), used))
#define bpf_htons(x) ((__u16)__builtin_bswap16((__u16)(x)))

enum { TC_ACT_UNSPEC = -1, TC_ACT_SHOT = 2 };
enum { ETH_P_IP = 0x0800, IPPROTO_UDP = 17 };

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

static __u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static long (*bpf_clone_redirect)(struct __sk_buff *skb, __u32 ifindex, __u64 flags) = (void *)13;
static __u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*bpf_skb_load_bytes)(const void *skb, __u32 off, void *to, __u32 len) = (void *)26;
static long (*bpf_loop)(__u32 n, void *callback, void *ctx, __u64 flags) = (void *)181;

/* An Ethernet, an IPv4 header without options, and a UDP header. */
struct headers {
	__u8 macs[12];
	__u16 type;
	__u8 version_ihl, tos;
	__u16 total, id, fragment;
	__u8 ttl, protocol;
	__u16 check;
	__u8 src[4], dst[4];
	__u16 src_port, dst_port, udp_length, udp_check;
} __attribute__((packed));

static struct headers *udp_of(struct __sk_buff *skb)
{
	struct headers *h = (void *)(long)skb->data;

	if ((void *)(h + 1) > (void *)(long)skb->data_end)
		return 0;
	if (h->type != bpf_htons(ETH_P_IP) || h->version_ihl != 0x45 || h->protocol != IPPROTO_UDP)
		return 0;
	return h;
}

/*
 * The bare clone: as many copies as there are receivers, all alike. Only the link-layer addresses are written, once, so
 * that the receivers' host takes the copies for its own.
 */
const volatile __u32 bare_copies;
const volatile __u32 bare_ifindex;
const volatile __u16 bare_port;
const volatile __u8 bare_macs[12];
__u64 bare_failed;

static long copy(__u32 i, struct __sk_buff **skb)
{
	if (bpf_clone_redirect(*skb, bare_ifindex, 0))
		__sync_fetch_and_add(&bare_failed, 1);
	return 0;
}

SEC("tc") int bare(struct __sk_buff *skb)
{
	struct headers *h = udp_of(skb);

	if (!h || h->dst_port != bpf_htons(bare_port))
		return TC_ACT_UNSPEC;
	for (int i = 0; i < 12; i++)
		h->macs[i] = bare_macs[i];
	bpf_loop(bare_copies, copy, &skb, 0);
	return TC_ACT_SHOT;
}

/*
 * The sink drops all that a device receives, and counts datagrams by destination port, those of a GSO packet one by one.
 */
#define PORTS 1024

const volatile __u16 sink_port; /* the first that is counted by itself */
__u64 sink_counts[PORTS + 1]; /* the last: all other ports */

SEC("tc") int sink(struct __sk_buff *skb)
{
	struct headers *h = udp_of(skb);
	__u32 i;

	if (!h)
		return TC_ACT_SHOT;
	i = (__u16)(bpf_htons(h->dst_port) - sink_port);
	if (i > PORTS)
		i = PORTS;
	__sync_fetch_and_add(&sink_counts[i], skb->gso_size ? skb->gso_segs : 1);
	return TC_ACT_SHOT;
}

/*
 * How long each datagram that leaves through a device was on its way so far, from a time stamp (CLOCK_MONOTONIC, nanoseconds)
 * in its payload.
 */
#define DELAYS (1 << 18)

const volatile __u32 delay_stamp; /* where the time stamp is in the payload */
__u32 delay_values[DELAYS];
__u64 delay_count; /* of delays, whether there was room for them or not */

SEC("tc") int delays(struct __sk_buff *skb)
{
	__u64 now = bpf_ktime_get_ns(), stamp, i;

	if (!udp_of(skb) || bpf_skb_load_bytes(skb, sizeof(struct headers) + delay_stamp, &stamp, sizeof(stamp)))
		return TC_ACT_UNSPEC;
	i = __sync_fetch_and_add(&delay_count, 1);
	if (i < DELAYS)
		delay_values[i] = now - stamp;
	return TC_ACT_UNSPEC;
}

/* System calls of one process. */
__u32 calls_process;
__u64 calls;

SEC("raw_tp/sys_enter") int system_calls(void *ctx)
{
	if (bpf_get_current_pid_tgid() >> 32 == calls_process)
		__sync_fetch_and_add(&calls, 1);
	return 0;
}

char bench_license[] SEC("license") = "GPL";
