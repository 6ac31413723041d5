package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/capture"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/interrupt"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/planfmt"
	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

type tryOptions struct {
	program, state, socket, out, name, format string
	kernel, quiet, write                      bool
	test                                      int
}

func (a *app) tryCommand() *cobra.Command {
	var opt tryOptions
	cmd := &cobra.Command{
		Use:   "try SPEC CAPTURE",
		Short: "Show what a program does with the packets of a capture",
		Long: `Reads a capture (pcap or pcapng, also compressed by gzip; - for standard input) and runs a program on
each packet, in the reference model: which packets it sends, drops or passes to the stack, under which reason, and what
it changes, field by field. With --kernel, each packet also runs in the kernel, with the compiled program (root), and
differences are errors. Nothing is sent.

The state before the first packet is that of the spec's tests: all their sessions, rows and groups, as far as they don't
contradict each other (--state TEST: those of one test; --socket: those of a running relay, with its settings). It
changes as packets come; time stands still. Every destination has a next hop, over an MTU of 1500 bytes, unless the
test of --state has a route. A unicast frame is for the device that it comes to.

Captures of Ethernet, of raw IP and of all devices at once (Linux "cooked", SLL and SLL2) are read; for those without a
link-layer header, one is made where the program's stack begins with it. A checksum that the sender left to its device
is completed, as on the wire. Packets of which the capture has only the first bytes don't run.

--test N writes packet N as a test: the state that it needs, the packet, and what the program does with it in the state
before the first packet. It prints the text, or appends it to the spec with -w.`,
		Example: `  fastrelay-gen try examples/turn/spec.cue --program to_peer capture.pcapng
  tcpdump -i eth0 -c 100 -U -w - udp | fastrelay-gen try spec.cue --program to_peer -
  sudo fastrelay-gen try spec.cue --program to_peer capture.pcapng --socket turn --kernel
  fastrelay-gen try spec.cue --program to_peer capture.pcapng --write out.pcapng && tshark -r out.pcapng
  fastrelay-gen try spec.cue --program to_peer capture.pcapng --test 17 -w`,
		Args: exactly("SPEC", "CAPTURE"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return specFiles(cmd, args, begun)
			case 1:
				return []string{"pcapng", "pcap", "cap", "gz"}, cobra.ShellCompDirectiveFilterFileExt
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.setFormat(opt.format); err != nil {
				return err
			}
			return a.try(cmd.Context(), args[0], args[1], opt)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opt.program, "program", "", "the program; not needed if the spec has only one")
	flags.StringVar(&opt.state, "state", "", "the test whose sessions, rows, groups and settings there are")
	flags.StringVarP(&opt.socket, "socket", "s", "", "take them from a running relay: its name, or its control socket")
	flags.BoolVar(&opt.kernel, "kernel", false, "run the packets in the kernel as well")
	flags.StringVar(&opt.out, "write", "", "write the packets that go on to this pcapng file")
	flags.IntVar(&opt.test, "test", 0, "write this packet as a test of the spec")
	flags.BoolVarP(&opt.write, "in-place", "w", false, "with --test: append the test to the spec")
	flags.StringVar(&opt.name, "name", "", "with --test: the name of the test")
	flags.BoolVarP(&opt.quiet, "quiet", "q", false, "only the summary")
	formatFlag(cmd, &opt.format)
	completeFlags(cmd, map[string]cobra.CompletionFunc{
		"program": named(programsOf), "state": named(testsOf), "socket": socketNames,
	})
	return cmd
}

func testsOf(s *spec.Spec) (names []spec.Name) {
	for _, t := range s.Tests {
		names = append(names, t.Name)
	}
	return names
}

func checkTryFlags(opt tryOptions) error {
	switch {
	case opt.state != "" && opt.socket != "":
		return usage("--state and --socket both say what the state is").hint("give one of them")
	case opt.test < 0:
		return usage("--test %d: packets are counted from 1", opt.test)
	case opt.test == 0 && (opt.write || opt.name != ""):
		return usage("-w and --name are for --test").see("fastrelay-gen try --help")
	case opt.test > 0 && (opt.kernel || opt.out != "" || opt.quiet):
		return usage("--test writes a test, and runs no other packet").hint("leave --kernel, --write and -q out")
	}
	return nil
}

func (a *app) try(ctx context.Context, file, from string, opt tryOptions) error {
	if err := checkTryFlags(opt); err != nil {
		return err
	}
	if opt.kernel {
		if err := kernelTests(); err != nil {
			return err
		}
	}
	r, program, err := a.tried(ctx, file, opt)
	if err != nil {
		return err
	}
	x, err := a.stateBefore(ctx, r, program, opt)
	if err != nil {
		return err
	}
	in := a.in
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return fileError(err)
		}
		defer f.Close()
		in = f
	}
	packets, err := capture.NewReader(in)
	if err != nil {
		return captureError(from, err)
	}
	t := &trial{app: a, ctx: ctx, opt: opt, r: r, x: x, file: file, from: from, counts: map[string]int{}}
	if opt.test > 0 {
		return t.writeTest(packets)
	}
	return t.run(packets)
}

