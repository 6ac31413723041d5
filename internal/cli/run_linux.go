package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// relayRun is a relay of `run`. Once it is loaded, all but its attachments and its events is read and changed as by any
// other client of its control socket, whether it has one or not.
type relayRun struct {
	beginning
	desc    *abi.Desc
	relay   *runtime.Relay
	traffic *traffic // nil: packets come from this machine's interfaces
	log     *slog.Logger
	page    string // the address of the page about the relay, or ""

	before   []attachment // when it was loaded
	detached []attachment // that a relay which was taken over had, and that aren't asked for
	stands   bool         // what is asked for stands
}

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
	b, err := a.compile(ctx, file, build.Options{})
	if err != nil {
		return err
	}
	interrupt.Handle(ctx)
	if !a.machine {
		a.warn(b.Warnings)
	}
	desc := glue.Desc(b.Plan)
	r := &relayRun{desc: &desc, beginning: beginning{
		live:     &live{app: a, ctx: context.WithoutCancel(ctx), info: api.Describe(&desc)},
		settings: map[string]any{},
	}}
	if err := r.parse(&desc, opt); err != nil {
		return err
	}
	if opt.traffic {
		if r.traffic, err = newTraffic(b, opt.rate, &r.beginning); err != nil {
			return err
		}
	}
	for _, s := range desc.Settings {
		if _, given := r.settings[s.Name]; s.Required && !given {
			return usage("the setting %q has no default", s.Name).hint("give it a value: --set %s=…", s.Name)
		}
	}
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
	// If the output is a pipe that closes (run … | head), writing fails, and the relay is closed like any other
	// time.
	signal.Ignore(unix.SIGPIPE)
	options := runtime.Options{
		Settings: r.settings,
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
	r.log = options.Logger
	if opt.control != "" {
		options.Control = &control.Server{Path: opt.control, Stop: stop}
	}
	site, err := openSite(opt)
	if err != nil {
		return err
	}
	defer site.close()
	load := func() (err error) {
		if err := r.lookForInterfaces(); err != nil {
			return err
		}
		r.relay, err = runtime.Load(&desc, b.Object(), options)
		return err
	}
	if r.traffic == nil {
		err = load()
	} else if err = r.traffic.open(); err != nil {
		return err
	} else {
		err = r.traffic.net.Do(load) // the relay stays in the namespace that it was loaded in
	}
	if err != nil {
		return errors.Join(runError(b.Explain(err)), r.traffic.close(a))
	}
	looking, end := context.WithCancel(context.Background())
	r.client = api.Local(control.Handler(looking, r.relay))
	r.page, err = site.serve(ctx, b, r.relay)
	if err == nil {
		err = r.serve(ctx, opt)
	}
	stop()
	site.wait()
	left := r.relay.Close
	if err != nil && r.relay.Adopted() && !r.stands {
		left = r.leave
	}
	err = errors.Join(err, runErrorOrNil(left()), r.traffic.close(a))
	end()
	return err
}

// lookForInterfaces finds out whether there is one of each name that --attach has, before anything is changed.
func (r *relayRun) lookForInterfaces() error {
	for _, at := range r.attach {
		if _, err := netlink.LinkByName(at.iface); errors.As(err, &netlink.LinkNotFoundError{}) {
			return fmt.Errorf("--attach %s=%s: there is no such interface; this network namespace has %s", at.program,
				at.iface, strings.Join(devices(), ", "))
		}
	}
	return nil
}

// leave leaves a relay that was taken over to the next run, if this one has failed: attachments and sessions are as
// they were, and it is pinned.
func (r *relayRun) leave() error {
	var errs []error
	for _, o := range r.all("session") {
		if o.session.ID != "" {
			errs = append(errs, r.do("DELETE", "/v1/sessions/"+o.Name+"/"+o.session.ID, nil, nil))
		}
	}
	now, err := r.places()
	for _, at := range now {
		if !slices.Contains(r.before, at) {
			errs = append(errs, r.relay.Program(at.program).Detach(at.iface))
		}
	}
	return errors.Join(append(errs, err, r.relay.Leave(time.Second))...)
}

// runError gives an error of loading, of attaching or of the relay its code. Unless a value is wrong, it says what to
// do, or where to look.
func runError(err error) error {
	var (
		refusal *build.Refusal
		value   *runtime.ValueError
		problem *api.Problem
	)
	d := &diag.Diagnostic{Code: codeRun, Message: err.Error(),
		Hint: "fastrelay-gen doctor shows what this machine has and lacks"}
	switch {
	case errors.As(err, &refusal):
		return err
	case errors.As(err, &value):
		d.Code, d.Hint = codeValue, ""
	case errors.As(err, &problem):
		d.Message = problem.Detail
		switch problem.Code {
		case api.CodeValue:
			d.Code, d.Hint = codeValue, ""
		case api.CodeExists, api.CodeFull:
			d.Hint = problem.Fix
		}
	}
	return d
}

