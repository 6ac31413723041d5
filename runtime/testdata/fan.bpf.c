// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A small relay written by hand, for the tests of what sends to many: it walks a group's list as a generated one does, and reports
// of each copy in an event instead of sending it. It includes nothing: bpf.h of tool/bpftest is prepended.
#define GROUPS 4
#define MAX 64
#define ROWS 128
#define QUOTAS 4
#define LEVELS 2
#ifndef RING
#define RING 65536
#endif

struct endpoint { __u8 addr[16]; __u16 port; };
struct hop { __u32 ifindex; __u16 mtu; __u8 state, pad, dst[6], src[6]; };
struct lease { __u64 deadline, now, changes, storing, policy; };
struct count { __u64 packets, bytes; };
struct list { __u32 count, rows[MAX]; };
struct row { struct endpoint local, remote; struct hop hop; __u32 value, skipped, credit, rate, ids, receiver; };
struct usage { __u64 packets, bytes, declined, failed; };
struct credit { __u64 limit, spent, burst, refused[LEVELS]; };
struct translation_key { __u64 key; __u32 space, pad; };
struct translation { __u64 value, done; };
struct event { __u64 time; __u32 receiver; __u16 id, size; };
struct sent { struct event head; __u64 packet, number; __u32 value, of; };

#define ARRAY(n, t, v, e, f) struct { __uint(type, t); __uint(map_flags, f); __uint(max_entries, e); __type(key, __u32); __type(value, v); } n SEC(".maps")

ARRAY(fr_lease, BPF_MAP_TYPE_ARRAY, struct lease, 1, BPF_F_MMAPABLE);
ARRAY(fr_reasons, BPF_MAP_TYPE_PERCPU_ARRAY, struct count, 3, 0);
ARRAY(fr_shared, BPF_MAP_TYPE_ARRAY, __u64, ROWS + QUOTAS + 1, BPF_F_MMAPABLE);
ARRAY(fr_receivers, BPF_MAP_TYPE_PERCPU_ARRAY, struct usage, ROWS + 1, 0);
ARRAY(fr_credits, BPF_MAP_TYPE_ARRAY, struct credit, (ROWS + QUOTAS) * (LEVELS + 1) + 1, BPF_F_MMAPABLE);
ARRAY(fr_lost, BPF_MAP_TYPE_ARRAY, __u64, 3, BPF_F_MMAPABLE);
ARRAY(rcv_subs, BPF_MAP_TYPE_ARRAY, struct row, ROWS + MAX, 0);
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 1024); __type(key, struct translation_key); __type(value, struct translation); } fr_translate SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, QUOTAS); __uint(key_size, 4); __uint(value_size, 16); } tbl_quota SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, RING); } fr_events SEC(".maps");
struct inner { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __uint(key_size, 4); __uint(value_size, sizeof(struct list)); };
struct { __uint(type, BPF_MAP_TYPE_HASH_OF_MAPS); __uint(max_entries, GROUPS); __type(key, __u32); __array(values, struct inner); } grp_subs SEC(".maps");

// Which numbers were allocated, one bit each; the first WORDS * 64.
#define WORDS 65536
ARRAY(allocated, BPF_MAP_TYPE_ARRAY, __u64, WORDS, BPF_F_MMAPABLE);

__u64 packets; // how many came
__u64 twice;   // numbers that were allocated before

enum { fanned, no_group, ring_full };

static __always_inline int reason(struct __sk_buff *skb, __u32 i)
{
	struct count *c = bpf_map_lookup_elem(&fr_reasons, &i);

	if (c) {
		c->packets++;
		c->bytes += skb->len;
	}
	return TC_ACT_UNSPEC;
}

static __always_inline void submit(struct event *e)
{
	__u32 zero = 0;
	__u64 *awake = bpf_map_lookup_elem(&fr_lost, &zero);

	e->time = bpf_ktime_get_ns();
	bpf_ringbuf_submit(e, awake && *(volatile __u64 *)awake && __sync_fetch_and_or(awake, 0) ? BPF_RB_NO_WAKEUP : 0);
}

SEC("tc") int fr_clock(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct lease *l = bpf_map_lookup_elem(&fr_lease, &zero);
	if (l)
		l->now = bpf_jiffies64();
	return 0;
}

struct turn { struct list *list; __u64 packet; __u32 level, len; };