// tried compiles a spec, and finds the program that runs.
func (a *app) tried(ctx context.Context, file string, opt tryOptions) (*build.Result, *spec.Program, error) {
	var r *build.Result
	var err error
	if opt.kernel {
		r, err = a.compile(ctx, file, build.Options{})
	} else {
		r, err = a.plan(ctx, file)
	}
	if err != nil {
		return nil, nil, err
	}
	var names []string
	for _, p := range r.Spec.Programs {
		names = append(names, p.Name.Value)
		if p.Name.Value != opt.program && (opt.program != "" || len(r.Spec.Programs) > 1) {
			continue
		}
		if p.Hook == ir.Congestion {
			return nil, nil, &diag.Diagnostic{Code: codeUnknown,
				Message: fmt.Sprintf("program %q runs on TCP sockets, not on packets", p.Name.Value)}
		}
		return r, p, nil
	}
	if opt.program == "" {
		return nil, nil, usage("the spec has %s, and --program says which one runs", plural(len(names), "program")).
			hint("--program %s", strings.Join(names, ", --program "))
	}
	return nil, nil, unknown("program", opt.program, names)
}

// stateBefore makes the state before the first packet.
func (a *app) stateBefore(ctx context.Context, r *build.Result, p *spec.Program, opt tryOptions) (*spectest.Trial,
	error) {
	switch {
	case opt.socket != "":
		l, err := a.find(ctx, opt.socket)
		if err != nil {
			return nil, err
		}
		defer l.client.Close()
		before, err := l.stateOf(r.Spec, p.Name)
		if err != nil {
			return nil, err
		}
		x, diags := spectest.Begin(r.Spec, r.Plan, before)
		if diags.Len() > 0 {
			return nil, &diag.Diagnostic{Code: codeRelay,
				Message: fmt.Sprintf("the relay's state isn't that of this spec: %s", diags.All()[0].Message),
				Hint:    "take the spec that the relay was built from"}
		}
		return x, nil
	case opt.state != "":
		var names []string
		for _, t := range r.Spec.Tests {
			names = append(names, strconv.Quote(t.Name.Value))
			if t.Name.Value == opt.state {
				one := *t
				one.Program = p.Name
				x, diags := spectest.Begin(r.Spec, r.Plan, &one)
				return x, diags.Err()
			}
		}
		return nil, unknown("test", opt.state, names)
	}
	x, diags := spectest.BeginTogether(r.Spec, r.Plan, p.Name)
	return x, diags.Err()
}

func captureError(file string, err error) error {
	var cut *capture.TruncatedError
	d := &diag.Diagnostic{Code: codeCapture, Message: fmt.Sprintf("%s: %s", file, err)}
	switch {
	case errors.As(err, &cut):
		d.Hint = "the packets before it are whole"
	case errors.Is(err, capture.ErrFormat):
		d.Hint = "write one with tcpdump -w, dumpcap or Wireshark"
	default:
		return err
	}
	return d
}

// trial runs the packets of a capture.
type trial struct {
	*app
	ctx        context.Context
	opt        tryOptions
	r          *build.Result
	x          *spectest.Trial
	file, from string
	out        *capture.Writer
	beside     *spectest.Beside

	packets, skipped, differs, unseen, completed int

	counts map[string]int // by verdict and reason
}

