package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/interrupt"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
)

func (a *app) run(ctx context.Context, file string, opt runOptions) error {
	if log := os.Getenv(detachedVar); log != "" {
		a.reopenLog(log)
		// It runs /proc/self/exe, and would be called "exe" by ps and pgrep.
		if err := os.WriteFile("/proc/self/comm", []byte("fastrelay-gen"), 0); err != nil {
			return err
		}
	}
	if err := checkTrafficFlags(opt); err != nil {
		return err
	}
	r, err := a.compile(ctx, file, build.Options{})
	if err != nil {
		return err
	}
	interrupt.Handle(ctx)
	if !a.machine {
		a.warn(r.Warnings)
	}
	desc := glue.Desc(r.Plan)
	var t *traffic
	if opt.traffic {
		if t, err = newTraffic(r, &opt); err != nil {
			return err
		}
	}
	in, err := parseRun(&desc, opt)
	if err != nil {
		return err
	}
	in.traffic = t
	if opt.events && len(desc.Events) == 0 {
		return usage("the spec has no events to print")
	}
	if opt.detach {
		opt.control = cmp.Or(opt.control, desc.Name)
		opt.pin = cmp.Or(opt.pin, pinFolder+"/"+desc.Name)
		if !detached() {
			return a.detach(ctx, &desc, &opt)
		}
	}
	if opt.grow && opt.pin == "" {
		return usage("--grow needs a relay that is pinned").hint("--pin says where").see("fastrelay-gen run --help")
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	// Where the output is a pipe that closes (run … | head), writing fails, and the relay is closed like any other
	// time.
	signal.Ignore(unix.SIGPIPE)
	options := runtime.Options{
		Settings: in.settings,
		PinPath:  opt.pin,
		Grow:     opt.grow,
		Lease:    opt.lease,
		Logger:   slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelWarn})),
		AttachmentChanged: func(program string, now runtime.Attachment) {
			if !terminal(a.out) || opt.events { // else the table says so, and a line would be drawn over
				fmt.Fprintln(a.err, attachmentText(program, now))
			}
		},
	}
	if detached() { // its messages are all that there is to see
		options.Logger = slog.New(slog.NewTextHandler(a.err, nil))
		options.AttachmentChanged = nil
	}
	in.log = options.Logger
	if opt.control != "" {
		options.Control = &control.Server{Path: opt.control, Stop: stop}
	}
	site, err := openSite(opt)
	if err != nil {
		return err
	}
	defer site.close()
	var relay *runtime.Relay
	load := func() (err error) {
		if err := in.lookForInterfaces(); err != nil {
			return err
		}
		relay, err = runtime.Load(&desc, r.Object(), options)
		return err
	}
	if t == nil {
		err = load()
	} else if err = t.open(); err != nil {
		return err
	} else {
		err = t.net.Do(load) // the relay stays in the namespace that it was loaded in
	}
	if err != nil {
		return errors.Join(runError(r.Explain(err)), t.close(a))
	}
	in.page, err = site.serve(ctx, r, relay)
	if err == nil {
		err = a.serve(ctx, relay, in, opt)
	}
	stop()
	site.wait()
	end := relay.Close
	if err != nil && relay.Adopted() && !in.stands {
		end = func() error { return in.leave(relay) }
	}
	return errors.Join(err, runErrorOrNil(end()), t.close(a))
}

// lookForInterfaces finds out whether there is one of each name that --attach has, before anything is changed.
func (in *runInput) lookForInterfaces() error {
	for _, at := range in.attach {
		if _, err := netlink.LinkByName(at.iface); errors.As(err, &netlink.LinkNotFoundError{}) {
			return fmt.Errorf("--attach %s=%s: there is no such interface; this network namespace has %s", at.program,
				at.iface, strings.Join(devices(), ", "))
		}
	}
	return nil
}

