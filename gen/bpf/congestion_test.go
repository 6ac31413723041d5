//go:build linux

package bpf_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// onSocket runs what the kernel calls at an event of a socket on memory that holds a socket, with decisions in the
// place of the programs'.
const onSocket = `
struct test_memory { __u8 bytes[8192]; };
struct test_decision { __u64 pacing; __u32 cwnd, begin, ssthresh, result; };
FR_ARRAY(test_socket, BPF_MAP_TYPE_ARRAY, 0, 1, struct test_memory);
FR_ARRAY(test_record, BPF_MAP_TYPE_ARRAY, 0, 1, struct fr_socket);
FR_ARRAY(test_decision, BPF_MAP_TYPE_ARRAY, 0, 1, struct test_decision);

static __always_inline void test_program(struct fr_socket *s)
{
	__u32 zero = 0;
	struct test_decision *d = bpf_map_lookup_elem(&test_decision, &zero);
	struct fr_socket *r = bpf_map_lookup_elem(&test_record, &zero);

	if (!d || !r)
		return;
	*r = *s;
	if (s->event == FR_EVENT_LOSS) {
		s->loss.ssthresh = d->ssthresh;
		return;
	}
	s->ack.cwnd = d->cwnd;
	s->ack.pacing = d->pacing;
	s->ack.begin = d->begin;
}

#define TEST(event, call)                                          \
	SEC("syscall") int test_##event(void *ctx)                 \
	{                                                          \
		__u32 zero = 0;                                    \
		struct test_decision *d = bpf_map_lookup_elem(&test_decision, &zero); \
		void *tp = bpf_map_lookup_elem(&test_socket, &zero); \
		struct fr_socket s;                                \
								   \
		if (!tp || !d)                                     \
			return 1;                                  \
		call(tp, &s, test_program);                        \
		return 0;                                          \
	}
TEST(ack, fr_ack)
TEST(loss, d->result = fr_loss)
`

// place is where the kernel has a member, in bits.
type place struct{ at, bits int }

// member finds a member of a structure of the kernel by its path; those without a name are looked into.
func member(t *testing.T, typ btf.Type, path ...string) (p place) {
	t.Helper()
	for _, name := range path {
		next, off, bits := inside(typ, name)
		if next == nil {
			t.Fatalf("the kernel has no %s in %v", name, typ)
		}
		typ, p = next, place{p.at + off, bits}
	}
	if p.bits == 0 {
		size, err := btf.Sizeof(typ)
		if err != nil {
			t.Fatal(err)
		}
		p.bits = 8 * size
	}
	return p
}

func inside(typ btf.Type, name string) (found btf.Type, off, bits int) {
	var members []btf.Member
	switch s := btf.UnderlyingType(typ).(type) {
	case *btf.Struct:
		members = s.Members
	case *btf.Union:
		members = s.Members
	case *btf.Array:
		return inside(s.Type, name)
	}
	for _, m := range members {
		if m.Name == name {
			return m.Type, int(m.Offset), int(m.BitfieldSize)
		}
		if m.Name == "" {
			if t, o, b := inside(m.Type, name); t != nil {
				return t, int(m.Offset) + o, b
			}
		}
	}
	return nil, 0, 0
}

// flow is struct fr_flow.
type flow struct {
	ID                                           uint64
	Round, Losses, Began, End, Delivered0, Lost0 uint32
	MinRTT, Delivered, Lost, PRR, State          uint32
}

// model is what has to become of a socket: Reno's rules as RFC 5681 and RFC 6937 and the kernel's tcp_reno_cong_avoid,
// tcp_cwnd_reduction and tcp_update_pacing_rate have them.
type model struct {
	v map[string]uint64
	f flow
}

func (m *model) u(name string) uint32 { return uint32(m.v[name]) }

func (m *model) inFlight() uint32 {
	return m.u("packets_out") - m.u("sacked_out") - m.u("lost_out") + m.u("retrans_out")
}

func (m *model) window(n uint64) { m.v["snd_cwnd"] = min(n, m.v["snd_cwnd_clamp"]) }

func (m *model) limited() bool {
	return m.v["is_cwnd_limited"] == 1 || m.u("snd_cwnd") < m.u("snd_ssthresh") &&
		m.u("snd_cwnd") < 2*m.u("max_packets_out")
}

