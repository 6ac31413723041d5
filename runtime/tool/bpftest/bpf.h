// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What the test programs need of the kernel's user interface (include/uapi/linux) and of its helpers. It precedes their own
 * text, and nothing is included: neither linux-libc-dev nor libbpf-dev has to be installed.
 */
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;

#define SEC(name) __attribute__((section(name), used))
#define __always_inline inline __attribute__((always_inline, unused))

#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name
#define __array(name, val) typeof(val) *name[]

#define bpf_htons(x) ((__u16)__builtin_bswap16((__u16)(x)))
#define bpf_ntohs(x) bpf_htons(x)

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LPM_TRIE = 11,
	BPF_MAP_TYPE_HASH_OF_MAPS = 13,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1 << 0,
	BPF_F_MMAPABLE = 1 << 10,
	BPF_RB_NO_WAKEUP = 1,
};

enum { TC_ACT_UNSPEC = -1, TC_ACT_SHOT = 2 };

enum { ETH_P_IP = 0x0800 };

struct __sk_buff {
	__u32 len, pkt_type, mark, queue_mapping, protocol;
	__u32 vlan_present, vlan_tci, vlan_proto;
	__u32 priority, ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid;
	__u32 data, data_end;
};

struct ethhdr {
	__u8 h_dest[6], h_source[6];
	__u16 h_proto;
};

struct iphdr {
	__u8 version_ihl, tos;
	__u16 tot_len, id, frag_off;
	__u8 ttl, protocol;
	__u16 check;
	__u32 saddr, daddr;
};

struct udphdr {
	__u16 source, dest, len, check;
};

#define HELPER(id, type, name, ...) static type (*const name)(__VA_ARGS__) __attribute__((unused)) = (void *)id
HELPER(1, void *, bpf_map_lookup_elem, void *map, const void *key);
HELPER(2, long, bpf_map_update_elem, void *map, const void *key, const void *value, __u64 flags);
HELPER(5, __u64, bpf_ktime_get_ns, void);
HELPER(23, long, bpf_redirect, __u32 ifindex, __u64 flags);
HELPER(26, long, bpf_skb_load_bytes, const void *skb, __u32 off, void *to, __u32 len);
HELPER(118, __u64, bpf_jiffies64, void);
HELPER(120, long, bpf_get_ns_current_pid_tgid, __u64 dev, __u64 ino, void *info, __u32 size);
HELPER(131, void *, bpf_ringbuf_reserve, void *ring, __u64 size, __u64 flags);
HELPER(132, void, bpf_ringbuf_submit, void *data, __u64 flags);
HELPER(181, long, bpf_loop, __u32 n, void *f, void *ctx, __u64 flags);
