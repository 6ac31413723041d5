package metrics

import (
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fastrelay/fastrelay-gen/runtime"
)

// object compiles a relay that counts every packet under its only reason.
func object(t *testing.T) []byte {
	t.Helper()
	const text = `
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct lease { __u64 deadline, now; };
struct count { __u64 packets, bytes; };
#define ARRAY(n, t, v, f) struct { __uint(type, t); __uint(map_flags, f); __uint(max_entries, 1); __type(key, __u32); __type(value, v); } n SEC(".maps")
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
	dir := t.TempDir()
	src, out := filepath.Join(dir, "p.c"), filepath.Join(dir, "p.o")
	if err := os.WriteFile(src, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if msg, err := exec.Command("clang-19", "-O2", "-g", "-target", "bpf", "-mcpu=v3", "-I/usr/include/x86_64-linux-gnu", "-c", src, "-o", out).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, msg)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestHandler(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test loads a program into the kernel: run it as root")
	}
	desc := &runtime.Desc{
		Name:     `odd "name\`,
		Programs: []runtime.ProgramDesc{{Name: "p", Hook: "tc/ingress", Reasons: []runtime.ReasonDesc{{Name: "seen", Kind: "up"}}}},
		Counters: []string{"hits"},
	}
	r, err := runtime.Load(desc, object(t), runtime.Options{Routes: func(from, to netip.Addr) runtime.Hop { return runtime.Hop{} }})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, _, err := r.Program("p").Kernel().Test(make([]byte, 60)); err != nil {
		t.Fatal(err)
	}
	rec := httptest.NewRecorder()
	Handler(r).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	want := `# HELP fastrelay_packets_total Packets by what became of them.
# TYPE fastrelay_packets_total counter
fastrelay_packets_total{relay="odd \"name\\",program="p",reason="seen",kind="up"} 1
# HELP fastrelay_bytes_total Bytes of the frames as they came.
# TYPE fastrelay_bytes_total counter
fastrelay_bytes_total{relay="odd \"name\\",program="p",reason="seen",kind="up"} 60
# HELP fastrelay_counter_total Named counters of the spec.
# TYPE fastrelay_counter_total counter
fastrelay_counter_total{relay="odd \"name\\",name="hits"} 2
`
	if diff := cmp.Diff(want, rec.Body.String()); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	if ct := rec.Header().Get("Content-Type"); !strings.HasPrefix(ct, "text/plain; version=0.0.4") {
		t.Errorf("content type %q", ct)
	}
	r.Close()
	rec = httptest.NewRecorder()
	Handler(r).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	if !strings.Contains(rec.Body.String(), `reason="seen",kind="up"} 0`) {
		t.Errorf("after Close: %s", rec.Body)
	}
}