// leave leaves a relay that was taken over to the next run, where this one has failed: attachments and sessions are as
// they were, and it is pinned.
func (in *runInput) leave(relay *runtime.Relay) error {
	var errs []error
	for _, s := range in.opened {
		errs = append(errs, s.Close())
	}
	for _, at := range places(relay) {
		if !slices.Contains(in.before, at) {
			errs = append(errs, relay.Program(at.program).Detach(at.iface))
		}
	}
	return errors.Join(append(errs, relay.Leave(time.Second))...)
}

// runError gives an error of loading or attaching its code. Unless a value is wrong, it says where to look.
func runError(err error) error {
	var (
		refusal   *build.Refusal
		value     *runtime.ValueError
		collision *runtime.CollisionError
		exists    *runtime.ExistsError
		full      *runtime.FullError
	)
	switch {
	case errors.As(err, &refusal):
		return err
	case errors.As(err, &value):
		return &diag.Diagnostic{Code: codeValue, Message: err.Error()}
	case errors.As(err, &collision), errors.As(err, &exists), errors.As(err, &full):
		return &diag.Diagnostic{Code: codeRun, Message: err.Error()}
	}
	return &diag.Diagnostic{Code: codeRun, Message: err.Error(),
		Hint: "fastrelay-gen doctor shows what this machine has and lacks"}
}

// serve fills the tables and groups, attaches, and shows counters until ctx ends. The tables are filled first, so
// that the first packet finds its session.
func (a *app) serve(ctx context.Context, relay *runtime.Relay, in *runInput, opt runOptions) error {
	in.before = places(relay)
	for _, row := range in.rows {
		if err := relay.Table(row.table).Put(row.key, row.value); err != nil && !in.traffic.refuse(row.text, err) {
			return runError(err)
		}
	}
	for _, s := range in.sessions {
		session, err := relay.Open(s.kind, s.fields...)
		if err == nil {
			in.opened = append(in.opened, session)
		}
		if err != nil && !in.traffic.refuse(s.text, err) && !adopted(s, err) {
			return runError(err)
		}
	}
	receivers, err := openGroups(ctx, relay, in)
	if err != nil {
		return runError(err)
	}
	w := &watcher{
		app: a, relay: relay, receivers: receivers, traffic: in.traffic, out: a.out, machine: a.machine, log: in.log,
	}
	if opt.events {
		w.out = a.err
		var stop context.CancelCauseFunc
		ctx, stop = context.WithCancelCause(ctx)
		defer stop(nil)
		p := a.printEvents(relay, receivers, stop)
		defer p.close()
	}
	for _, at := range in.attach {
		p := relay.Program(at.program)
		var err error
		switch {
		case at.first:
			err = p.AttachFirst(at.iface)
		case at.before != "":
			err = p.AttachBefore(at.iface, at.before)
		default:
			err = p.Attach(at.iface)
		}
		if err != nil {
			return runError(err)
		}
	}
	if err := in.detachOthers(relay); err != nil {
		return runError(err)
	}
	in.stands = true
	if in.traffic != nil {
		if err := in.traffic.send(ctx, receivers); err != nil {
			return err
		}
	}
	if a.machine && opt.events { // standard error is JSON as well
		if err := json.NewEncoder(a.err).Encode(attachments(relay, in)); err != nil {
			return outputError(err)
		}
	} else {
		if in.traffic != nil {
			fmt.Fprint(a.err, in.traffic.text())
		}
		fmt.Fprintln(a.err, attached(relay, in))
	}
	if detached() {
		return a.background(ctx, relay, in, opt)
	}
	err = w.watch(ctx, opt)
	if opt.events {
		err = errors.Join(err, relay.DetachAll()) // what comes after the last counters is not printed
	}
	return err
}

// places are where programs are attached.
func places(relay *runtime.Relay) (all []attachment) {
	for _, p := range relay.Programs() {
		for _, at := range p.Attachments() {
			all = append(all, attachment{p.Name(), at.Interface})
		}
	}
	return all
}

