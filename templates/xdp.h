
/*
 * Programs at XDP. They have the frame as the driver has it, before there is an skb. What they
 * don't take comes to the program at tc/ingress, untouched and not counted: XDP_PASS, if it doesn't
 * take that either, so the next program at XDP may; else FR_XDP_LEFT. The kernel reads the lower 32
 * bits of both, which are the same; who calls several programs in turn reads 64.
 */

#ifndef FASTRELAY_XDP_H
#define FASTRELAY_XDP_H

enum {
	BPF_MAP_TYPE_DEVMAP_HASH = 25,
};

enum {
	XDP_ABORTED,
	XDP_DROP,
	XDP_PASS,
	XDP_TX,
	XDP_REDIRECT,
};

#define FR_XDP_LEFT (1ULL << 32 | XDP_PASS)

struct xdp_md {
	__u32 data, data_end, data_meta;
	__u32 ingress_ifindex, rx_queue_index, egress_ifindex;
};

static long (*bpf_xdp_adjust_head)(struct xdp_md *xdp, int delta) = (void *)44;
static long (*bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)51;
static long (*bpf_xdp_adjust_tail)(struct xdp_md *xdp, int delta) = (void *)65;
static __u64 (*bpf_xdp_get_buff_len)(struct xdp_md *xdp) = (void *)188;
static long (*bpf_xdp_load_bytes)(struct xdp_md *xdp, __u32 off, void *to, __u32 len) = (void *)189;

/* A device that takes redirected frames, and no program there. */
struct fr_device {
	__u32 ifindex, program;
};

struct fr_mac {
	__u8 addr[6], pad[2];
};

/* Devices by index: those that frames may leave by, which user space keeps up to date. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, FR_DEVICES);
	__type(key, __u32);
	__type(value, struct fr_device);
} fr_devmap SEC(".maps");

/* Those that frames come in by: their link-layer addresses. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FR_DEVICES);
	__type(key, __u32);
	__type(value, struct fr_mac);
} fr_macs SEC(".maps");

/*
 * The tag that the device has taken out of the frame. Only a program that is bound to a device can
 * ask (Linux 6.8): else the loader writes an error in place of the call.
 */
extern int bpf_xdp_metadata_rx_vlan_tag(const struct xdp_md *xdp, __be16 *proto, __u16 *tci)
	__attribute__((weak, section(".ksyms")));

static __always_inline int fr_xdp_tagged(struct xdp_md *xdp)
{
	__be16 proto;
	__u16 tci;

	return bpf_xdp_metadata_rx_vlan_tag(xdp, &proto, &tci) == 0;
}

/* Whom the frame is addressed to, as eth_type_trans finds it; an unknown device has no address. */
static __always_inline __u32 fr_xdp_link_type(struct xdp_md *xdp, const void *frame,
					      const void *data_end)
{
	__u32 index = xdp->ingress_ifindex;
	const struct fr_mac *mac;

	if (frame + 6 > data_end)
		return PACKET_OTHERHOST;
	if (ld8(frame) & 1)
		return ld32(frame) == ~0U && ld16(frame + 4) == 0xFFFF ? PACKET_BROADCAST :
									 PACKET_MULTICAST;
	mac = bpf_map_lookup_elem(&fr_macs, &index);
	if (mac && ld32(frame) == ld32(mac->addr) && ld16(frame + 4) == ld16(mac->addr + 4))
		return PACKET_HOST;
	return PACKET_OTHERHOST;
}

/* An offset of which the verifier is to forget what it knows, as fr_forget has it. */
static __always_inline __u64 fr_xdp_forget(const struct xdp_md *xdp, __u64 off)
{
	off += xdp->rx_queue_index >> 20;
	barrier_var(off);
	return off & 0xFFF;
}

/*
 * A packet of len bytes, network header included, can leave through a hop as a frame. That is where
 * it goes if the program returns XDP_REDIRECT in the end; else the kernel doesn't ask.
 */
