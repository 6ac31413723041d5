
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
