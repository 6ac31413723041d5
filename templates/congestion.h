
/*
 * Congestion control of TCP (struct tcp_congestion_ops). The kernel calls a function for each event
 * of a socket. What it knows of the socket becomes a record, on which the relay's programs run as
 * others do on a packet; they write their decisions into it. What they leave at 0 is decided by
 * Reno's rules (RFC 5681), with proportional rate reduction (RFC 6937).
 *
 * The kernel's structures are declared as far as they are used; where their members are is filled
 * in when the relay is loaded (preserve_access_index).
 */
#ifndef FASTRELAY_CONGESTION_H
#define FASTRELAY_CONGESTION_H

#define __kernel_type __attribute__((preserve_access_index))

struct in6_addr___fr {
	__u8 bytes[16];
};

struct sock_common___fr {
	__u16 skc_family, skc_num;
	__be16 skc_dport;
	__be32 skc_daddr, skc_rcv_saddr;
	struct in6_addr___fr skc_v6_daddr, skc_v6_rcv_saddr;
} __kernel_type;

struct sock___fr {
	struct sock_common___fr __sk_common;
	unsigned long sk_pacing_rate, sk_max_pacing_rate;
	__u32 sk_pacing_status;
} __kernel_type;

struct inet_connection_sock___fr {
	__u8 icsk_ca_state : 5;
	__u64 icsk_ca_priv[13];
} __kernel_type;

struct minmax_sample___fr {
	__u32 v;
} __kernel_type;

struct minmax___fr {
	struct minmax_sample___fr s[3];
} __kernel_type;

struct tcp_rack___fr {
	__u32 rtt_us;
} __kernel_type;

struct tcp_sock___fr {
	struct inet_connection_sock___fr inet_conn;
	__u64 tcp_mstamp;
	__u32 snd_una, snd_nxt, snd_cwnd, snd_cwnd_cnt, snd_cwnd_clamp, snd_ssthresh;
	__u32 packets_out, sacked_out, lost_out, retrans_out, max_packets_out;
	__u32 delivered, lost, rate_delivered, rate_interval_us;
	__u32 srtt_us, mss_cache, prior_cwnd, prr_out;
	struct minmax___fr rtt_min;
	struct tcp_rack___fr rack;
	__u8 is_cwnd_limited : 1;
} __kernel_type;

/* A member that is a field of bits. */
#define FR_BITS(p, member)                                                                         \
	({                                                                                         \
		const void *at = (const void *)(p) +                                               \
				 __builtin_preserve_field_info((p)->member, FR_BYTE_OFFSET);       \
		__u64 v = 0;                                                                       \
												   \
		switch (__builtin_preserve_field_info((p)->member, FR_BYTE_SIZE)) {                \
		case 1:                                                                            \
			v = *(const __u8 *)at;                                                     \
			break;                                                                     \
		case 2:                                                                            \
			v = *(const __u16 *)at;                                                    \
			break;                                                                     \
		case 4:                                                                            \
			v = *(const __u32 *)at;                                                    \
			break;                                                                     \
		case 8:                                                                            \
			v = *(const __u64 *)at;                                                    \
			break;                                                                     \
		}                                                                                  \
		v <<= __builtin_preserve_field_info((p)->member, FR_LSHIFT_U64);                   \
		v >> __builtin_preserve_field_info((p)->member, FR_RSHIFT_U64);                    \
	})

enum { /* include/linux/bpf, kinds of relocations */
	FR_BYTE_OFFSET = 0,
	FR_BYTE_SIZE = 1,
	FR_LSHIFT_U64 = 4,
	FR_RSHIFT_U64 = 5,
};

enum { /* enum tcp_ca_state */
	FR_CA_CWR = 2,
	FR_CA_RECOVERY = 3,
};

enum {
	FR_EVENT_INIT = 1,
	FR_EVENT_ACK,
	FR_EVENT_LOSS,
	FR_EVENT_RELEASE,
};

enum {
	FR_PACING_NEEDED = 1, /* SK_PACING_NEEDED: TCP itself spaces packets */
	FR_INFINITE = 0x7fffffff, /* TCP_INFINITE_SSTHRESH */
};

static __u32 (*bpf_get_prandom_u32)(void) = (void *)7;

/* The record: spec/std/socket.cue. */
struct fr_socket {
	__u8 event, state, limited, reserved;
	__u32 ssthresh;
	__u64 id;
	__u8 local_addr[16], remote_addr[16];
	__u16 local_port, remote_port;
	__u32 cwnd;
	__u64 pacing, rate;
	__u32 in_flight, srtt, min_rtt, rtt;
	__u32 delivered, lost, losses, round;
	__u32 mss, acked;
	/* What happened. Decisions are those of the first three. */
	union {
		struct {
			__u32 cwnd;
			__u8 begin, over;
			__u16 reserved;
			__u64 pacing;
			__u32 acked, lost, min_rtt, time;
		} ack; /* init has the first members of it */
		struct {
			__u32 ssthresh, more[7];
		} loss;
	};
};

