package cli

import (
	"io"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// runStats has the kernel measure how long programs run, for as long as it is open.
type runStats struct {
	on   io.Closer // nil: this user may not
	mu   sync.Mutex
	last map[uint32]ebpf.ProgramStats
}

func openRunStats() *runStats {
	on, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return &runStats{}
	}
	return &runStats{on: on, last: map[uint32]ebpf.ProgramStats{}}
}

func (s *runStats) close() {
	if s.on != nil {
		s.on.Close()
	}
}

// nanos returns how long each program took for a packet since the last call.
func (s *runStats) nanos(programs []api.Program) map[string]float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]float64{}
	for _, p := range programs {
		if s.on == nil || p.KernelID == 0 {
			continue
		}
		prog, err := ebpf.NewProgramFromID(ebpf.ProgramID(p.KernelID))
		if err != nil {
			continue // the relay has ended
		}
		now, err := prog.Stats()
		prog.Close()
		if err != nil {
			continue
		}
		if was, ok := s.last[p.KernelID]; ok && now.RunCount > was.RunCount {
			out[p.Name] = float64(now.Runtime-was.Runtime) / float64(now.RunCount-was.RunCount)
		}
		s.last[p.KernelID] = *now
	}
	return out
}
