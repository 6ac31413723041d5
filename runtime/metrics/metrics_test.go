package metrics

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// object compiles a relay that counts every packet under its only reason.
func object(t *testing.T) []byte {
	t.Helper()
	const text = `
struct lease { __u64 deadline, now, changes, storing, policy; };
struct count { __u64 packets, bytes; };
#define ARRAY(n, t, v, f) struct { __uint(type, t); __uint(map_flags, f); __uint(max_entries, 1); \
	__type(key, __u32); __type(value, v); } n SEC(".maps")
ARRAY(fr_lease, BPF_MAP_TYPE_ARRAY, struct lease, BPF_F_MMAPABLE);
ARRAY(fr_reasons, BPF_MAP_TYPE_PERCPU_ARRAY, struct count, 0);
ARRAY(fr_named, BPF_MAP_TYPE_PERCPU_ARRAY, __u64, 0);
SEC("tc") int fr_clock(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct lease *l = bpf_map_lookup_elem(&fr_lease, &zero);
	if (l)
		l->now = bpf_jiffies64();
	return 0;
}
SEC("tc") int prog_p(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct count *c = bpf_map_lookup_elem(&fr_reasons, &zero);
	__u64 *n = bpf_map_lookup_elem(&fr_named, &zero);
	if (c && n) {
		c->packets++;
		c->bytes += skb->len;
		*n += 2;
	}
	return -1;
}
char _license[] SEC("license") = "GPL";
`
	object, err := bpftest.CompileText("p.bpf.c", text)
	if err != nil {
		t.Fatal(err)
	}
	return object
}