_Static_assert(sizeof(struct fr_socket) == 144, "the record of a socket");

/* What a flow keeps between events, in the memory that the socket has for this purpose. */
struct fr_flow {
	__u64 id; /* 0: the flow has not begun, as at the acknowledgement of its SYN */
	__u32 round, losses;
	__u32 began, end;		   /* the round: microseconds, and snd_nxt, then */
	__u32 round_delivered, round_lost; /* the sums then */
	__u32 min_rtt;			  /* since then */
	__u32 delivered, lost;		  /* at the last acknowledgement */
	__u32 prr_delivered;		  /* since the window began to be reduced */
	__u32 state;			  /* at the last acknowledgement */
};

_Static_assert(sizeof(struct fr_flow) <= 13 * 8, "icsk_ca_priv");

static __always_inline struct fr_flow *fr_flow_of(struct tcp_sock___fr *tp)
{
	return (void *)tp->inet_conn.icsk_ca_priv;
}

static __always_inline __u32 fr_in_flight(const struct tcp_sock___fr *tp)
{
	return tp->packets_out - tp->sacked_out - tp->lost_out + tp->retrans_out;
}

static __always_inline __u32 fr_slow_start(const struct tcp_sock___fr *tp)
{
	return tp->snd_cwnd < tp->snd_ssthresh;
}

/* tcp_is_cwnd_limited */
static __always_inline __u32 fr_limited(const struct tcp_sock___fr *tp)
{
	return FR_BITS(tp, is_cwnd_limited) ||
	       (fr_slow_start(tp) && tp->snd_cwnd < 2 * tp->max_packets_out);
}

static __always_inline void fr_addresses(struct fr_socket *s, const struct sock___fr *sk)
{
	const struct sock_common___fr *c = &sk->__sk_common;

	if (c->skc_family == AF_INET) {
		fr_put_v4(s->local_addr, c->skc_rcv_saddr);
		fr_put_v4(s->remote_addr, c->skc_daddr);
	} else {
		st64(s->local_addr, ld64(&c->skc_v6_rcv_saddr));
		st64(s->local_addr + 8, ld64((void *)&c->skc_v6_rcv_saddr + 8));
		st64(s->remote_addr, ld64(&c->skc_v6_daddr));
		st64(s->remote_addr + 8, ld64((void *)&c->skc_v6_daddr + 8));
	}
	s->local_port = c->skc_num;
	s->remote_port = bpf_htons(c->skc_dport);
}

/* What the kernel knows of the socket. What the programs don't read, the compiler leaves out. */
static __always_inline void fr_describe(struct fr_socket *s, struct tcp_sock___fr *tp, __u8 event)
{
	const struct sock___fr *sk = (void *)tp;
	const struct fr_flow *flow = fr_flow_of(tp);
	__u32 interval = tp->rate_interval_us;

	*s = (struct fr_socket) {
		.event = event,
		.state = FR_BITS(&tp->inet_conn, icsk_ca_state),
		.limited = fr_limited(tp),
		.ssthresh = tp->snd_ssthresh,
		.id = flow->id,
		.cwnd = tp->snd_cwnd,
		.pacing = sk->sk_pacing_rate,
		.in_flight = fr_in_flight(tp),
		.srtt = tp->srtt_us >> 3,
		.min_rtt = tp->rtt_min.s[0].v,
		.rtt = tp->rack.rtt_us,
		.delivered = tp->delivered,
		.lost = tp->lost,
		.losses = flow->losses,
		.round = flow->round,
		.mss = tp->mss_cache,
	};
	if (interval)
		s->rate = (__u64)tp->rate_delivered * tp->mss_cache * 1000000 / interval;
	fr_addresses(s, sk);
}

static __always_inline void fr_begin_round(struct tcp_sock___fr *tp, struct fr_flow *flow)
{
	flow->round++;
	flow->began = tp->tcp_mstamp;
	flow->end = tp->snd_nxt;
	flow->round_delivered = tp->delivered;
	flow->round_lost = tp->lost;
	flow->min_rtt = 0;
}

static __always_inline void fr_set_window(struct tcp_sock___fr *tp, __u32 cwnd)
{
	__u32 most = tp->snd_cwnd_clamp;

	tp->snd_cwnd = cwnd < most ? cwnd : most;
}

