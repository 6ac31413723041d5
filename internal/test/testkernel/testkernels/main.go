// Command testkernels tests all relays of this module on this machine's kernel and on Debian's, in emulated machines:
//
//	go run ./internal/test/testkernel/testkernels [-kernels bullseye,arm64] [-relays examples/turn] [-packets N]
//
// Kernels of two architectures are among Debian's: amd64 and, as "arm64", bookworm's for arm64. As many run at a
// time as there are processors. It needs root for this machine's kernel, and the Debian mirror of this machine's
// apt. Kernels are kept in .cache, or where FASTRELAY_CACHE says. What programs cost in the verifier is compared
// with golden/budget.txt, unless only some relays are tested; FASTRELAY_UPDATE=1 records what was tested. After a
// failure the folder fastrelay-failure-NAME has the console and the report.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/test/testkernel"
)

// thisMachine is the name of this machine's kernel among the others.
const thisMachine = "here"

// budgetFile is what programs may cost, relative to the module's root.
const budgetFile = "golden/budget.txt"

func main() {
	names := []string{thisMachine}
	for _, s := range testkernel.Sources {
		names = append(names, s.Name)
	}
	kernels := flag.String("kernels", strings.Join(names, ","), "which kernels to test")
	relays := flag.String("relays", everyRelay, "which relays to test: folders of the module, with *")
	packets := flag.Int("packets", 1000, "random packets for each relay on each kernel")
	limit := flag.Duration("limit", 25*time.Minute, "how long a kernel may take")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	r := &run{
		out: os.Stdout, names: strings.Split(*kernels, ","), only: strings.Split(*relays, ","),
		packets: *packets, limit: *limit, measured: testkernel.Budget{},
	}
	if err := r.all(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "testkernels:", err)
		os.Exit(1)
	}
}

type run struct {
	out     io.Writer
	names   []string
	only    []string // patterns of relays
	packets int
	limit   time.Duration

	root   string // of the module
	cache  string
	work   string // folder of this run
	relays string // folder
	keys   *keys

	mu       sync.Mutex // kernels run side by side
	measured testkernel.Budget
	failures int
}

func (r *run) all(ctx context.Context) error {
	if err := r.check(); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "testkernels-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	r.work, r.relays = work, filepath.Join(work, "relays")
	for _, arch := range r.archs() {
		if err := testkernel.BuildGuest(ctx, filepath.Join(r.root, guest), arch, r.guest(arch)); err != nil {
			return err
		}
	}
	plans, err := buildRelays(ctx, r.root, r.relays, r.only)
	if err != nil {
		return err
	}
	if r.keys, err = newKeys(ctx, r.root, r.relays, plans); err != nil {
		return err
	}
	if err := r.kernels(ctx); err != nil {
		return err
	}
	if err := r.budget(); err != nil {
		return err
	}
	if r.failures > 0 {
		return fmt.Errorf("%d failures", r.failures)
	}
	return nil
}

// archs returns the architectures of the kernels to test.
func (r *run) archs() []testkernel.Arch {
	var archs []testkernel.Arch
	for _, name := range r.names {
		arch := testkernel.Arch(runtime.GOARCH)
		if s, ok := source(name); ok {
			arch = s.Arch
		}
		if !slices.Contains(archs, arch) {
			archs = append(archs, arch)
		}
	}
	return archs
}

// guest returns the guest's binary for an architecture.
func (r *run) guest(arch testkernel.Arch) string { return filepath.Join(r.work, "guest-"+string(arch)) }