func TestHandler(t *testing.T) {
	needs.Root(t)
	desc := &abi.Desc{
		Name: `odd "name\`,
		Programs: []abi.Program{
			{Name: "p", Hook: abi.HookIngress, Reasons: []abi.Reason{{Name: "seen", Kind: abi.ReasonPunted}}},
		},
		Counters: []string{"hits"},
	}
	r, err := runtime.Load(desc, object(t), runtime.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, _, err := r.Program("p").Kernel().Test(make([]byte, 60)); err != nil {
		t.Fatal(err)
	}
	ask := func() (*httptest.ResponseRecorder, string) { // of the relay; the process's own come first
		rec := httptest.NewRecorder()
		Handler(r).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
		_, text, _ := strings.Cut(rec.Body.String(), "# HELP fastrelay_packets_total")
		return rec, text
	}
	rec, text := ask()
	want := ` Packets by reason.
# TYPE fastrelay_packets_total counter
fastrelay_packets_total{relay="odd \"name\\",program="p",reason="seen",kind="up"} 1
# HELP fastrelay_bytes_total Bytes of the frames as they came.
# TYPE fastrelay_bytes_total counter
fastrelay_bytes_total{relay="odd \"name\\",program="p",reason="seen",kind="up"} 60
# HELP fastrelay_counter_total Named counters of the spec.
# TYPE fastrelay_counter_total counter
fastrelay_counter_total{relay="odd \"name\\",name="hits"} 2
`
	want += `# HELP fastrelay_lease_left_seconds For how long the kernel goes on forwarding without a renewal.
# TYPE fastrelay_lease_left_seconds gauge
fastrelay_lease_left_seconds{relay="odd \"name\\"} LEFT
# HELP fastrelay_draining 1 while the relay takes nothing new.
# TYPE fastrelay_draining gauge
fastrelay_draining{relay="odd \"name\\"} 0
`
	got := regexp.MustCompile(`} (1.000|0.[0-9]{3})`).ReplaceAllString(text, "} LEFT")
	if got != want {
		t.Errorf("metrics:\n%s\nwant:\n%s", got, want)
	}
	if ct := rec.Header().Get("Content-Type"); !strings.HasPrefix(ct, "text/plain; version=0.0.4") {
		t.Errorf("content type %q", ct)
	}
	r.Close()
	if rec, text = ask(); rec.Code != http.StatusOK || text != "" {
		t.Errorf("after Close: %d, %s", rec.Code, rec.Body)
	}
}

// Receivers, by the relay of the runtime's own tests.
func TestReceivers(t *testing.T) {
	needs.Root(t)
	endpoint := abi.Member{Kind: abi.KindEndpoint, Size: 18}
	local, remote := endpoint, endpoint
	local.Name, remote.Name, remote.Off = "local", "remote", 18
	desc := &abi.Desc{
		Name: "fan",
		Groups: []abi.Group{{
			Name: "subs", Max: 64, Rows: 128, Size: 4, Base: 1,
			Key: []abi.Member{{Name: "id", Kind: abi.KindUint, Bits: 32, Size: 4}}, KeySize: 4,
			Receiver: []abi.Member{local, remote,
				{Name: "hop_remote", Kind: abi.KindHop, Size: 20, Off: 36, Hidden: true, To: "remote", From: "local"},
				{Name: "credit", Kind: abi.KindCredit, Levels: 2, Size: 4, Off: 64},
				{Name: "receiver", Kind: abi.KindUint, Bits: 32, Size: 4, Off: 76, Hidden: true}},
			ReceiverSize: 80,
		}},
		Events: []abi.Event{{Name: "sent", Size: 40}, {Name: "made", Size: 16}},
		Programs: []abi.Program{
			{Name: "fan", Hook: abi.HookIngress, Reasons: []abi.Reason{{Name: "fanned", Kind: abi.ReasonPassed},
				{Name: "none", Kind: abi.ReasonPunted, Number: 1}, {Name: "full", Kind: abi.ReasonPunted, Number: 2}}},
		},
		Levels: 2, Receivers: 129, Credits: 397, Ring: 65536,
	}
	object, err := bpftest.Compile("../testdata/fan.bpf.c")
	if err != nil {
		t.Fatal(err)
	}
	dev := testnet.Stub(t)
	if err := dev.Host.Run("ip", "route", "add", "2001:db8:9::/64", "dev", "eth0"); err != nil {
		t.Fatal(err)
	}
	var r *runtime.Relay
	if err := dev.Host.Do(func() (err error) {
		r, err = runtime.Load(desc, object, runtime.Options{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	g, err := r.GroupKind("subs").Open(t.Context(), 7)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"203.0.113.9:1", "[2001:db8:9::1]:1"} {
		if _, err := g.Add(t.Context(), netip.MustParseAddrPort(at), netip.MustParseAddrPort(at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := dev.Host.Do(func() error { // the copy leaves by a device of the host
		_, _, err := r.Program("fan").Kernel().
			Test(append(make([]byte, 14), append([]byte{7}, make([]byte, 45)...)...))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := Write(&b, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`fastrelay_next_hops{relay="fan",state="direct"} 1`, `fastrelay_next_hops{relay="fan",state="neighbour"} 1`,
		`fastrelay_next_hops_missing{relay="fan"} 1`,
		`fastrelay_groups{relay="fan",group="subs"} 1`, `fastrelay_groups_limit{relay="fan",group="subs"} 4`,
		`fastrelay_receivers{relay="fan",group="subs"} 2`, `fastrelay_receivers_limit{relay="fan",group="subs"} 128`,
		`fastrelay_events_lost_total{relay="fan",event="made"} 0`, `fastrelay_events_waiting_bytes{relay="fan"} 48`,
		`fastrelay_events_ring_bytes{relay="fan"} 65536`,
		`fastrelay_receiver_packets_total{relay="fan",group="subs",key="id=0x7",receiver="1"} 1`,
		`fastrelay_receiver_bytes_total{relay="fan",group="subs",key="id=0x7",receiver="1"} 60`,
		`fastrelay_receiver_declined_total{relay="fan",group="subs",key="id=0x7",receiver="2"} 1`,
		`fastrelay_receiver_failed_total{relay="fan",group="subs",key="id=0x7",receiver="2"} 0`,
		`fastrelay_receiver_refused_total{relay="fan",group="subs",key="id=0x7",receiver="2",` +
			`credit="credit",level="1"} 0`,
	} {
		if !strings.Contains(b.String(), want+"\n") {
			t.Errorf("no %s in\n%s", want, b.String())
		}
	}
}

// An interface that has gone is shown as one that isn't attached, until there is one of that name again.
func TestLostInterface(t *testing.T) {
	needs.Root(t)
	host, err := testnet.Start(t).Host("relay")
	if err != nil {
		t.Fatal(err)
	}
	add := func() {
		t.Helper()
		if err := host.Run("ip", "link", "add", "in0", "type", "veth", "peer", "name", "out0"); err != nil {
			t.Fatal(err)
		}
	}
	add()
	desc := &abi.Desc{
		Name: "relay",
		Programs: []abi.Program{
			{Name: "p", Hook: abi.HookIngress, Reasons: []abi.Reason{{Name: "seen", Kind: abi.ReasonPunted}}},
		},
		Counters: []string{"hits"},
	}
	var r *runtime.Relay
	o := object(t)
	if err := host.Do(func() (err error) {
		r, err = runtime.Load(desc, o, runtime.Options{Logger: slog.New(slog.DiscardHandler)})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Program("p").Attach("in0"); err != nil {
		t.Fatal(err)
	}
	shows := func(n int) {
		t.Helper()
		want := fmt.Sprintf(`fastrelay_attached{relay="relay",program="p",interface="in0",how="tcx"} %d`, n)
		var b strings.Builder
		if err := testnet.Until(10*time.Second, want, func() bool {
			b.Reset()
			return Write(&b, r) == nil && strings.Contains(b.String(), want+"\n")
		}); err != nil {
			t.Fatalf("%v, in\n%s", err, b.String())
		}
	}
	shows(1)
	if err := host.Run("ip", "link", "del", "in0"); err != nil {
		t.Fatal(err)
	}
	shows(0)
	add()
	shows(1)
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
