package specgen

import (
	"fmt"
	"os"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/spec"
)

func TestTry(t *testing.T) {
	codes := map[string]int{}
	n := 2000
	for seed := range uint64(n) {
		src := Generate(seed)
		func() {
			defer func() {
				if r := recover(); r != nil {
					codes["panic"]++
					t.Logf("seed %d: panic %v", seed, r)
				}
			}()
			s, d := spec.Load("spec.cue", src)
			if d.Len() > 0 {
				codes["load"]++
				if codes["load"] < 10 {
					t.Logf("seed %d: %v\n", seed, d.Err())
				}
				return
			}
			_, d = gen.Compile(s)
			if d.Len() > 0 {
				c := d.All()[0]
				codes[string(c.Code)]++
				if codes[string(c.Code)] < 10 {
					t.Logf("seed %d: %v\n", seed, c)
				}
				return
			}
			codes["ok"]++
		}()
	}
	t.Log(codes)
	if f := os.Getenv("SHOW"); f != "" {
		var seed uint64
		fmt.Sscan(f, &seed)
		t.Logf("%s", Generate(seed))
	}
}

func TestShow(t *testing.T) {
	var seed uint64
	fmt.Sscan(os.Getenv("SHOW"), &seed)
	fmt.Printf("%s", Generate(seed))
}
