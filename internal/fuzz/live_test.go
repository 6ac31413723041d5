package fuzz_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/fuzz"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// livePackets is how many packets each spec is compared on, through each kind of device.
const livePackets = 600

// liveCorpus are the specs of the corpus that send no copies, and some that show what only devices know of a packet.
var liveCorpus = sync.OnceValue(func() []string {
	more, err := filepath.Glob("testdata/live/*/spec.cue")
	if err != nil {
		panic(err)
	}
	return append(more, corpus()...)
})

// The kernel and the model agree on packets that come in on real devices, and leave through real ones.
func TestLiveAgrees(t *testing.T) {
	needsRoot(t)
	files := liveCorpus()
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			if testrun.UsesCopies(planOf(t, file)) {
				return
			}
			c := compile(t, file)
			for _, offload := range []bool{true, false} {
				t.Run(fmt.Sprintf("offload %v", offload), func(t *testing.T) {
					config := fuzz.Config{Spec: c.spec, Plan: c.plan, Object: c.object, Seed: *flagSeed, Packets: livePackets}
					if *flagTime > 0 {
						config.Packets, config.Duration = 0, *flagTime/time.Duration(2*len(files))
					}
					r, err := fuzz.RunLive(context.Background(), config, offload)
					if err != nil {
						t.Fatal(err)
					}
					t.Logf("%d packets (%.0f a second), %d sent, %d passed, %d dropped, %d up; %d left a checksum, %d were super-packets; %d right behind the relay, %d not taken by the kernel",
						r.Packets, r.Rate(), r.Verdicts[sim.VerdictSent], r.Verdicts[sim.VerdictPass], r.Verdicts[sim.VerdictDrop], r.Verdicts[sim.VerdictUp],
						r.Pending, r.Super, r.Decoded, r.Refused)
					if r.Difference != nil {
						t.Fatalf("kernel and model differ: %s", r.Difference.Text)
					}
				})
			}
		})
	}
}
