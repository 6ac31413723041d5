//go:build linux

package glue_test

import (
	"net"
	"net/netip"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// Programs on all processors and goroutines charge one credit and one bucket at once, far beyond what they cover, while
// another goroutine reads them: no packet is refused, and no charge is lost. Time repays the bucket's debt.
func TestOverdraft(t *testing.T) {
	needs.Root(t)
	built, list, err := build.Spec(t.Context(), "../../golden/overdraft/spec.cue", build.Options{})
	if err != nil || list.Len() > 0 {
		t.Fatal(err, list)
	}
	desc := glue.Desc(built.Plan)
	relay, err := runtime.Load(&desc, built.Object(), runtime.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	client, server := netip.MustParseAddrPort("198.51.100.7:40001"), netip.MustParseAddrPort("192.0.2.1:7000")
	flows := relay.Table("flows")
	if err := flows.Put([]any{client}, []any{nil, nil, nil, nil, nil}); err != nil {
		t.Fatal(err)
	}
	row := must(flows.Get(client))
	volume, rate, beyond := row[0].(*runtime.Credit), row[1].(*runtime.Bucket), row[2].(*runtime.Counter)
	const limit, burst = 1000, 100
	volume.SetLimit(limit)
	rate.SetRate(runtime.Rate{PerSecond: 1, Burst: burst}) // so slow that hardly anything refills while the test runs
	mac := make(net.HardwareAddr, 6)
	frame, err := turnlab.UDPFrame(mac, mac, client, server, []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	const runs, batch, user = 20, 5000, 100_000
	began := time.Now()
	var stop atomic.Bool
	var reader, writers sync.WaitGroup
	reader.Go(func() {
		var last, debt uint64
		for !stop.Load() {
			spent, owed := volume.Spent(), rate.Debt()+2+uint64(time.Since(began).Seconds())
			if spent < last || owed < debt {
				t.Errorf("spent %d after %d, debt %d after %d", spent, last, owed, debt)
			}
			last, debt = spent, rate.Debt()
		}
	})
	errs := make(chan error, 2*goruntime.NumCPU())
	for i := range cap(errs) {
		writers.Go(func() {
			goruntime.LockOSThread() // and never unlocked: the thread ends with its processor
			var set unix.CPUSet
			set.Set(i / 2)
			_ = unix.SchedSetaffinity(0, &set)
			for range runs {
				if _, err := bpftest.Run(relay.Program("meter").Kernel(), ebpf.RunOptions{
					Data: frame, Repeat: batch,
				}); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	for range 2 {
		writers.Go(func() {
			for range user {
				if err := volume.Charge(3); err != nil {
					t.Error(err)
				}
				if err := rate.Charge(1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	stop.Store(true)
	reader.Wait()
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
	packets := uint64(cap(errs) * runs * batch)
	for i, count := range must(relay.Program("meter").Counts()) {
		name := relay.Program("meter").Desc().Reasons[i].Name
		if name == "pass" && count.Packets != packets || name != "pass" && count.Packets > 0 {
			t.Errorf("%s: %d of %d packets", name, count.Packets, packets)
		}
	}
	if want := packets*5 + 2*user*3; volume.Spent() != want || volume.Debt() != want-limit || volume.Available() != 0 {
		t.Errorf("%v, debt %d: want %d spent", volume, volume.Debt(), want)
	}
	if n := beyond.Load(); n == 0 || n > packets {
		t.Errorf("%d of %d packets were beyond the limit", n, packets)
	}
	debt := rate.Debt()
	refilled := uint64(time.Since(began).Seconds()) + 2
	if want := packets + 2*user - burst; debt > want || debt+refilled < want || rate.Available() != 0 {
		t.Errorf("debt %d, want %d less what %d seconds have repaid", debt, want, refilled)
	}
	volume.Refund(packets*5 + 2*user*3 - limit - 5)
	if volume.Debt() != 5 {
		t.Errorf("debt %d after a refund", volume.Debt())
	}
	volume.SetLimit(limit + 25)
	if volume.Debt() != 0 || volume.Available() != 20 {
		t.Errorf("debt %d, %d available after the limit was raised", volume.Debt(), volume.Available())
	}
	// Time repays: a new row's bucket, whose debt is 50.
	if err := flows.Delete(client); err != nil {
		t.Fatal(err)
	}
	if volume.Charge(1) != runtime.ErrClosed || rate.Charge(1) != runtime.ErrClosed || volume.Debt()+rate.Debt() != 0 {
		t.Error("what is gone is charged")
	}
	if err := flows.Put([]any{client}, []any{nil, nil, nil, nil, nil}); err != nil {
		t.Fatal(err)
	}
	rate = must(flows.Get(client))[1].(*runtime.Bucket)
	if err := rate.Charge(1); err != nil || rate.Debt() != 0 {
		t.Errorf("a bucket without a rate: %v, debt %d", err, rate.Debt())
	}
	rate.SetRate(runtime.Rate{PerSecond: 1000, Burst: 10})
	began = time.Now()
	if err := rate.Charge(60); err != nil {
		t.Fatal(err)
	}
	if rate.Spend(1) != runtime.ErrRefused && time.Since(began) < 50*time.Millisecond {
		t.Error("a bucket in debt admits")
	}
	for rate.Debt() > 0 {
		goruntime.Gosched()
	}
	if took := time.Since(began); took < 49*time.Millisecond {
		t.Errorf("a debt of 50 at 1000 a second is repaid in %v", took)
	}
}
