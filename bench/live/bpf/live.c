// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Both ends of a measurement with live frames. Numbers are those of the kernel's user interface
 * (linux/bpf.h).
 *
 * The source is what BPF_PROG_TEST_RUN runs. The kernel hands it the same few frames again and
 * again, as they were left: so it writes the first bytes of each anew, before the program at XDP
 * or the stack gets it. It does so alike for both.
 */

typedef unsigned char __u8;
typedef unsigned int __u32;
typedef unsigned long long __u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

enum { XDP_ABORTED, XDP_DROP, XDP_PASS };
enum { BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PROG_ARRAY = 3, BPF_MAP_TYPE_PERCPU_ARRAY = 6 };
enum { BPF_MAP_TYPE_DEVMAP = 14 };

/*
 * FRONT: all headers that a relay reads or writes, and no more than the shortest frame has.
 * FRONTS: or as many as user space says.
 */
enum { FRONT = 80, FRONTS = 4096, KEPT = 64, LARGEST = 2048 };

struct xdp_md {
	__u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static __u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static long (*bpf_tail_call)(void *ctx, void *map, __u32 index) = (void *)12;
static long (*bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)51;
static long (*bpf_loop)(__u32 n, void *fn, void *ctx, __u64 flags) = (void *)181;
static __u64 (*bpf_xdp_get_buff_len)(struct xdp_md *xdp) = (void *)188;
static long (*bpf_xdp_load_bytes)(struct xdp_md *xdp, __u32 off, void *to, __u32 len) = (void *)189;

struct front {
	__u64 words[FRONT / 8];
};

/* What a run is told, and what it says. Source and sink run on one processor. */
struct state {
	__u64 made; /* frames, from where a run begins with its turns */
	__u32 mask; /* frames take turns: mask + 1 fronts */
	__u32 size; /* of the frames that count at the far end: others are the stack's own */
	__u32 keep; /* so many more frames are kept at the far end */
	__u32 kept;
	/* Of to_port, in ns: between two frames, 0: at once; when the next one, the first and the last are sent */
	__u64 interval, due, first, last;
};

struct count {
	__u64 frames, bytes;
};

struct frame {
	__u32 size;
	__u8 bytes[LARGEST];
};

struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*max_entries)[1];
	__u32 *key;
	struct state *value;
} states SEC(".maps");

struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*max_entries)[FRONTS];
	__u32 *key;
	struct front *value;
} fronts SEC(".maps");

/* The program at XDP that gets the frames. */
struct {
	int (*type)[BPF_MAP_TYPE_PROG_ARRAY];
	int (*max_entries)[1];
	__u32 *key;
	__u32 *value;
} next SEC(".maps");

/* The port that frames leave by. */
struct {
	int (*type)[BPF_MAP_TYPE_DEVMAP];
	int (*max_entries)[1];
	__u32 *key;
	__u32 *value;
} port SEC(".maps");

struct {
	int (*type)[BPF_MAP_TYPE_PERCPU_ARRAY];
	int (*max_entries)[1];
	__u32 *key;
	struct count *value;
} arrived SEC(".maps");

struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*max_entries)[KEPT];
	__u32 *key;
	struct frame *value;
} kept SEC(".maps");

/* Makes a frame: 0 if there is none. */
INLINE int make(struct xdp_md *xdp)
{
	struct front *to = (void *)(long)xdp->data;
	const struct front *front;
	struct state *state;
	__u32 at = 0;

	state = bpf_map_lookup_elem(&states, &at);
	if (!state || (void *)(to + 1) > (void *)(long)xdp->data_end)
		return 0;
	at = state->made & state->mask;
	front = bpf_map_lookup_elem(&fronts, &at);
	if (!front)
		return 0;
	state->made++;
#pragma unroll
	for (int i = 0; i < FRONT / 8; i++)
		to->words[i] = front->words[i];
	return 1;
}

SEC("xdp.frags") int to_xdp(struct xdp_md *xdp)
{
	if (make(xdp))
		bpf_tail_call(xdp, &next, 0);
	return XDP_ABORTED;
}

SEC("xdp.frags") int to_stack(struct xdp_md *xdp)
{
	return make(xdp) ? XDP_PASS : XDP_ABORTED;
}

/* The source alone. */
SEC("xdp.frags") int to_nothing(struct xdp_md *xdp)
{
	return make(xdp) ? XDP_DROP : XDP_ABORTED;
}

/* LATE: a source that was held up for longer doesn't make up for it. LONGEST: as bpf_loop takes it. */
enum { LATE = 50000, LONGEST = 1 << 20 };

static long is_due(__u32 i, __u64 *due)
{
	return bpf_ktime_get_ns() >= *due;
}

/* Sends frames to a port, at a rate. */
SEC("xdp.frags") int to_port(struct xdp_md *xdp)
{
	__u32 zero = 0;
	__u64 now = bpf_ktime_get_ns(), due;
	struct state *state = bpf_map_lookup_elem(&states, &zero);

	if (!state)
		return XDP_ABORTED;
	if (state->interval) {
		due = state->due;
		if (now < due) {
			bpf_loop(LONGEST, is_due, &due, 0);
			now = due;
		} else if (now - due > LATE) {
			due = now;
		}
		state->due = due + state->interval;
	}
	if (!state->first)
		state->first = now;
	state->last = now;
	return make(xdp) ? bpf_redirect_map(&port, 0, XDP_ABORTED) : XDP_ABORTED;
}

/* Copies a frame to where user space compares it. */
static __attribute__((noinline)) int keep(struct xdp_md *xdp, struct state *state, __u32 size)
{
	struct frame *frame;
	__u32 at;

	if (!state)
		return 0;
	at = state->kept;
	frame = bpf_map_lookup_elem(&kept, &at);
	if (!frame || !size || size > LARGEST)
		return 0;
	if (bpf_xdp_load_bytes(xdp, 0, frame->bytes, size))
		return 0;
	frame->size = size;
	state->keep--;
	state->kept++;
	return 0;
}

/* The far end. */
SEC("xdp.frags") int sink(struct xdp_md *xdp)
{
	__u32 zero = 0, size = bpf_xdp_get_buff_len(xdp);
	struct state *state = bpf_map_lookup_elem(&states, &zero);
	struct count *count = bpf_map_lookup_elem(&arrived, &zero);

	if (!state || !count || size != state->size)
		return XDP_PASS;
	count->frames++;
	count->bytes += size;
	if (state->keep)
		keep(xdp, state, size);
	return XDP_DROP;
}

char live_license[] SEC("license") = "Dual BSD/GPL";