/* From the first rate that a program sets on, TCP spaces the flow's packets. */
static __always_inline void fr_set_pacing(struct tcp_sock___fr *tp, __u64 rate, int paced)
{
	struct sock___fr *sk = (void *)tp;
	__u64 most = sk->sk_max_pacing_rate;

	if (paced && sk->sk_pacing_status == 0)
		sk->sk_pacing_status = FR_PACING_NEEDED;
	sk->sk_pacing_rate = rate < most ? rate : most;
}

/* tcp_update_pacing_rate: twice the window a round trip in slow start, and 1.2 times after it. */
static __always_inline void fr_usual_pacing(struct tcp_sock___fr *tp)
{
	__u32 cwnd = tp->snd_cwnd, out = tp->packets_out, srtt = tp->srtt_us;
	__u64 rate = (__u64)tp->mss_cache * 80000;

	rate *= cwnd < tp->snd_ssthresh / 2 ? 200 : 120;
	rate *= cwnd > out ? cwnd : out;
	fr_set_pacing(tp, srtt ? rate / srtt : rate, 0);
}

/* RFC 6937, as in tcp_cwnd_reduction. */
static __always_inline void fr_reduce(struct tcp_sock___fr *tp, struct fr_flow *flow, __u32 acked,
				      __u32 lost)
{
	__u32 in_flight = fr_in_flight(tp), prior = tp->prior_cwnd, out = tp->prr_out;
	__s32 delta = tp->snd_ssthresh - in_flight, send;

	if (!acked || !prior)
		return;
	flow->prr_delivered += acked;
	if (delta < 0) {
		__u64 share = (__u64)tp->snd_ssthresh * flow->prr_delivered + prior - 1;

		send = (__s32)(share / prior) - (__s32)out;
	} else {
		send = flow->prr_delivered - out;
		if (send < (__s32)acked)
			send = acked;
		if (!lost)
			send++;
		if (send > delta)
			send = delta;
	}
	if (send < !out) /* the first retransmission leaves at once */
		send = !out;
	fr_set_window(tp, in_flight + send);
}

/* Slow start, and then a packet a round trip (RFC 5681, 3.1). */
static __always_inline void fr_grow(struct tcp_sock___fr *tp, __u32 acked)
{
	__u32 cwnd = tp->snd_cwnd, more, cnt;

	if (cwnd < tp->snd_ssthresh) {
		more = tp->snd_ssthresh - cwnd;
		more = more < acked ? more : acked;
		cwnd += more;
		acked -= more;
	}
	if (acked && cwnd) {
		cnt = tp->snd_cwnd_cnt;
		if (cnt >= cwnd) { /* the window was smaller before */
			cnt = 0;
			cwnd++;
		}
		cnt += acked;
		if (cnt >= cwnd) {
			more = cnt / cwnd;
			cnt -= more * cwnd;
			cwnd += more;
		}
		tp->snd_cwnd_cnt = cnt;
	}
	fr_set_window(tp, cwnd);
}

static __always_inline void fr_reno(struct tcp_sock___fr *tp, struct fr_flow *flow,
				    const struct fr_socket *s, __u32 acked, __u32 lost)
{
	if (s->state == FR_CA_CWR || s->state == FR_CA_RECOVERY)
		fr_reduce(tp, flow, acked, lost);
	else if (acked && s->limited)
		fr_grow(tp, acked);
}

/* The reduction is over, and was not undone (tcp_end_cwnd_reduction). */
static __always_inline int fr_reduced(struct tcp_sock___fr *tp, const struct fr_flow *flow,
				      __u32 state)
{
	return (flow->state == FR_CA_CWR || flow->state == FR_CA_RECOVERY) && state < FR_CA_CWR &&
	       tp->snd_ssthresh < FR_INFINITE && tp->snd_cwnd < tp->prior_cwnd;
}

static __always_inline void fr_init(struct tcp_sock___fr *tp, struct fr_socket *s,
				    void (*programs)(struct fr_socket *))
{
	struct fr_flow *flow = fr_flow_of(tp);

	*flow = (struct fr_flow) {
		.id = (__u64)bpf_get_prandom_u32() << 32 | bpf_get_prandom_u32() | 1,
		.delivered = tp->delivered,
		.lost = tp->lost,
	};
	fr_begin_round(tp, flow);
	fr_describe(s, tp, FR_EVENT_INIT);
	programs(s);
	if (s->ack.cwnd)
		fr_set_window(tp, s->ack.cwnd);
	if (s->ack.pacing)
		fr_set_pacing(tp, s->ack.pacing, 1);
}