// serve fills the tables and groups, attaches, and shows counters until ctx ends. The tables are filled first, so
// that the first packet finds its session.
func (r *relayRun) serve(ctx context.Context, opt runOptions) (err error) {
	if r.before, err = r.places(); err != nil {
		return err
	}
	for _, o := range slices.Concat(r.all("table"), r.all("session"), r.all("group")) {
		if err := r.put(o); err != nil && !r.traffic.refuse(o, err) && !r.adopted(o, err) {
			return runError(err)
		}
	}
	w := &watcher{relayRun: r, out: r.out}
	if opt.events {
		w.out = r.err
		var stop context.CancelCauseFunc
		ctx, stop = context.WithCancelCause(ctx)
		defer stop(nil)
		p := r.printEvents(stop)
		defer p.close()
	}
	for _, at := range r.attach {
		p := r.relay.Program(at.program)
		err := p.AttachAt(at.iface, runtime.AttachOptions{First: at.first, Before: at.before, Hook: r.hook})
		if err != nil {
			return runError(err)
		}
	}
	if err := r.detachOthers(); err != nil {
		return runError(err)
	}
	r.stands = true
	if r.traffic != nil {
		if err := r.traffic.send(ctx, r); err != nil {
			return err
		}
	}
	programs, err := r.attached()
	if err != nil {
		return err
	}
	if r.machine && opt.events { // standard error is JSON as well
		if err := json.NewEncoder(r.err).Encode(r.attachments(programs)); err != nil {
			return outputError(err)
		}
	} else {
		if r.traffic != nil {
			fmt.Fprint(r.err, r.traffic.text())
		}
		fmt.Fprintln(r.err, r.text(programs))
	}
	if detached() {
		return r.background(ctx, r.text(programs), opt)
	}
	err = w.watch(ctx, opt)
	if opt.events {
		err = errors.Join(err, r.relay.DetachAll()) // what comes after the last counters is not printed
	}
	return err
}

// places are where programs are attached.
func (r *relayRun) places() (all []attachment, err error) {
	programs, err := r.attached()
	for _, p := range programs {
		for _, at := range p.Attachments {
			all = append(all, attachment{p.Name, at.Interface})
		}
	}
	return all, err
}

// detachOthers detaches programs from interfaces where a relay that was taken over had them, and that aren't asked for.
func (r *relayRun) detachOthers() error {
	var asked []attachment
	for _, at := range r.attach {
		if l, err := netlink.LinkByName(at.iface); err == nil { // an interface may have several names
			at.iface = l.Attrs().Name
		}
		asked = append(asked, at.attachment)
	}
	for _, at := range r.before {
		if slices.Contains(asked, at) {
			continue
		}
		if err := r.relay.Program(at.program).Detach(at.iface); err != nil && !errors.Is(err, runtime.ErrNotFound) {
			return err
		}
		r.detached = append(r.detached, at)
	}
	return nil
}

// adopted says whether a session or a group can't be opened since it is open: it was taken over, a group with its
// receivers.
func (r *relayRun) adopted(o *opening, err error) bool {
	p, ok := errors.AsType[*api.Problem](err)
	if !ok || p.Code != api.CodeExists {
		return false
	}
	if o.what == "group" {
		return r.relay.PinPath() != ""
	}
	var other api.Session
	return r.get("/v1/sessions/"+o.Name+"/"+p.Other, &other) == nil && has(other, o.values)
}

// attachments is what is attached where, for machines.
func (r *relayRun) attachments(programs []api.Program) any {
	type attachment struct {
		Program   string `json:"program"`
		Interface string `json:"interface"`
		How       string `json:"how"`
	}
	out := struct {
		Attached []attachment `json:"attached"`
		Page     string       `json:"page,omitempty"`
	}{[]attachment{}, r.page}
	for _, p := range programs {
		for _, at := range p.Attachments {
			out.Attached = append(out.Attached, attachment{p.Name, at.Interface, at.At()})
		}
	}
	return out
}

// text says what is attached where.
func (r *relayRun) text(programs []api.Program) string {
	var places []string
	for _, p := range programs {
		for _, at := range p.Attachments {
			places = append(places, fmt.Sprintf("%s %s (%s)", p.Name, at.Interface, at.At()))
		}
	}
	text := fmt.Sprintf("%s attached: %s.", r.desc.Name, strings.Join(places, ", "))
	var open []string
	for _, what := range []string{"session", "group"} {
		if n := len(r.all(what)); n > 0 {
			open = append(open, plural(n, what))
		}
	}
	if len(open) > 0 {
		text += fmt.Sprintf(" %s open.", strings.Join(open, ", "))
	}
	text += " Ctrl-C detaches."
	for _, at := range r.detached {
		text += fmt.Sprintf("\n%s is detached from %s: the relay before had attached it, and --attach doesn't say so.",
			at.program, at.iface)
	}
	if r.page != "" {
		text += "\nThere is a page about it at " + r.page
	}
	return text
}

// attachmentText says that an interface has gone, or come again.
func attachmentText(program string, now runtime.Attachment) string {
	if now.Lost == nil {
		return fmt.Sprintf("%s is attached again: %s (%s).", program, now.Interface, now.Mode)
	}
	return fmt.Sprintf("%s is %s; it will be attached to the next interface of that name.", program,
		notAttached(now.Interface, now.Lost.Error()))
}

func notAttached(iface, why string) string { return fmt.Sprintf("not attached to %s: %s", iface, why) }

// kernelTests says whether tests can run in the kernel: on Linux, the kernel says that itself.
func kernelTests() error { return nil }