// detachOthers detaches programs from interfaces where a relay that was taken over had them, and that aren't asked for.
func (in *runInput) detachOthers(relay *runtime.Relay) error {
	var asked []attachment
	for _, at := range in.attach {
		if l, err := netlink.LinkByName(at.iface); err == nil { // an interface may have several names
			at.iface = l.Attrs().Name
		}
		asked = append(asked, at.attachment)
	}
	for _, at := range in.before {
		if slices.Contains(asked, at) {
			continue
		}
		if err := relay.Program(at.program).Detach(at.iface); err != nil && !errors.Is(err, runtime.ErrNotFound) {
			return err
		}
		in.detached = append(in.detached, at)
	}
	return nil
}

// adopted says whether a session can't be opened since it is open: it was taken over.
func adopted(s sessionInput, err error) bool {
	var c *runtime.CollisionError
	return errors.As(err, &c) && c.Other.Kind() == s.kind && fmt.Sprint(c.Other.Values()) == fmt.Sprint(s.fields)
}

// attachments is what is attached where, for machines.
func attachments(relay *runtime.Relay, in *runInput) any {
	type attachment struct {
		Program   string `json:"program"`
		Interface string `json:"interface"`
		How       string `json:"how"`
	}
	out := struct {
		Attached []attachment `json:"attached"`
		Page     string       `json:"page,omitempty"`
	}{[]attachment{}, in.page}
	for _, p := range relay.Programs() {
		for _, at := range p.Attachments() {
			out.Attached = append(out.Attached, attachment{p.Name(), at.Interface, fmt.Sprint(at.Mode)})
		}
	}
	return out
}

// attached says what is attached where.
func attached(relay *runtime.Relay, in *runInput) string {
	var places []string
	for _, p := range relay.Programs() {
		for _, at := range p.Attachments() {
			places = append(places, fmt.Sprintf("%s %s (%s)", p.Name(), at.Interface, at.Mode))
		}
	}
	text := fmt.Sprintf("%s attached: %s.", relay.Desc().Name, strings.Join(places, ", "))
	var open []string
	if n := len(in.sessions); n > 0 {
		open = append(open, plural(n, "session"))
	}
	if n := len(in.groups); n > 0 {
		open = append(open, plural(n, "group"))
	}
	if len(open) > 0 {
		text += fmt.Sprintf(" %s open.", strings.Join(open, ", "))
	}
	text += " Ctrl-C detaches."
	for _, at := range in.detached {
		text += fmt.Sprintf("\n%s is detached from %s: the relay before had attached it, and --attach doesn't say so.",
			at.program, at.iface)
	}
	if in.page != "" {
		text += "\nThere is a page about it at " + in.page
	}
	return text
}

// attachmentText says that an interface has gone, or come again.
func attachmentText(program string, now runtime.Attachment) string {
	if now.Lost == nil {
		return fmt.Sprintf("%s is attached again: %s (%s).", program, now.Interface, now.Mode)
	}
	return fmt.Sprintf("%s is %s; it will be attached to the next interface of that name.", program, notAttached(now))
}

func notAttached(at runtime.Attachment) string {
	return fmt.Sprintf("not attached to %s: %v", at.Interface, at.Lost)
}

// watcher shows what a relay counts.
type watcher struct {
	*app
	relay     *runtime.Relay
	receivers []*receiver
	traffic   *traffic // nil: packets come from this machine's interfaces
	out       io.Writer
	machine   bool // JSON, one line each time
	log       *slog.Logger
	merged    bool // it is said that merged datagrams come
	view      view
}

// watch shows the counters once a second.
func (w *watcher) watch(ctx context.Context, opt runOptions) error {
	if _, err := w.look(time.Now()); err != nil {
		return err
	}
	tick := time.NewTicker(opt.interval)
	defer tick.Stop()
	wait := opt.duration
	if opt.once && wait == 0 {
		wait = opt.interval
	}
	var end <-chan time.Time
	if wait > 0 {
		end = time.After(wait)
	}
	live := terminal(w.out) && !opt.events // lines of records would be drawn over
	for {
		select {
		case <-ctx.Done():
			err := outputError(w.last(live))
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
				err = errors.Join(outputError(cause), err)
			}
			return err
		case <-end:
			return outputError(w.last(live))
		case now := <-tick.C:
			if opt.once {
				continue
			}
			if err := w.draw(now, live); err != nil {
				return outputError(err)
			}
		}
	}
}