func (m *model) begin() {
	m.f.Round++
	m.f.Began, m.f.End, m.f.Delivered0, m.f.Lost0, m.f.MinRTT = uint32(m.v["tcp_mstamp"]), m.u("snd_nxt"),
		m.u("delivered"), m.u("lost"), 0
}

func (m *model) pace(rate uint64) { m.v["sk_pacing_rate"] = min(rate, m.v["sk_max_pacing_rate"]) }

func (m *model) ack(d decision) {
	acked, lost := m.u("delivered")-m.f.Delivered, m.u("lost")-m.f.Lost
	m.f.Delivered, m.f.Lost = m.u("delivered"), m.u("lost")
	if rtt := m.u("rtt_us"); acked > 0 && rtt > 0 && (m.f.MinRTT == 0 || rtt < m.f.MinRTT) {
		m.f.MinRTT = rtt
	}
	state, limited := uint32(m.v["icsk_ca_state"]), m.limited()
	reducing := func(s uint32) bool { return s == 2 || s == 3 }
	if d.Begin != 0 {
		m.begin()
	}
	switch {
	case d.Cwnd != 0:
		m.window(uint64(d.Cwnd))
	case reducing(m.f.State) && state < 2 && m.u("snd_ssthresh") < 0x7fffffff &&
		m.u("snd_cwnd") < m.u("prior_cwnd"):
		m.window(m.v["snd_ssthresh"])
	case reducing(state):
		m.reduce(acked, lost)
	case acked > 0 && limited:
		m.grow(uint64(acked))
	}
	if d.Pacing != 0 {
		if m.v["sk_pacing_status"] == 0 {
			m.v["sk_pacing_status"] = 1
		}
		m.pace(d.Pacing)
	} else {
		rate := m.v["mss_cache"] * 80000
		if m.u("snd_cwnd") < m.u("snd_ssthresh")/2 {
			rate *= 200
		} else {
			rate *= 120
		}
		rate *= max(m.v["snd_cwnd"], m.v["packets_out"])
		if srtt := m.v["srtt_us"]; srtt > 0 {
			rate /= srtt
		}
		m.pace(rate)
	}
	m.f.State = state
}

func (m *model) reduce(acked, lost uint32) {
	if acked == 0 || m.u("prior_cwnd") == 0 {
		return
	}
	m.f.PRR += acked
	room := int32(m.u("snd_ssthresh") - m.inFlight())
	var send int32
	if room < 0 {
		share := (m.v["snd_ssthresh"]*uint64(m.f.PRR) + m.v["prior_cwnd"] - 1) / m.v["prior_cwnd"]
		send = int32(share) - int32(m.u("prr_out"))
	} else {
		send = max(int32(m.f.PRR-m.u("prr_out")), int32(acked))
		if lost == 0 {
			send++
		}
		send = min(send, room)
	}
	least := int32(0)
	if m.u("prr_out") == 0 {
		least = 1
	}
	m.window(uint64(m.inFlight() + uint32(max(send, least))))
}

func (m *model) grow(acked uint64) {
	cwnd := m.v["snd_cwnd"]
	if limit := m.v["snd_ssthresh"]; cwnd < limit {
		more := min(limit-cwnd, acked)
		cwnd, acked = cwnd+more, acked-more
	}
	if acked > 0 && cwnd > 0 {
		n := m.v["snd_cwnd_cnt"]
		if n >= cwnd {
			n = 0
			cwnd++
		}
		n += acked
		if n >= cwnd {
			more := n / cwnd
			n -= more * cwnd
			cwnd += more
		}
		m.v["snd_cwnd_cnt"] = n
	}
	m.window(cwnd)
}

// decision is struct test_decision.
type decision struct {
	Pacing                        uint64
	Cwnd, Begin, SSThresh, Result uint32
}

// What the kernel's side makes of random sockets is what the rules say: the record that programs see, and the socket
// and the flow after it.
func TestCongestionRules(t *testing.T) {
	if text := compareRules(t, needs.Of(5_000, 20_000), func(header string) string { return header }); text != "" {
		t.Error(text)
	}
}

