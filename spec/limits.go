package spec

import (
	"context"
	"runtime/metrics"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Limits of what computing a spec may take. The examples take some 20 ms and 30 MB; a comprehension over a hundred
// million elements would take all that there is. Both are the whole process's.
const (
	maxTime   = 10 * time.Second // CPU time: a machine that is busy with something else may take longer
	maxMemory = 1 << 30          // bytes
	glance    = 5 * time.Millisecond
)

// LoadWithin is [Load] within limits of time and memory, for untrusted text. A spec that exceeds them is a
// mistake like any other. CUE's evaluator can't be interrupted: then, and when ctx ends, it is left running, and the
// process should end soon.
func LoadWithin(ctx context.Context, file string, src []byte) (*Spec, *diag.List) {
	type result struct {
		spec  *Spec
		diags *diag.List
	}
	loaded := make(chan result, 1)
	go func() {
		s, diags := Load(file, src)
		loaded <- result{s, diags}
	}()
	tick := time.NewTicker(glance)
	defer tick.Stop()
	began := cpuTime()
	for {
		select {
		case r := <-loaded:
			return r.spec, r.diags
		case <-ctx.Done():
			return nil, exceeded(file, "computing the spec was interrupted")
		case <-tick.C:
			if cpuTime()-began > maxTime {
				return nil, exceeded(file, "computing the spec takes more than %v", maxTime)
			}
			if memory() > maxMemory {
				return nil, exceeded(file, "computing the spec takes more than %d MB of memory", maxMemory>>20)
			}
		}
	}
}

func exceeded(file, format string, args ...any) *diag.List {
	diags := &diag.List{}
	diags.Add(codeLimit, diag.Pos{File: file}, format, args...).
		WithHint("look for a comprehension, a disjunction or a recursive definition that grows")
	return diags
}

// memory is what the process has of the system now, stacks included: evaluating what is nested deeply grows the stack,
// and a stack that reaches Go's limit ends the process.
func memory() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}