// tryPacket is what `try` prints for machines, one for each packet and line.
type tryPacket struct {
	Packet  int             `json:"packet"`
	Verdict string          `json:"verdict"` // "sent", "pass", "drop", "up", or "not run"
	Reason  string          `json:"reason,omitempty"`
	Why     string          `json:"why,omitempty"`
	Line    int             `json:"line,omitempty"` // of the spec
	Changes []packet.Change `json:"changes,omitempty"`
	Copies  []tryCopy       `json:"copies,omitempty"`
	Events  []tryEvent      `json:"events,omitempty"`
	Kernel  []string        `json:"kernel_differs,omitempty"`
	Unseen  string          `json:"not_in_kernel,omitempty"` // why
}

type tryCopy struct {
	Receiver int             `json:"receiver"`
	Sent     bool            `json:"sent"`
	Reason   string          `json:"reason,omitempty"`
	Changes  []packet.Change `json:"changes,omitempty"`
}

type tryEvent struct {
	Event    string            `json:"event,omitempty"` // "": it is about a copy
	Receiver *int              `json:"receiver,omitempty"`
	Fields   map[string]string `json:"fields"`
	Copies   []tryEvent        `json:"copies,omitempty"`
}

func newTryEvent(e *spectest.EventFate) tryEvent {
	one := tryEvent{Event: e.Name, Fields: map[string]string{}}
	if e.Receiver >= 0 {
		one.Receiver = &e.Receiver
	}
	for _, v := range e.Fields {
		one.Fields[v.Name] = v.Text
	}
	for i := range e.Copies {
		one.Copies = append(one.Copies, newTryEvent(&e.Copies[i]))
	}
	return one
}

func (t *trial) run(packets *capture.Reader) (err error) {
	if t.opt.kernel {
		if t.beside, err = t.x.InKernel(t.r.Object()); err != nil {
			return runError(t.r.Explain(err))
		}
		defer func() { err = errors.Join(err, t.beside.Close()) }()
	}
	if t.opt.out != "" {
		closeOut, err := t.create()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, closeOut()) }()
	}
	for t.ctx.Err() == nil {
		p, err := packets.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return errors.Join(t.summary(), captureError(t.from, err))
		}
		if err := t.one(p); err != nil {
			return fmt.Errorf("packet %d: %w", p.Number, err)
		}
	}
	if err := t.summary(); err != nil {
		return err
	}
	if t.differs > 0 {
		return exit(statusError)
	}
	return t.ctx.Err()
}

