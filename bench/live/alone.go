package live

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/testrun"
)

const runsPerTry = 4_000

// What the kernel's measuring takes by itself: programs that do nothing. It is taken off.
const (
	nothingTC  Variant = "nothing, TC"
	nothingXDP Variant = "nothing, XDP"
)

// programs are the variants of programs alone.
var programs = []Variant{TC, XDP, All, Checks, Lean, Routes}

// net takes off what measuring takes.
func net(ns map[Variant]float64) map[Variant]float64 {
	for _, v := range programs {
		if v == TC {
			ns[v] -= ns[nothingTC]
		} else {
			ns[v] -= ns[nothingXDP]
		}
	}
	delete(ns, nothingTC)
	delete(ns, nothingXDP)
	return ns
}

// meter is what the kernel's statistics say of a program since a moment.
type meter struct {
	program *ebpf.Program
	before  *ebpf.ProgramStats
}

func newMeter(p *ebpf.Program) (m meter, err error) {
	m.program = p
	m.before, err = p.Stats()
	return m, err
}

// read returns the time of a run, in ns: the mean.
func (m meter) read() (float64, error) {
	now, err := m.program.Stats()
	if err != nil {
		return 0, err
	}
	runs := now.RunCount - m.before.RunCount
	if runs == 0 {
		return 0, errors.New("the program didn't run")
	}
	return float64(now.Runtime-m.before.Runtime) / float64(runs), nil
}

func enableStats() (io.Closer, error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return nil, fmt.Errorf("the kernel's statistics of BPF programs: %w", err)
	}
	return stats, nil
}

// inPlace has the kernel measure each run of the programs on live frames. At XDP that is the source's run, with the
// program that it goes on to, less the source's alone; at TC the program's, less that of one in front of it which does
// nothing.
func (l *lab) inPlace(t *traffic, rounds int) (ns map[Variant]float64, err error) {
	front, err := nothing(nothingTC)
	if err != nil {
		return nil, err
	}
	defer front.Close()
	var at link.Link
	if err := l.line.Relay.Do(func() (err error) {
		at, err = link.AttachTCX(link.TCXOptions{
			Interface: l.device(t.Direction).Index, Program: front, Attach: ebpf.AttachTCXIngress, Anchor: link.Head(),
		})
		return err
	}); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, at.Close()) }()
	stats, err := enableStats()
	if err != nil {
		return nil, err
	}
	defer stats.Close()
	ns, err = alternate(slices.Concat(programs, []Variant{nothingTC, nothingXDP}), rounds,
		func(v Variant) (float64, error) {
			who, measured := v, l.ends.collection.Programs["to_xdp"]
			switch v {
			case TC:
				measured = l.tc[t.Direction].Kernel()
			case nothingTC:
				who, measured = TC, front
			case nothingXDP:
				who, measured = Nothing, l.ends.collection.Programs["to_nothing"]
			}
			m, err := newMeter(measured)
			if err != nil {
				return 0, err
			}
			if _, err := l.run(who, t, framesPerTry, 0); err != nil {
				return 0, err
			}
			return m.read()
		})
	return net(ns), err
}

// subject is a program that runs on a frame, one a call.
type subject struct {
	program *ebpf.Program
	verdict uint32
	context any
}

// Verdicts of a packet that is sent, and of programs that do nothing.
const (
	xdpRedirect = 4
	tcRedirect  = 7
	xdpPass     = 2
	tcNext      = 0xFFFFFFFF // TCX_NEXT
)

// alone measures the programs on a frame that is new at each call (BPF_PROG_TEST_RUN), as the bench's part "kernel"
// does: a system call lies between two runs, and the processor has forgotten much of the program.
func (l *lab) alone(t *traffic, rounds int) (map[Variant]float64, error) {
	subjects, err := l.subjects(t)
	if err != nil {
		return nil, err
	}
	for v := range subjects {
		if v == nothingTC || v == nothingXDP {
			defer subjects[v].program.Close()
		}
	}
	stats, err := enableStats()
	if err != nil {
		return nil, err
	}
	defer stats.Close()
	out := make([]byte, largest)
	ns, err := alternate(slices.Concat(programs, []Variant{nothingTC, nothingXDP}), rounds,
		func(v Variant) (took float64, err error) {
			err = l.line.Relay.Do(func() (err error) {
				took, err = subjects[v].measure(t.in[0], out)
				return err
			})
			if err != nil {
				return 0, fmt.Errorf("%s, %s: %w", v, t, err)
			}
			return took, nil
		})
	return net(ns), err
}

func (l *lab) subjects(t *traffic) (map[Variant]*subject, error) {
	atXDP := xdpContext{DataEnd: uint32(len(t.in[0])), Ingress: uint32(l.device(t.Direction).Index)}
	atTC := testrun.OnDevice(l.device(t.Direction).Index)
	all := map[Variant]*subject{
		TC:  {l.tc[t.Direction].Kernel(), tcRedirect, atTC},
		XDP: {l.xdp[t.Direction], xdpRedirect, atXDP},
	}
	for _, v := range []Variant{All, Checks, Lean, Routes} {
		all[v] = &subject{l.hand.Program(steps[v], t.Direction), xdpRedirect, atXDP}
	}
	for v, s := range map[Variant]*subject{nothingTC: {nil, tcNext, atTC}, nothingXDP: {nil, xdpPass, atXDP}} {
		var err error
		if s.program, err = nothing(v); err != nil {
			return nil, err
		}
		all[v] = s
	}
	return all, nil
}

// nothing loads a program that does nothing.
func nothing(v Variant) (*ebpf.Program, error) {
	kind, verdict := ebpf.XDP, int32(xdpPass)
	if v == nothingTC {
		kind, verdict = ebpf.SchedCLS, -1
	}
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "nothing", Type: kind, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()},
	})
}

// measure returns the mean of many runs, in ns, all of which have to end as expected.
func (s *subject) measure(frame, out []byte) (float64, error) {
	m, err := newMeter(s.program)
	if err != nil {
		return 0, err
	}
	for range runsPerTry {
		verdict, err := s.run(frame, out)
		if err != nil {
			return 0, err
		}
		if verdict != s.verdict {
			return 0, fmt.Errorf("verdict %d, not %d", verdict, s.verdict)
		}
	}
	return m.read()
}

func (s *subject) run(frame, out []byte) (verdict uint32, err error) {
	return s.program.Run(&ebpf.RunOptions{Data: frame, DataOut: out, Context: s.context})
}
