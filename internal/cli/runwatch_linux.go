package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// watcher shows what a relay counts.
type watcher struct {
	*relayRun
	out    io.Writer
	merged bool // it is said that merged datagrams come
	view   view
}

// snapshot is all that `run` counts, for machines: one line each time.
type snapshot struct {
	Time      time.Time          `json:"time"`
	Programs  []programSnapshot  `json:"programs"`
	Receivers []receiverSnapshot `json:"receivers,omitempty"`
	Arrived   []arrivedSnapshot  `json:"arrived,omitempty"` // at the hosts of --traffic
	Lost      api.Object         `json:"lost,omitempty"`    // records, by event
	Counters  api.Object         `json:"counters,omitempty"`

	programs []api.Program
}

type programSnapshot struct {
	Name        string           `json:"name"`
	Attachments []api.Attachment `json:"attachments"`
	Reasons     []reasonSnapshot `json:"reasons"`
}

type reasonSnapshot struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	Packets uint64 `json:"packets"`
	XDP     uint64 `json:"xdp_packets,omitempty"` // of them, seen at XDP
	Bytes   uint64 `json:"bytes"`
}

type receiverSnapshot struct {
	Name     string     `json:"name"`
	To       string     `json:"to,omitempty"`
	Copies   uint64     `json:"copies"`
	Bytes    uint64     `json:"bytes"`
	Declined uint64     `json:"declined"`
	Failed   uint64     `json:"failed"`
	Refused  api.Object `json:"refused,omitempty"` // by credit: for each level of priority
}