static __always_inline int fr_xdp_fits(const struct fr_hop *hop, __u64 len)
{
	return hop->state == FR_HOP_DIRECT && len <= hop->mtu &&
	       bpf_redirect_map(&fr_devmap, hop->ifindex, XDP_ABORTED) == XDP_REDIRECT;
}

/*
 * Why a packet of len bytes can't leave through a hop as a frame: the device takes none, or one of
 * the reasons that fr_barred has in their order. A hop that was looked up has compared the length.
 */
static __always_inline __u32 fr_xdp_unfit(const struct fr_hop *hop, __u64 len, __u32 no_frames,
					  __u32 too_big)
{
	if (fr_usable(hop) && len > hop->mtu)
		return too_big;
	return hop->state == FR_HOP_DIRECT ? no_frames : fr_indirect(hop, too_big + 1);
}

static __always_inline __u32 fr_xdp_unrouted(const struct fr_hop *hop, __u32 no_frames,
					     __u32 not_forwarded, __u32 unreachable)
{
	if (hop->state == FR_HOP_DIRECT)
		return no_frames;
	if (hop->state == FR_HOP_NEIGHBOUR)
		return unreachable + 6;
	return fr_unrouted(hop, not_forwarded, unreachable);
}

/* The packet passes to the next program and to the stack, as it came; len is its length. */
static __noinline __u64 fr_xdp_punt(__u32 len, __u32 reason)
{
	fr_count(reason, len);
	return XDP_PASS;
}

/* The packet is dropped; len is the length that it came with. */
static __noinline __u64 fr_xdp_drop(__u32 len, __u32 reason)
{
	fr_count(reason, len);
	return XDP_DROP;
}

/*
 * Room: the frame, of len bytes, begins earlier or later, and ends with the payload. Then data is
 * the packet that leaves, whose headers are in bounds.
 */
static __always_inline int fr_xdp_resize(struct xdp_md *xdp, __u32 len, __u32 from, __u32 to,
					 __u32 payload, void **data)
{
	__u32 size = to + payload;
	int failed = FR_UNCHANGED;

	if (from != to) {
		if (bpf_xdp_adjust_head(xdp, (int)from - (int)to))
			return failed;
		failed = FR_BROKEN;
	}
	len = len - from + to;
	if (unlikely(len > size) && bpf_xdp_adjust_tail(xdp, (int)size - (int)len))
		return failed;
	*data = (void *)(long)xdp->data;
	if (unlikely(*data + to > (void *)(long)xdp->data_end))
		return FR_BROKEN;
	return 0;
}

/* The sum of len bytes of the packet from off on (at most 64), as fr_sum64 has it. */
__noinline __u32 fr_xdp_sum64(struct xdp_md *xdp, __u32 off, __u32 len)
{
	__u32 chunk[8] = {}, sum = 0;

	if (len == 0 || len > 2 * sizeof(chunk))
		return 0;
	if (len > sizeof(chunk)) {
		if (bpf_xdp_load_bytes(xdp, off, chunk, sizeof(chunk)))
			return 0;
		sum = bpf_csum_diff(NULL, 0, chunk, sizeof(chunk), 0);
		__builtin_memset(chunk, 0, sizeof(chunk));
		off += sizeof(chunk);
		len -= sizeof(chunk);
	}
	if (bpf_xdp_load_bytes(xdp, off, chunk, fr_size(len, sizeof(chunk))))
		return 0;
	return bpf_csum_diff(NULL, 0, chunk, sizeof(chunk), sum);
}

static __always_inline __u64 fr_xdp_sum_cut64(struct xdp_md *xdp, __u64 from, __u64 end, int odd)
{
	__u64 sum = 0;

	if (unlikely(end > from)) {
		sum = fr_xdp_sum64(xdp, from, end - from);
		if (odd)
			sum <<= 8;
	}
	return sum;
}

#endif