// Random sockets find every fault that is planted in the kernel's side.
func TestCongestionFaults(t *testing.T) {
	needs.All(t)
	for _, f := range []struct{ what, old, new string }{
		{"the window is cut by nothing", "cwnd < most ? cwnd : most", "cwnd"},
		{"slow start is missing", "if (cwnd < tp->snd_ssthresh) {", "if (0) {"},
		{"slow start passes its threshold", "more = more < acked ? more : acked;", "more = acked;"},
		{"the window grows one packet late", "if (cnt >= cwnd) { /*", "if (cnt > cwnd) { /*"},
		{"what was counted of a window is lost", "cnt -= more * cwnd;", "cnt = 0;"},
		{"the window grows without need", "else if (acked && s->limited)", "else if (acked)"},
		{"recovery isn't proportional", "share / prior", "share / 2"},
		{"the first retransmission waits", "if (send < !out)", "if (send < 0)"},
		{"a loss during recovery counts as none", "if (!lost)", "if (lost)"},
		{"the window stays small after recovery", "state < FR_CA_CWR &&", "state < 0 &&"},
		{"a decision is not carried out", "if (s->ack.cwnd)\n\t\tfr_set_window(tp, s->ack.cwnd);\n\telse",
			"if (0)\n\t\tfr_set_window(tp, s->ack.cwnd);\n\telse"},
		{"the pacing rate has no limit", "rate < most ? rate : most", "rate"},
		{"pacing isn't turned on", "paced && sk->sk_pacing_status == 0", "0"},
		{"a round never begins", "if (s->ack.begin)", "if (0)"},
		{"a round ends a packet early", "(tp->snd_una - flow->end) >= 0", "(tp->snd_una - flow->end) >= -1"},
		{"a round keeps the lowest time of the one before", "flow->min_rtt = 0;", ""},
		{"losses aren't counted", "flow->losses++;", ""},
		{"half a window of one packet remains", "return half > 2 ? half : 2;", "return half;"},
		{"a flow that hasn't begun is decided for", "if (!flow->id)\n\t\treturn;", ""},
		{"the delivery rate is of packets", "tp->rate_delivered * tp->mss_cache", "tp->rate_delivered"},
		{"in flight is what was lost, too", "tp->sacked_out - tp->lost_out", "tp->sacked_out"},
		{"the addresses are exchanged", "fr_put_v4(s->local_addr, c->skc_rcv_saddr)",
			"fr_put_v4(s->local_addr, c->skc_daddr)"},
		{"a field of bits is read whole", "FR_BITS(tp, is_cwnd_limited)", "1"},
	} {
		t.Run(strings.ReplaceAll(f.what, " ", "_"), func(t *testing.T) {
			text := compareRules(t, 5_000, func(header string) string {
				if !strings.Contains(header, f.old) {
					t.Fatalf("there is no %q any more", f.old)
				}
				return strings.Replace(header, f.old, f.new, 1)
			})
			if text == "" {
				t.Error("not found")
			}
		})
	}
}