// kernels tests all kernels, as many at a time as there are processors: an emulated machine keeps one busy. It
// prints each result as it comes.
func (r *run) kernels(ctx context.Context) error {
	var all sync.WaitGroup
	free := make(chan struct{}, runtime.NumCPU())
	for _, name := range r.names {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			if ctx.Err() != nil {
				return
			}
			start := time.Now()
			report, err := r.kernel(ctx, name)
			if ctx.Err() == nil {
				r.summarise(name, report, err, time.Since(start))
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// check looks for wrong arguments before anything takes time.
func (r *run) check() error {
	for _, name := range r.names {
		if _, ok := source(name); !ok && name != thisMachine {
			return fmt.Errorf("there is no kernel %q", name)
		}
	}
	if os.Geteuid() != 0 {
		return errors.New("loading programs into this machine's kernel, and cables between emulated devices, " +
			"take root (sudo make test-kernels)")
	}
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/fastrelay/fastrelay-gen").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	r.root = strings.TrimSpace(string(out))
	if r.cache = os.Getenv("FASTRELAY_CACHE"); r.cache == "" {
		r.cache = filepath.Join(r.root, ".cache")
	}
	return nil
}

func source(name string) (testkernel.Source, bool) {
	i := slices.IndexFunc(testkernel.Sources, func(s testkernel.Source) bool { return s.Name == name })
	if i < 0 {
		return testkernel.Source{}, false
	}
	return testkernel.Sources[i], true
}

// kernel tests one kernel.
func (r *run) kernel(ctx context.Context, name string) (*testkernel.Report, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.limit, fmt.Errorf("the limit of %v is over", r.limit))
	defer cancel()
	if name == thisMachine {
		return r.keys.report(name, []string{"-packets", fmt.Sprint(r.packets)},
			func(relays string, args ...string) (*testkernel.Report, error) { return r.here(ctx, relays, args...) })
	}
	s, _ := source(name) // check has seen it
	packets := r.packets
	if s.Arch != testkernel.AMD64 {
		packets /= 5 // amd64 has all packets on the same kernel; only the JIT compiler differs
	}
	k, err := testkernel.Fetch(ctx, s, r.cache, r.say)
	if err != nil {
		return nil, err
	}
	machine := k.Release + " " + k.Version + " " + string(s.Arch)
	return r.keys.report(machine, []string{"-packets", fmt.Sprint(packets), "-whole"},
		func(relays string, args ...string) (*testkernel.Report, error) {
			return r.boot(ctx, k, relays, args...)
		})
}

// boot runs the guest in a machine with a kernel, on the relays in a folder.
func (r *run) boot(ctx context.Context, k *testkernel.Kernel, relays string, args ...string) (*testkernel.Report,
	error) {
	name := k.Source.Name
	image, err := testkernel.Pack(k, r.guest(k.Source.Arch), relays, append(args, "-root", testkernel.GuestRoot)...)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(r.root, "fastrelay-failure-"+name)
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
		return nil, err
	}
	report, err := testkernel.Boot(ctx, k, image, dir)
	if err == nil && !report.Failed() {
		return report, os.RemoveAll(dir)
	}
	return report, err
}

// here runs the guest's binary on this machine. It makes network namespaces of its own.
func (r *run) here(ctx context.Context, relays string, args ...string) (*testkernel.Report, error) {
	cmd := exec.CommandContext(ctx, r.guest(testkernel.Arch(runtime.GOARCH)), append(args, "-root", relays)...)
	var diagnostics bytes.Buffer
	cmd.Stderr = &diagnostics
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("the guest: %w: %s", err, &diagnostics)
	}
	return testkernel.ReadReport(bytes.NewReader(append(out, "{\"done\":true}\n"...))) // which init adds in a machine
}

// say prints a note on a slow step or a problem.
func (r *run) say(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintln(r.out, text)
}

// summarise prints a line for a kernel, and what failed there.
func (r *run) summarise(name string, report *testkernel.Report, err error, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	title := name
	if report != nil && report.Kernel != "" {
		title = fmt.Sprintf("Linux %s (%s)", report.Kernel, name)
	}
	verdict, counts := "ok  ", ""
	if report != nil {
		counts = report.Summary() + ", "
	}
	if err != nil || report == nil || report.Failed() {
		verdict = "FAIL"
	}
	fmt.Fprintf(r.out, "%s  %-43s %s%.0f s\n", verdict, title, counts, took.Seconds())
	if err != nil {
		r.failures++
		fmt.Fprintln(r.out, indent(err.Error()))
	}
	if report == nil {
		return
	}
	for _, l := range report.Lines {
		if l.Failed != "" {
			r.failures++
			fmt.Fprintln(r.out, indent(fmt.Sprintf("%s: %s: %s", l.Spec, l.Check, shorten(l.Failed))))
		}
	}
	costs, err := report.Costs()
	if err != nil {
		r.failures++
		fmt.Fprintln(r.out, indent(err.Error()))
	}
	for p, c := range costs {
		r.measured[p] = r.measured[p].Max(c) // of all kernels of a series
	}
}

func indent(text string) string {
	return "      " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n      ")
}

// shorten keeps the beginning and the end of a long text, such as a verifier's log; the report in the folder has
// all of it.
func shorten(text string) string {
	const head, tail = 12, 30
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) <= head+tail+1 {
		return text
	}
	cut := fmt.Sprintf("… %d lines …", len(lines)-head-tail)
	return strings.Join(slices.Concat(lines[:head], []string{cut}, lines[len(lines)-tail:]), "\n")
}

// budget compares what the programs of all relays cost with what is recorded, or records what those tested cost.
func (r *run) budget() error {
	every := slices.Contains(r.only, everyRelay)
	file := filepath.Join(r.root, budgetFile)
	budget := testkernel.Budget{}
	text, err := os.ReadFile(file)
	if err == nil {
		budget, err = testkernel.ParseBudget(string(text))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s: %w", budgetFile, err)
	}
	if os.Getenv("FASTRELAY_UPDATE") != "" {
		if r.failures > 0 {
			return fmt.Errorf("nothing is recorded: %d failures", r.failures)
		}
		if every {
			budget.Record(r.measured)
		} else {
			maps.Copy(budget, r.measured)
		}
		return os.WriteFile(file, []byte(budget.String()), 0o644)
	}
	if !every {
		return nil
	}
	faults, gains := budget.Compare(r.measured)
	r.failures += len(faults)
	for _, text := range faults {
		fmt.Fprintln(r.out, "WORSE", text)
	}
	for _, text := range gains {
		fmt.Fprintln(r.out, "better", text)
	}
	if len(faults)+len(gains) > 0 {
		fmt.Fprintf(r.out, "FASTRELAY_UPDATE=1 make test-kernels records this in %s\n", budgetFile)
	}
	return nil
}
