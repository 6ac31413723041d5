package specgen_test

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/specgen"
)

var (
	flagSpecs   = flag.Int("specs", 500, "how many specs")
	flagSeed    = flag.Uint64("seed", 1, "the first spec's seed")
	flagPackets = flag.Int("packets", 1024, "packets for each spec")
	flagJobs    = flag.Int("jobs", 2, "specs at the same time")
	flagFound   = flag.String("found", "", "a folder for specs that fail; empty: they are only reported")
	flagKeep    = flag.Bool("keep", false, "don't stop at the first failures, and don't make them small")
	flagShow    = flag.Bool("show", false, "print the spec of the seed, and nothing else")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *flagShow {
		fmt.Printf("%s", specgen.Generate(*flagSeed))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A spec of a seed is always the same, and different seeds make different specs.
func TestReproducible(t *testing.T) {
	for seed := range uint64(50) {
		a, b := specgen.Generate(seed), specgen.Generate(seed)
		if !bytes.Equal(a, b) {
			t.Errorf("seed %d makes two specs", seed)
		}
		if bytes.Equal(a, specgen.Generate(seed+1)) {
			t.Errorf("seeds %d and %d make the same spec", seed, seed+1)
		}
	}
}

// Random specs compile, pass the verifier, and do in the kernel what they do in the model.
func TestSpecs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test runs programs in the kernel and needs root")
	}
	ctx := context.Background()
	tool, err := clang.Find(ctx)
	if err != nil {
		t.Fatal(err)
	}
	golang, err := specgen.NewGoChecker()
	if err != nil {
		t.Fatal(err)
	}
	p := &specgen.Pipeline{Tool: tool, Packets: *flagPackets, Go: golang}
	start := time.Now()
	var (
		mu       sync.Mutex
		refused  = map[string]int{}
		failures = map[string][]uint64{}
		done     int
		packets  int
		sent     int
		reached  float64
		next     atomic.Uint64
		wg       sync.WaitGroup
	)
	for range *flagJobs {
		wg.Go(func() {
			for {
				n := next.Add(1) - 1
				mu.Lock()
				enough := len(failures) >= 3 && !*flagKeep
				mu.Unlock()
				if n >= uint64(*flagSpecs) || enough {
					return
				}
				seed := *flagSeed + n
				src := specgen.Generate(seed)
				r := p.Run(ctx, src, seed)
				mu.Lock()
				switch {
				case r.Stage == specgen.Refused:
					refused[string(r.Code)]++
				case r.Failed():
					key := fmt.Sprintf("%s %s %s", r.Stage, r.Code, r.Essence())
					failures[key] = append(failures[key], seed)
					if len(failures[key]) == 1 {
						t.Errorf("seed %d: %s %s: %s", seed, r.Stage, r.Code, r.Text)
						mu.Unlock()
						save(t, p, src, seed, r)
						mu.Lock()
					}
				default:
					done++
					packets += r.Packets
					sent += r.Sent
					reached += r.Reached
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	total := 0
	for _, code := range slices.Sorted(func(yield func(string) bool) {
		for k := range refused {
			if !yield(k) {
				return
			}
		}
	}) {
		total += refused[code]
		t.Logf("refused %s: %d", code, refused[code])
	}
	keys := make([]string, 0, len(failures))
	for k := range failures {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Compare(len(failures[b]), len(failures[a])) })
	for _, k := range keys {
		t.Logf("%d × %s (seeds %v)", len(failures[k]), k, failures[k][:min(8, len(failures[k]))])
	}
	t.Logf("%d specs in %.0f s: %d compared on %d packets (%d sent, %.0f%% to the end of a rule), %d refused",
		next.Load()-uint64(*flagJobs), time.Since(start).Seconds(), done, packets, sent, 100*reached/float64(max(1, done)), total)
	if total*5 > *flagSpecs {
		t.Errorf("%d of %d specs are refused: more than a fifth", total, *flagSpecs)
	}
}

// save makes a failing spec small and saves it.
func save(t *testing.T, p *specgen.Pipeline, src []byte, seed uint64, r specgen.Result) {
	if *flagFound == "" {
		return
	}
	dir := filepath.Join(*flagFound, fmt.Sprintf("%s-%d", r.Stage, seed))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Error(err)
		return
	}
	small := specgen.Shrink(src, 600, func(text []byte) bool { return p.Run(context.Background(), text, seed).Same(r) })
	if last := p.Run(context.Background(), small, seed); last.Failed() {
		r = last
	}
	for name, text := range map[string][]byte{"spec.cue": small, "whole.cue": src, "log.txt": []byte(r.Log)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Error(err)
		}
	}
}