type arrivedSnapshot struct {
	Host    string `json:"host"`
	Flow    string `json:"flow"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
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
		return w.line(now)
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
		return w.line(time.Now())
	}
	rates, err := w.look(time.Now())
	if err != nil {
		return err
	}
	counts, err := w.counters()
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

// line writes what is counted now as one line, for machines.
func (w *watcher) line(now time.Time) error {
	s, err := w.read(now)
	if err != nil {
		return err
	}
	return json.NewEncoder(w.out).Encode(s)
}

// look reads all counters, as rates since the last look: by reason of the programs that are attached, of receivers, of
// flows that have arrived, of lost events.
func (w *watcher) look(now time.Time) ([]rate, error) {
	s, err := w.read(now)
	if err != nil {
		return nil, err
	}
	var all []tally
	for _, p := range s.programs {
		for _, at := range p.Attachments {
			t := tally{program: p.Name, kind: kindInterface, reason: at.Interface}
			if !at.Attached {
				t.doc = notAttached(at.Interface, at.Error)
			}
			all = append(all, t)
		}
		for _, r := range reasons(p) {
			if r.reason == superPackets && r.packets > 0 {
				w.sayMerged(fmt.Sprintf("%s passes GSO packets to the stack", p.Name))
			}
			all = append(all, r.tally)
		}
	}
	for _, v := range s.Receivers {
		all = append(all, tally{program: v.Name, kind: kindReceiver, reason: kindReceiver, doc: v.label(),
			packets: v.Copies, bytes: v.Bytes})
	}
	for _, a := range s.Arrived {
		all = append(all, tally{program: "at " + a.Host, kind: kindArrived, reason: a.Flow, doc: a.Flow,
			packets: a.Packets, bytes: a.Bytes})
	}
	for _, e := range s.Lost {
		all = append(all, tally{program: "events", kind: kindLost, reason: e.Name, doc: "lost: " + e.Name,
			packets: e.Value.(uint64)})
	}
	return w.view.look(now, all), nil
}

// read reads what is counted now.
func (w *watcher) read(now time.Time) (*snapshot, error) {
	s := &snapshot{Time: now, Programs: []programSnapshot{}}
	var (
		relay    api.Relay
		counters api.Counters
		err      error
	)
	if s.programs, err = w.attached(); err != nil {
		return nil, err
	}
	for _, p := range s.programs {
		out := programSnapshot{Name: p.Name, Attachments: p.Attachments}
		for _, r := range p.Reasons {
			out.Reasons = append(out.Reasons, reasonSnapshot{r.Name, r.Kind, r.Packets, r.XDP, r.Bytes})
		}
		s.Programs = append(s.Programs, out)
	}
	receivers, err := w.receivers()
	if err = cmp.Or(err, w.get("/v1", &relay), w.get("/v1/counters", &counters)); err != nil {
		return nil, err
	}
	for _, v := range receivers {
		out := receiverSnapshot{Name: v.name, Copies: v.Packets, Bytes: v.Bytes, Declined: v.Declined, Failed: v.Failed}
		if v.to != "" {
			out.To = showValue(v.Values.Get(v.to))
		}
		for _, m := range v.Values {
			if all := refused(m.Value); all != nil {
				out.Refused = append(out.Refused, api.Named{Name: m.Name, Value: all})
			}
		}
		s.Receivers = append(s.Receivers, out)
	}
	if w.traffic != nil {
		for _, a := range w.traffic.net.Arrived() {
			s.Arrived = append(s.Arrived, arrivedSnapshot{a.Host, a.String(), a.Packets, a.Bytes})
		}
	}
	for _, e := range relay.Events {
		s.Lost = append(s.Lost, api.Named{Name: e.Name, Value: e.Lost})
	}
	s.Counters = counters.Counters
	return s, nil
}

// attached reads the programs that are attached.
func (r *relayRun) attached() ([]api.Program, error) {
	var all api.Programs
	err := r.get("/v1/programs", &all)
	return slices.DeleteFunc(all.Items, func(p api.Program) bool { return len(p.Attachments) == 0 }), err
}

// receiver is a receiver that `run` has put into a group.
type receiver struct {
	api.Receiver
	group *opening
	name  string     // "subscribers 1": its group and its place on the command line
	first api.Object // the values that it was given
	to    string     // the member that its copies are sent to
}

// receivers reads those that this run has put into groups, as far as they are there yet.
func (r *relayRun) receivers() (out []receiver, err error) {
	for _, g := range r.all("group") {
		if g.group.Added == nil { // it was taken over
			continue
		}
		found, err := api.All[api.Receiver](r.ctx, r.client, g.at()+"/receivers")
		if p, ok := errors.AsType[*api.Problem](err); ok && p.Code == api.CodeNotFound { // another client has closed it
			continue
		} else if err != nil {
			return nil, controlError(r.client.Path, err)
		}
		byID := map[uint32]api.Receiver{}
		for _, v := range found {
			byID[v.ID] = v
		}
		desc := slices.IndexFunc(r.desc.Groups, func(d abi.Group) bool { return d.Name == g.Name })
		to := destination(r.desc.Groups[desc].Receiver)
		for i, id := range g.group.Added {
			if v, ok := byID[id]; ok {
				out = append(out, receiver{v, g, g.names[i], g.receivers[i], to})
			}
		}
	}
	return out, nil
}

// destination returns the member that copies are sent to; "" if the row doesn't say.
func destination(row []abi.Member) string {
	for _, m := range row {
		switch m.Kind {
		case abi.KindHop:
			return m.To
		case abi.KindNextHop:
			return m.Name
		}
	}
	return ""
}

// label is what there is to say about a receiver: "copies to 203.0.113.2:6000, 1 declined, 31 refused by credit".
func (v *receiverSnapshot) label() string {
	text := "copies"
	if v.To != "" {
		text += " to " + v.To
	}
	if v.Declined > 0 {
		text += fmt.Sprintf(", %s declined", thousands(v.Declined))
	}
	for _, m := range v.Refused {
		text += refusedBy(m.Name, m.Value.([]uint64))
	}
	return text
}

// refusedBy is what a credit refused: ", 31 refused by credit", and by priority if there are levels: "(0 0 31 0)".
func refusedBy(credit string, levels []uint64) string {
	all := uint64(0)
	var each []string
	for _, n := range levels {
		all += n
		each = append(each, thousands(n))
	}
	switch {
	case all == 0:
		return ""
	case len(each) == 1:
		return fmt.Sprintf(", %s refused by %s", thousands(all), credit)
	}
	return fmt.Sprintf(", %s refused by %s (by priority: %s)", thousands(all), credit, strings.Join(each, " "))
}

// counters lists the spec's own counters: named ones, and those in the rows of tables, with what their credits refused.
func (w *watcher) counters() (string, error) {
	var b strings.Builder
	var named api.Counters
	if err := w.get("/v1/counters", &named); err != nil {
		return "", err
	}
	for _, m := range named.Counters {
		fmt.Fprintf(&b, "count %s: %s\n", m.Name, thousands(number(m.Value)))
	}
	for _, t := range w.desc.Tables {
		if !slices.ContainsFunc(t.Value, func(m abi.Member) bool { return m.Kind.IsState() }) {
			continue
		}
		rows, err := api.All[api.Row](w.ctx, w.client, "/v1/tables/"+t.Name)
		if err != nil {
			return "", controlError(w.client.Path, err)
		}
		var lines []string
		for _, row := range rows {
			for _, m := range row.Value {
				if abi.Find(t.Value, m.Name).Kind.IsState() {
					lines = append(lines, fmt.Sprintf("%s %s: %s %s%s\n", t.Name, valueList(row.Key), m.Name,
						stateText(m.Value), refusedBy(m.Name, refused(m.Value))))
				}
			}
		}
		slices.Sort(lines)
		b.WriteString(strings.Join(lines, ""))
	}
	return b.String(), nil
}

// stateText is what a counter has counted, what a credit has spent of its limit, or the rate of a bucket.
func stateText(v any) string {
	switch v := v.(type) {
	case []any:
		var all []string
		for _, one := range v {
			all = append(all, stateText(one))
		}
		return "[" + strings.Join(all, " ") + "]"
	case map[string]any:
		if v["per_second"] != nil {
			return fmt.Sprintf("%v a second, burst %v", v["per_second"], v["burst"])
		}
		return fmt.Sprintf("%v of %v", v["spent"], v["limit"])
	}
	return fmt.Sprint(v)
}

func valueList(o api.Object) string {
	var values []string
	for _, m := range o {
		values = append(values, showValue(m.Value))
	}
	return strings.Join(values, " ")
}