static __always_inline void fr_ack(struct tcp_sock___fr *tp, struct fr_socket *s,
				   void (*programs)(struct fr_socket *))
{
	struct fr_flow *flow = fr_flow_of(tp);
	__u32 acked = tp->delivered - flow->delivered, lost = tp->lost - flow->lost;
	__u32 rtt = tp->rack.rtt_us;

	if (!flow->id)
		return;
	flow->delivered = tp->delivered;
	flow->lost = tp->lost;
	if (acked && rtt && (!flow->min_rtt || rtt < flow->min_rtt))
		flow->min_rtt = rtt;
	fr_describe(s, tp, FR_EVENT_ACK);
	s->acked = acked;
	s->ack.over = (__s32)(tp->snd_una - flow->end) >= 0;
	s->ack.acked = tp->delivered - flow->round_delivered;
	s->ack.lost = tp->lost - flow->round_lost;
	s->ack.min_rtt = flow->min_rtt;
	s->ack.time = (__u32)tp->tcp_mstamp - flow->began;
	programs(s);
	if (s->ack.begin)
		fr_begin_round(tp, flow);
	if (s->ack.cwnd)
		fr_set_window(tp, s->ack.cwnd);
	else if (fr_reduced(tp, flow, s->state))
		fr_set_window(tp, tp->snd_ssthresh);
	else
		fr_reno(tp, flow, s, acked, lost);
	if (s->ack.pacing)
		fr_set_pacing(tp, s->ack.pacing, 1);
	else
		fr_usual_pacing(tp);
	flow->state = s->state;
}

static __always_inline __u32 fr_loss(struct tcp_sock___fr *tp, struct fr_socket *s,
				     void (*programs)(struct fr_socket *))
{
	struct fr_flow *flow = fr_flow_of(tp);
	__u32 half = tp->snd_cwnd / 2;

	if (flow->id) {
		flow->losses++;
		flow->prr_delivered = 0;
		fr_describe(s, tp, FR_EVENT_LOSS);
		programs(s);
		if (s->loss.ssthresh)
			return s->loss.ssthresh;
	}
	return half > 2 ? half : 2;
}

/* struct tcp_congestion_ops, as far as it is filled in. */
struct tcp_congestion_ops {
	__u32 (*ssthresh)(void *sk);
	void (*cong_control)(void *sk);
	__u32 (*undo_cwnd)(void *sk);
	void (*init)(void *sk);
	void (*release)(void *sk);
	char name[16];
};

/* The functions that the kernel calls. ctx[0] is the socket. */
#define FR_CONGESTION(called)                                                                      \
	SEC("struct_ops") void fr_tcp_init(__u64 *ctx)                                             \
	{                                                                                          \
		struct fr_socket s;                                                                \
												   \
		fr_init((void *)ctx[0], &s, fr_on_init);                                           \
	}                                                                                          \
												   \
	SEC("struct_ops") void fr_tcp_ack(__u64 *ctx)                                              \
	{                                                                                          \
		struct fr_socket s;                                                                \
												   \
		fr_ack((void *)ctx[0], &s, fr_on_ack);                                             \
	}                                                                                          \
												   \
	SEC("struct_ops") __u32 fr_tcp_loss(__u64 *ctx)                                            \
	{                                                                                          \
		struct fr_socket s;                                                                \
												   \
		return fr_loss((void *)ctx[0], &s, fr_on_loss);                                    \
	}                                                                                          \
												   \
	/* A reduction was needless: the window as it was (tcp_reno_undo_cwnd). */                 \
	SEC("struct_ops") __u32 fr_tcp_undo(__u64 *ctx)                                            \
	{                                                                                          \
		const struct tcp_sock___fr *tp = (void *)ctx[0];                                   \
		__u32 now = tp->snd_cwnd, before = tp->prior_cwnd;                                 \
												   \
		return now > before ? now : before;                                                \
	}                                                                                          \
												   \
	SEC("struct_ops") void fr_tcp_release(__u64 *ctx)                                          \
	{                                                                                          \
		struct fr_socket s;                                                                \
												   \
		fr_describe(&s, (void *)ctx[0], FR_EVENT_RELEASE);                                 \
		fr_on_release(&s);                                                                 \
	}                                                                                          \
												   \
	SEC(".struct_ops.link") struct tcp_congestion_ops fr_congestion = {                        \
		.ssthresh = (void *)fr_tcp_loss,                                                   \
		.cong_control = (void *)fr_tcp_ack,                                                \
		.undo_cwnd = (void *)fr_tcp_undo,                                                  \
		.init = (void *)fr_tcp_init,                                                       \
		.release = (void *)fr_tcp_release,                                                 \
		.name = called,                                                                    \
	}

#endif