static long each(__u32 i, struct turn *t)
{
	struct usage *u;
	struct sent *e;
	struct row *r;
	__u64 *n;

	if (i >= MAX)
		return 1;
	r = bpf_map_lookup_elem(&rcv_subs, &t->list->rows[i]);
	if (!r)
		return 1;
	u = bpf_map_lookup_elem(&fr_receivers, &r->receiver);
	if (!u)
		return 1;
	if (r->hop.state != 1) {
		u->declined++;
		return 0;
	}
	e = bpf_ringbuf_reserve(&fr_events, sizeof *e, 0);
	if (!e) {
		__u32 id = 1;
		if ((n = bpf_map_lookup_elem(&fr_lost, &id)))
			__sync_fetch_and_add(n, 1);
		return 0;
	}
	n = bpf_map_lookup_elem(&fr_shared, &r->skipped);
	e->head.receiver = r->receiver;
	e->head.id = 1;
	e->head.size = sizeof *e;
	e->packet = t->packet;
	e->number = n && r->skipped ? __sync_fetch_and_add(n, 1) : 0;
	e->value = r->value;
	e->of = t->list->count;
	u->packets++;
	u->bytes += t->len;
	submit(&e->head);
	return 0;
}

// A packet is 14 bytes that are not read, then the key of its group.
SEC("tc") int prog_fan(struct __sk_buff *skb)
{
	struct turn t = { .len = skb->len };
	void *inner;
	__u32 key, zero = 0;

	if (bpf_skb_load_bytes(skb, 14, &key, 4))
		return TC_ACT_UNSPEC;
	inner = bpf_map_lookup_elem(&grp_subs, &key);
	if (!inner)
		return reason(skb, no_group);
	t.list = bpf_map_lookup_elem(inner, &zero);
	if (!t.list)
		return TC_ACT_UNSPEC;
	t.packet = __sync_fetch_and_add(&packets, 1);
	bpf_loop(t.list->count, each, &t, 0);
	return reason(skb, fanned);
}

// Allocates a number and marks it, and spends a unit, of the receiver whose row is named.
SEC("tc") int prog_alloc(struct __sk_buff *skb)
{
	__u64 *n, *word, number, bit, spent, limit;
	struct credit *c;
	struct row *r;
	__u32 at;
	int i;

	if (bpf_skb_load_bytes(skb, 14, &at, 4))
		return 0;
	r = bpf_map_lookup_elem(&rcv_subs, &at);
	if (!r)
		return 0;
	n = bpf_map_lookup_elem(&fr_shared, &r->skipped);
	if (!n)
		return 0;
	number = __sync_fetch_and_add(n, 1);
	bit = 1ULL << (number & 63);
	at = number >> 6;
	word = bpf_map_lookup_elem(&allocated, &at);
	if (word && __sync_fetch_and_or(word, bit) & bit)
		__sync_fetch_and_add(&twice, 1);
	c = bpf_map_lookup_elem(&fr_credits, &r->credit);
	if (!c)
		return 0;
	limit = c->limit;
	for (i = 0; i < 16; i++) {
		spent = *(volatile __u64 *)&c->spent;
		if (spent >= limit) {
			__sync_fetch_and_add(&c->refused[1], 1);
			return 0;
		}
		if (__sync_val_compare_and_swap(&c->spent, spent, spent + 1) == spent)
			return 1;
	}
	return 2;
}

// Translates 8 bytes of the packet for the receiver whose row is named; the value is twice the key.
SEC("tc") int prog_translate(struct __sk_buff *skb)
{
	struct translation_key key = {};
	struct translation fresh = {}, *t;
	struct event *e;
	struct row *r;
	__u32 at;

	bpf_map_lookup_elem(&tbl_quota, &key);
	if (bpf_skb_load_bytes(skb, 14, &at, 4) || bpf_skb_load_bytes(skb, 18, &key.key, 8))
		return 0;
	r = bpf_map_lookup_elem(&rcv_subs, &at);
	if (!r)
		return 0;
	key.space = r->ids;
	if (bpf_map_update_elem(&fr_translate, &key, &fresh, BPF_NOEXIST))
		return 1;
	t = bpf_map_lookup_elem(&fr_translate, &key);
	if (!t)
		return 2;
	t->value = 2 * key.key;
	__sync_fetch_and_or(&t->done, 1);
	e = bpf_ringbuf_reserve(&fr_events, sizeof *e, 0);
	if (!e)
		return reason(skb, ring_full);
	e->receiver = 0;
	e->id = 2;
	e->size = sizeof *e;
	submit(e);
	return 3;
}

char _license[] SEC("license") = "GPL";