// compareRules runs what the kernel calls, with a header that plant has changed, on so many random sockets, and returns
// how that differs from the rules, or "".
func compareRules(t *testing.T, sockets int, plant func(header string) string) (text string) {
	t.Helper()
	bpftest.Rights(t)
	const file = "../../golden/congestion/spec.cue"
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, list := spec.Load(file, src)
	if list.Len() > 0 {
		t.Fatal(list)
	}
	plan, list := gen.Compile(s)
	if plan == nil {
		t.Fatal(list)
	}
	c, err := bpf.Render(plan, bpf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	object, _, err := clang.Compile(context.Background(), c.C+onSocket, plant(c.Header), clang.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cs, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	coll, err := ebpf.NewCollection(cs)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	defer coll.Close()
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	var tcp *btf.Struct
	if err := kernel.TypeByName("tcp_sock", &tcp); err != nil {
		t.Fatal(err)
	}
	places := map[string]place{}
	for _, name := range strings.Fields("tcp_mstamp snd_una snd_nxt snd_cwnd snd_cwnd_cnt snd_cwnd_clamp " +
		"snd_ssthresh " +
		"packets_out sacked_out lost_out retrans_out max_packets_out delivered lost rate_delivered rate_interval_us " +
		"srtt_us mss_cache prior_cwnd prr_out is_cwnd_limited") {
		places[name] = member(t, tcp, name)
	}
	sk := []string{"inet_conn", "icsk_inet", "sk"}
	for _, name := range []string{"sk_pacing_rate", "sk_max_pacing_rate", "sk_pacing_status"} {
		places[name] = member(t, tcp, append(sk, name)...)
	}
	for _, name := range []string{"skc_family", "skc_num", "skc_dport", "skc_daddr", "skc_rcv_saddr"} {
		places[name] = member(t, tcp, append(sk, "__sk_common", name)...)
	}
	v6 := [2]place{member(t, tcp, append(sk, "__sk_common", "skc_v6_rcv_saddr")...),
		member(t, tcp, append(sk, "__sk_common", "skc_v6_daddr")...)}
	places["icsk_ca_state"] = member(t, tcp, "inet_conn", "icsk_ca_state")
	places["rtt_us"] = member(t, tcp, "rack", "rtt_us")
	places["min_rtt"] = member(t, tcp, "rtt_min", "s", "v")
	private := member(t, tcp, "inet_conn", "icsk_ca_priv").at / 8

	memory := make([]byte, 8192)
	load := func(p place) uint64 {
		b := make([]byte, 16)
		copy(b, memory[p.at/8:])
		v := binary.LittleEndian.Uint64(b) >> (p.at % 8)
		if p.bits < 64 {
			v &= 1<<p.bits - 1
		}
		return v
	}
	store := func(p place, v uint64) {
		for i := range p.bits {
			at := p.at + i
			memory[at/8] = memory[at/8]&^(1<<(at%8)) | byte(v>>i&1)<<(at%8)
		}
	}
	rng := rand.New(rand.NewPCG(1, 0x50cce7))
	some := func(n uint64) uint64 {
		switch rng.IntN(4) {
		case 0:
			return rng.Uint64N(4)
		case 1:
			return rng.Uint64N(n + 1)
		}
		return rng.Uint64N(min(n, 100) + 1)
	}
	run := func(name string, d *decision) {
		t.Helper()
		put := func(m string, v any) {
			if err := coll.Maps[m].Put(uint32(0), v); err != nil {
				t.Fatal(err)
			}
		}
		put("test_socket", memory)
		put("test_decision", d)
		if ret, err := coll.Programs["test_"+name].Run(&ebpf.RunOptions{}); err != nil || ret != 0 {
			t.Fatal(ret, err)
		}
		for m, v := range map[string]any{"test_socket": &memory, "test_decision": d} {
			if err := coll.Maps[m].Lookup(uint32(0), v); err != nil {
				t.Fatal(err)
			}
		}
	}
	seen := map[string]int{}
	for range sockets {
		for i := range memory {
			memory[i] = byte(rng.Uint32())
		}
		m := model{v: map[string]uint64{}}
		set := func(name string, v uint64) { store(places[name], v) }
		for _, name := range strings.Fields("snd_cwnd snd_cwnd_cnt packets_out sacked_out lost_out retrans_out " +
			"max_packets_out delivered lost prior_cwnd prr_out srtt_us rtt_us min_rtt") {
			set(name, some(1<<20))
		}
		set("snd_cwnd", 1+some(1<<20))
		set("snd_cwnd_clamp", []uint64{0xffffffff, 50}[rng.IntN(2)])
		set("snd_ssthresh", []uint64{0x7fffffff, 2 + some(1<<20)}[rng.IntN(2)])
		set("mss_cache", some(65535))
		set("rate_delivered", some(1<<16))
		set("rate_interval_us", some(1<<24))
		set("icsk_ca_state", rng.Uint64N(5))
		set("sk_pacing_status", rng.Uint64N(3))
		set("sk_max_pacing_rate", []uint64{^uint64(0), 1 << 20}[rng.IntN(2)])
		set("skc_family", []uint64{2, 10}[rng.IntN(2)])
		read := func() {
			for name, p := range places {
				m.v[name] = load(p)
			}
		}
		if read(); rng.IntN(8) == 0 { // there is no room, and nothing was sent again
			set("snd_ssthresh", uint64(m.inFlight()))
			set("prr_out", 0)
			read()
		}
		m.f = flow{
			ID: rng.Uint64(), Round: rng.Uint32(), Losses: rng.Uint32(), Began: rng.Uint32(),
			End: m.u("snd_una") + uint32(rng.IntN(3)) - 1, Delivered: m.u("delivered") - uint32(some(100)),
			Lost: m.u("lost") - uint32(some(3)), MinRTT: uint32(some(100)), PRR: uint32(some(1000)),
			State: rng.Uint32N(5),
		}
		begun := rng.IntN(16) > 0
		if !begun {
			m.f.ID = 0
		}
		m.f.Delivered0, m.f.Lost0 = m.f.Delivered-uint32(some(100)), m.f.Lost-uint32(some(100))
		if _, err := binary.Encode(memory[private:], binary.LittleEndian, &m.f); err != nil {
			t.Fatal(err)
		}
		d := decision{Begin: rng.Uint32N(2), Cwnd: uint32(some(100)) * rng.Uint32N(2),
			Pacing: some(1<<40) * rng.Uint64N(2), SSThresh: uint32(some(100)) * rng.Uint32N(2)}
		want := m.record(memory, v6, load)
		event := "ack"
		if rng.IntN(8) == 0 {
			event = "loss"
			half := max(m.u("snd_cwnd")/2, 2)
			if begun {
				m.f.Losses++
				m.f.PRR = 0
				if d.SSThresh != 0 {
					half = d.SSThresh
				}
			}
			want[0] = 3
			binary.LittleEndian.PutUint32(want[96:], m.f.Losses)
			clear(want[108:])
			run(event, &d)
			if d.Result != half {
				return fmt.Sprintf("a window of %d at a loss: got %d, want %d", m.u("snd_cwnd"), d.Result, half)
			}
		} else {
			if begun {
				m.ack(d)
			}
			run(event, &d)
		}
		seen[fmt.Sprint(event, " ", m.v["icsk_ca_state"])]++
		var record []byte
		if record, err = coll.Maps["test_record"].LookupBytes(uint32(0)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, record); diff != "" && begun {
			return fmt.Sprintf("%s: the record: -want +got:\n%s", event, diff)
		}
		got := map[string]uint64{}
		for name, p := range places {
			got[name] = load(p)
		}
		var after flow
		if _, err := binary.Decode(memory[private:], binary.LittleEndian, &after); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m.v, got) + cmp.Diff(m.f, after); diff != "" {
			return fmt.Sprintf("%s, %+v: -want +got:\n%s", event, d, diff)
		}
	}
	if len(seen) != 10 {
		t.Errorf("events in states: %v", seen)
	}
	return ""
}

// record is what programs see of the socket at an acknowledgement.
func (m *model) record(memory []byte, v6 [2]place, load func(place) uint64) []byte {
	le := binary.LittleEndian
	b := []byte{2, byte(m.v["icsk_ca_state"]), 0, 0}
	if m.limited() {
		b[2] = 1
	}
	b = le.AppendUint32(b, m.u("snd_ssthresh"))
	b = le.AppendUint64(b, m.f.ID)
	for i, name := range []string{"skc_rcv_saddr", "skc_daddr"} {
		if m.v["skc_family"] == 2 {
			b = le.AppendUint32(append(b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff), m.u(name))
		} else {
			b = append(b, memory[v6[i].at/8:][:16]...)
		}
	}
	b = le.AppendUint16(b, uint16(m.v["skc_num"]))
	b = append(b, byte(m.v["skc_dport"]>>8), byte(m.v["skc_dport"]))
	b = le.AppendUint32(b, m.u("snd_cwnd"))
	b = le.AppendUint64(b, m.v["sk_pacing_rate"])
	rate := uint64(0)
	if n := m.v["rate_interval_us"]; n > 0 {
		rate = m.v["rate_delivered"] * m.v["mss_cache"] * 1e6 / n
	}
	b = le.AppendUint64(b, rate)
	acked := m.u("delivered") - m.f.Delivered
	low := m.f.MinRTT
	if rtt := m.u("rtt_us"); acked > 0 && rtt > 0 && (low == 0 || rtt < low) {
		low = rtt
	}
	for _, n := range []uint32{
		m.inFlight(), m.u("srtt_us") >> 3, m.u("min_rtt"), m.u("rtt_us"), m.u("delivered"), m.u("lost"), m.f.Losses,
		m.f.Round, m.u("mss_cache"), acked, 0,
	} {
		b = le.AppendUint32(b, n)
	}
	over := byte(0)
	if int32(m.u("snd_una")-m.f.End) >= 0 {
		over = 1
	}
	b = append(b, 0, over, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	for _, n := range []uint32{
		m.u("delivered") - m.f.Delivered0, m.u("lost") - m.f.Lost0, low, uint32(m.v["tcp_mstamp"]) - m.f.Began,
	} {
		b = le.AppendUint32(b, n)
	}
	return b
}