// create makes the file of --write.
func (t *trial) create() (func() error, error) {
	defer interrupt.Hold(t.ctx)()
	f, err := os.Create(t.opt.out)
	if err != nil {
		return nil, err
	}
	t.out, err = capture.NewWriter(f, t.x.Program().L2, "sent", "copies", "stack")
	if err == nil {
		err = t.out.Flush()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f.Close, nil
}

func (t *trial) one(p *capture.Packet) error {
	t.packets++
	in, err := p.For(t.x.Program().L2)
	if p.Cut() && err == nil {
		err = fmt.Errorf("the capture has %d of its %d bytes", len(p.Data), p.Length)
	}
	if err != nil {
		t.skipped++
		return t.show(p, &tryPacket{Packet: p.Number, Verdict: "not run", Why: err.Error()}, nil)
	}
	out := &tryPacket{Packet: p.Number}
	if t.x.Complete(&in) {
		t.completed++
	}
	var f *spectest.Fate
	if t.beside != nil {
		f, out.Kernel, out.Unseen, err = t.beside.Run(in)
	} else {
		f, err = t.x.Run(in)
	}
	if err != nil {
		return err
	}
	if len(out.Kernel) > 0 {
		t.differs++
	}
	if out.Unseen != "" {
		t.unseen++
	}
	out.fill(f)
	t.counts[out.title()]++
	if err := t.writeOut(p, f); err != nil {
		return err
	}
	return t.show(p, out, f)
}

// fill makes of a fate what is printed.
func (o *tryPacket) fill(f *spectest.Fate) {
	o.Verdict, o.Reason, o.Changes = string(f.Verdict), f.Reason, f.Changes
	if f.Why != nil {
		o.Why, o.Line = f.Why.Doc, f.Why.Pos.Line
		if spec.Source(f.Why.Pos.File) != nil {
			o.Line = 0 // in a standard header
		}
	}
	for _, c := range f.Copies {
		one := tryCopy{Receiver: c.Place, Sent: c.Sent, Changes: c.Changes}
		if !c.Sent {
			one.Reason = c.Reason
		}
		o.Copies = append(o.Copies, one)
	}
	for i := range f.Events {
		o.Events = append(o.Events, newTryEvent(&f.Events[i]))
	}
}

// title is a packet's verdict and its reason.
func (o *tryPacket) title() string {
	if o.Reason == "" || o.Reason == o.Verdict {
		return o.Verdict
	}
	return o.Verdict + ": " + o.Reason
}

// writeOut writes a packet whole, or not at all: the file can be read at any time.
func (t *trial) writeOut(p *capture.Packet, f *spectest.Fate) error {
	if t.out == nil {
		return nil
	}
	defer interrupt.Hold(t.ctx)()
	comment := fmt.Sprintf("packet %d: %s", p.Number, planfmt.Verdict(string(f.Verdict)))
	if f.Reason != "" && f.Reason != string(f.Verdict) {
		comment += " (" + f.Reason + ")"
	}
	for _, c := range f.Copies {
		if c.Sent {
			what := fmt.Sprintf("packet %d: copy for receiver %d", p.Number, c.Place)
			if err := t.out.Write("copies", p.Time, c.Packet, what); err != nil {
				return err
			}
		}
	}
	name := "stack"
	if f.Verdict == sim.VerdictSent {
		name = "sent"
	}
	if f.Verdict != sim.VerdictDrop {
		if err := t.out.Write(name, p.Time, f.Packet, comment); err != nil {
			return err
		}
	}
	return t.out.Flush()
}

// show prints a packet.
func (t *trial) show(p *capture.Packet, o *tryPacket, f *spectest.Fate) error {
	if t.opt.format == "json" {
		if t.opt.quiet {
			return nil
		}
		enc := json.NewEncoder(t.app.out)
		enc.SetEscapeHTML(false)
		return enc.Encode(o)
	}
	if t.opt.quiet && len(o.Kernel) == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%5d  %-13s", o.Packet, planfmt.Verdict(o.Verdict))
	if o.Reason != "" && o.Reason != o.Verdict {
		fmt.Fprintf(&b, " %s", o.Reason)
	}
	if o.Why != "" && o.Why != o.Reason {
		fmt.Fprintf(&b, " (%s)", o.Why)
	}
	if o.Line > 0 {
		fmt.Fprintf(&b, "  %s:%d", filepath.ToSlash(t.file), o.Line)
	}
	b.WriteByte('\n')
	changes := func(indent string, all []packet.Change) {
		for _, c := range all {
			fmt.Fprintf(&b, "%s%s\n", indent, c)
		}
	}
	changes("         ", o.Changes)
	for _, c := range o.Copies {
		if c.Sent {
			fmt.Fprintf(&b, "         copy for receiver %d\n", c.Receiver)
			changes("           ", c.Changes)
		} else {
			fmt.Fprintf(&b, "         no copy for receiver %d: %s\n", c.Receiver, c.Reason)
		}
	}
	if f != nil {
		told := func(e *spectest.EventFate) string {
			var fields []string
			for _, v := range e.Fields {
				fields = append(fields, v.Name+" "+v.Text)
			}
			return strings.Join(fields, ", ")
		}
		for _, e := range f.Events {
			fmt.Fprintf(&b, "         event %s: %s\n", e.Name, told(&e))
			for _, c := range e.Copies {
				fmt.Fprintf(&b, "           copy for receiver %d: %s\n", c.Receiver, told(&c))
			}
		}
	}
	for _, d := range o.Kernel {
		fmt.Fprintf(&b, "         KERNEL DIFFERS: %s\n", d)
	}
	if o.Unseen != "" {
		fmt.Fprintf(&b, "         not run in the kernel: %s\n", o.Unseen)
	}
	_, err := io.WriteString(t.app.out, b.String())
	return err
}

// trySummary is the last line of what `try` prints for machines.
type trySummary struct {
	Packets   int            `json:"packets"`
	NotRun    int            `json:"not_run"`
	Differ    int            `json:"kernel_differs"`
	ModelOnly int            `json:"not_in_kernel"`
	Completed int            `json:"checksums_completed"`
	Counts    map[string]int `json:"counts"` // by verdict and reason
}

func (t *trial) summary() error {
	if t.opt.format == "json" {
		s := trySummary{t.packets, t.skipped, t.differs, t.unseen, t.completed, t.counts}
		return json.NewEncoder(t.app.out).Encode(map[string]trySummary{"summary": s})
	}
	var all []string
	for what, n := range t.counts {
		verdict, _, _ := strings.Cut(what, ":")
		all = append(all, fmt.Sprintf("%8d %s%s", n, planfmt.Verdict(verdict), what[len(verdict):]))
	}
	slices.SortFunc(all, func(a, b string) int { return strings.Compare(b, a) })
	if t.skipped > 0 {
		all = append(all, fmt.Sprintf("%8d not run", t.skipped))
	}
	where := "the model"
	if t.beside != nil {
		where = fmt.Sprintf("the model and the kernel: %d differ", t.differs)
		if t.unseen > 0 {
			where += fmt.Sprintf(", %d ran in the model only", t.unseen)
		}
	}
	if t.completed > 0 {
		all = append(all, fmt.Sprintf("%8d had a checksum that the sender left to its device: completed", t.completed))
	}
	_, err := fmt.Fprintf(t.app.out, "%s, %s, in %s\n%s", plural(t.packets, "packet"), t.x.Program().Name, where,
		joined(all))
	return err
}

func joined(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return strings.Join(all, "\n") + "\n"
}

// writeTest writes one of the packets as a test.
func (t *trial) writeTest(packets *capture.Reader) error {
	var p *capture.Packet
	for n := 0; n < t.opt.test; n++ {
		var err error
		if p, err = packets.Next(); errors.Is(err, io.EOF) {
			return usage("--test %d: the capture has %s", t.opt.test, plural(n, "packet"))
		} else if err != nil {
			return captureError(t.from, err)
		}
		if n+1 < t.opt.test { // the state changes, as for --write
			if in, err := p.For(t.x.Program().L2); err == nil && !p.Cut() {
				t.x.Complete(&in)
				if _, err := t.x.Run(in); err != nil {
					return fmt.Errorf("packet %d: %w", p.Number, err)
				}
			}
		}
	}
	in, err := p.For(t.x.Program().L2)
	if err == nil && p.Cut() {
		err = fmt.Errorf("the capture has %d of its %d bytes", len(p.Data), p.Length)
	}
	if err != nil {
		return &diag.Diagnostic{Code: codeNoTest, Message: fmt.Sprintf("packet %d: %s", p.Number, err)}
	}
	t.x.Complete(&in)
	name := t.opt.name
	if name == "" {
		name = fmt.Sprintf("packet %d of %s", p.Number, filepath.Base(t.from))
	}
	for _, other := range t.r.Spec.Tests {
		if other.Name.Value == name {
			return usage("the spec has a test %q already", name).hint("--name gives this one another name")
		}
	}
	source, err := os.ReadFile(t.file)
	if err != nil {
		return fileError(err)
	}
	text, f, err := spectest.Write(t.ctx, t.r.Spec, t.r.Plan, source, t.x.Before(), name, in)
	if err != nil {
		return &diag.Diagnostic{Code: codeNoTest, Message: fmt.Sprintf("packet %d: %s", p.Number, err)}
	}
	if now, err := t.x.Run(in); err == nil && (now.Verdict != f.Verdict || now.Reason != f.Reason) {
		fmt.Fprintf(t.app.err, "after the packets in front of it, packet %d is another case (%s, %s): a test begins "+
			"with the state before all packets\n", p.Number, planfmt.Verdict(string(now.Verdict)), now.Reason)
	}
	if !t.opt.write {
		_, err := io.WriteString(t.app.out, text)
		return err
	}
	end := "\n"
	if len(source) > 0 && source[len(source)-1] != '\n' {
		end = "\n\n"
	}
	if err := replace(t.ctx, t.file, slices.Concat(source, []byte(end), []byte(text))); err != nil {
		return err
	}
	fmt.Fprintf(t.app.out, "wrote test %q to %s\n", name, t.file)
	return nil
}