// outputError hides that the reader of the counters has closed its pipe or its terminal, which ends the run and is not
// an error.
func outputError(err error) error {
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.EIO) {
		return nil
	}
	return err
}

func (w *watcher) draw(now time.Time, live bool) error {
	if w.machine {
		return w.snapshot(now)
	}
	rates, err := w.look(now)
	if err != nil {
		return err
	}
	if live {
		width, height := size(w.out)
		return w.view.redraw(w.out, table(rates, width), width, height)
	}
	_, err = io.WriteString(w.out, line(rates))
	return err
}

// last prints the whole table for the last time.
func (w *watcher) last(live bool) error {
	if w.traffic != nil {
		w.traffic.net.Stop() // so that what was sent and what arrived are of one moment
	}
	if w.machine {
		return w.snapshot(time.Now())
	}
	rates, err := w.look(time.Now())
	if err != nil {
		return err
	}
	counts, err := counters(w.relay)
	if err != nil {
		return err
	}
	if live && w.view.lines > 0 {
		width, _ := size(w.out)
		return w.view.redraw(w.out, table(rates, width)+counts, 0, 0)
	}
	_, err = io.WriteString(w.out, table(rates, 0)+counts)
	return err
}

// look reads all counters: by reason of the programs that are attached, of receivers, of lost events.
func (w *watcher) look(now time.Time) ([]rate, error) {
	var all []tally
	for _, p := range w.relay.Programs() {
		if len(p.Attachments()) == 0 {
			continue
		}
		for _, at := range p.Attachments() {
			t := tally{program: p.Name(), kind: kindInterface, reason: at.Interface}
			if at.Lost != nil {
				t.doc = notAttached(at)
			}
			all = append(all, t)
		}
		counts, err := p.Counts()
		if err != nil {
			return nil, err
		}
		for i, n := range counts {
			reason := p.Desc().Reasons[i]
			if reason.Name == superPackets && n.Packets > 0 {
				w.sayMerged(fmt.Sprintf("%s passes GSO packets to the stack", p.Name()))
			}
			all = append(all, tally{
				program: p.Name(), kind: reason.Kind.String(), reason: reason.Name, doc: reason.Doc,
				packets: n.Packets, bytes: n.Bytes,
			})
		}
	}
	receivers, err := receiverTallies(w.receivers, w.relay.Desc().Levels)
	if err != nil {
		return nil, err
	}
	all = append(all, receivers...)
	all = append(all, arrivalTallies(w.traffic)...)
	return w.view.look(now, append(all, lostTallies(w.relay)...)), nil
}

// counters lists the spec's own counters: named ones, and those in the rows of tables, with what their credits refused.
func counters(relay *runtime.Relay) (string, error) {
	var b strings.Builder
	named, err := relay.Counters()
	if err != nil {
		return "", err
	}
	for i, n := range named {
		fmt.Fprintf(&b, "count %s: %s\n", relay.Desc().Counters[i], thousands(n))
	}
	for _, t := range relay.Tables() {
		d := t.Desc()
		values := visible(d.Value)
		var lines []string
		for row, err := range t.All() {
			if err != nil {
				return "", err
			}
			for i, m := range values {
				if m.kind == abi.KindCounter {
					lines = append(lines, fmt.Sprintf("%s %s: %s %v\n", d.Name, join(row.Key), m.name, row.Value[i]))
				} else if r := refusalOf(m.name, row.Value[i]); r != nil {
					text := r.text(relay.Desc().Levels)
					lines = append(lines, fmt.Sprintf("%s %s: %s %v%s\n", d.Name, join(row.Key), m.name,
						row.Value[i], text))
				}
			}
		}
		slices.Sort(lines)
		b.WriteString(strings.Join(lines, ""))
	}
	return b.String(), nil
}

func join(values []any) string {
	var out []string
	for _, v := range values {
		out = append(out, fmt.Sprint(plain(v)))
	}
	return strings.Join(out, " ")
}

// kernelTests says whether tests can run in the kernel: on Linux, the kernel says that itself.
func kernelTests() error { return nil }
