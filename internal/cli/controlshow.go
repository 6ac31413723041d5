package cli

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/forwarding"
)

// relayLine is a relay as ps lists it.
type relayLine struct {
	Name      string  `json:"name"`
	Socket    string  `json:"socket"`
	State     string  `json:"state"` // running, draining, lapsed, or why it can't be asked
	PID       int     `json:"pid,omitempty"`
	Attached  string  `json:"attached,omitempty"`
	Sessions  int     `json:"sessions"`
	Receivers int     `json:"receivers"`
	PPS       float64 `json:"packets_per_second"`
	XDPDrops  uint64  `json:"xdp_drops,omitempty"` // packets that were sent from XDP, and dropped by their device
}

// ps lists the relays of this machine.
func (a *app) ps(ctx context.Context, socket string) error {
	paths := []string{api.PathOf(socket)}
	if socket == "" {
		var err error
		if paths, err = filepath.Glob(filepath.Join(api.Folder(), "*.sock")); err != nil {
			return err
		}
	}
	all := []relayLine{}
	for _, path := range paths {
		all = append(all, a.psLine(ctx, path))
	}
	if a.machine {
		return a.json(all)
	}
	if len(all) == 0 {
		_, err := fmt.Fprintf(a.out, "no relay has a control socket in %s\n", api.Folder())
		return err
	}
	rows := [][]string{{"RELAY", "STATE", "PID", "SESSIONS", "RECEIVERS", "PACKETS/S", "DROPPED AFTER XDP", "ATTACHED",
		"SOCKET"}}
	for _, r := range all {
		drops := ""
		if r.XDPDrops > 0 {
			drops = thousands(r.XDPDrops)
		}
		rows = append(rows, []string{
			r.Name, r.State, fmt.Sprint(r.PID), fmt.Sprint(r.Sessions), fmt.Sprint(r.Receivers),
			thousands(uint64(r.PPS + 0.5)), drops, r.Attached, r.Socket})
	}
	_, err := fmt.Fprint(a.out, columns(sparse(rows)))
	return err
}

func (a *app) psLine(ctx context.Context, path string) relayLine {
	line := relayLine{Name: socketName(path), Socket: path}
	l, err := a.find(ctx, path)
	var programs api.Programs
	if err == nil {
		err = l.get("/v1/programs", &programs)
	}
	if err != nil {
		line.State = listOf(err).All()[0].Message
		return line
	}
	line.Name, line.PID, line.State = l.info.Name, l.info.PID, "running"
	switch {
	case l.info.Draining:
		line.State = "draining"
	case lapsed(&l.info):
		line.State = "lapsed"
	}
	for _, d := range l.info.XDPDrops {
		line.XDPDrops += d.Packets
	}
	for _, k := range l.info.Sessions {
		line.Sessions += *k.Open
	}
	for _, k := range l.info.Groups {
		line.Receivers += *k.Receivers
	}
	var places []string
	for _, p := range programs.Items {
		for _, at := range p.Attachments {
			text := p.Name + "=" + at.Interface
			if len(at.Front) > 0 {
				text += " (behind " + strings.Join(at.Front, ", ")
				if comesNothing(p) {
					text += ": nothing comes"
				}
				text += ")"
			}
			places = append(places, text)
		}
		line.PPS += packetRate(p)
	}
	line.Attached = strings.Join(places, " ")
	return line
}

// lapsed reports whether the kernel has stopped forwarding for a relay. In user space, there is nothing that lapses.
func lapsed(r *api.Relay) bool { return r.Lease != nil && r.Lease.Left <= 0 }

// check returns an error for a relay that isn't ready, or isn't alive.
func (l *live) check(alive bool) error {
	fail := func(hint, format string, args ...any) error {
		return &diag.Diagnostic{Code: codeRelay, Message: l.info.Name + fmt.Sprintf(format, args...), Hint: hint}
	}
	var notes []string
	state := "ready"
	if lapsed(&l.info) {
		return fail("its process hangs or is suspended; restart it",
			"'s lease has lapsed: its packets pass to the stack")
	}
	if alive {
		state = "alive"
	} else {
		var err error
		if notes, err = l.ready(fail); err != nil {
			return err
		}
	}
	text := l.info.Name + " is " + state + "\n"
	for _, note := range notes {
		text += "note: " + note + "\n"
	}
	return l.print(struct {
		Relay string   `json:"relay"`
		State string   `json:"state"`
		Notes []string `json:"notes,omitempty"`
	}{l.info.Name, state, notes}, text)
}

// ready returns an error for a relay that isn't, and notes about what one that is can't do.
func (l *live) ready(fail func(hint, format string, args ...any) error) (notes []string, err error) {
	if l.info.Draining {
		return nil, fail("fastrelay-gen drain --undo has it take new sessions again", " is being drained")
	}
	var programs api.Programs
	if err := l.get("/v1/programs", &programs); err != nil {
		return nil, err
	}
	attached := 0
	for _, p := range programs.Items {
		for _, at := range p.Attachments {
			if !at.Attached {
				return nil, fail("the program is attached again when an interface of that name appears",
					": %s isn't attached to %s: %s", p.Name, at.Interface, at.Error)
			}
			if len(at.Front) > 0 {
				notes = append(notes, behind(p, at))
			}
			for _, version := range at.NoForwarding {
				notes = append(notes, fmt.Sprintf(
					"%s finds no routes for IPv%d packets, since %s doesn't forward them: %s",
					p.Name, version, at.Interface, forwarding.Mend(at.Interface, version)))
			}
		}
		if attached += len(p.Attachments); p.Hook == abi.HookCongestion.String() {
			attached++ // it is registered, not attached
		}
	}
	if attached == 0 {
		return nil, fail("fastrelay-gen attach PROGRAM=INTERFACE", ": no program is attached")
	}
	return notes, nil
}

// behind says who has packets before a program, and whether any come to it.
func behind(p api.Program, at api.Attachment) string {
	text := fmt.Sprintf("%s has on %s the packets that %s lets through", p.Name, at.Interface,
		strings.Join(at.Front, " and "))
	if comesNothing(p) {
		text += ", and none has come yet"
	}
	return text + fmt.Sprintf("; attach %s=%s:first has it run before", p.Name, at.Interface)
}

// comesNothing reports whether a program has counted no packet.
func comesNothing(p api.Program) bool {
	for _, r := range p.Reasons {
		if r.Packets > 0 {
			return false
		}
	}
	return true
}

// columns lays out a table; the first row is its head.
func columns(rows [][]string) string {
	var width []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			line += fmt.Sprintf("%-*s  ", width[i], cell)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// sparse leaves out columns in which no row has anything.
func sparse(rows [][]string) [][]string {
	out := make([][]string, len(rows))
	for i := range rows[0] {
		if len(rows) > 1 && !slices.ContainsFunc(rows[1:], func(row []string) bool { return row[i] != "" }) {
			continue
		}
		for n, row := range rows {
			out[n] = append(out[n], row[i])
		}
	}
	return out
}

// showTopics are what show shows, and what it says about that.
var showTopics = []string{"kinds", "programs", "sessions", "groups", "receivers", "rows", "counters", "settings",
	"hops"}

// show shows a part of what the relay knows.
func (l *live) show(topic string, words []string, missing bool) error {
	switch topic {
	case "":
		return l.showRelay()
	case "kinds":
		return l.showKinds()
	case "programs":
		return l.showPrograms(words)
	case "counters":
		var c api.Counters
		if err := l.get("/v1/counters", &c); err != nil {
			return err
		}
		return l.print(c.Counters, pairs(c.Counters))
	case "settings":
		return l.print(l.info.Settings, pairs(l.info.Settings))
	case "hops":
		return l.showHops(missing)
	case "sessions":
		return l.each(words, "session", l.showSessions)
	case "groups":
		return l.each(words, "group", l.showGroups)
	case "receivers":
		return l.showReceivers(words)
	case "rows":
		return l.each(words, "table", l.showRows)
	}
	return usage("show has no %q", topic).nearest(topic, showTopics, "").
		hint("it has %s", strings.Join(showTopics, ", "))
}

func pairs(o api.Object) string {
	rows := [][]string{}
	for _, m := range o {
		rows = append(rows, []string{m.Name, showValue(m.Value)})
	}
	return columns(rows)
}

// each shows a kind, or all of that sort.
func (l *live) each(words []string, what string, show func(k *kindOf) error) error {
	if len(words) > 1 {
		return usage("extra argument %q", words[1])
	}
	if len(words) == 1 {
		k, err := l.kind(words[0], what)
		if err != nil {
			return err
		}
		return show(k)
	}
	for _, k := range l.kinds() {
		if k.what != what || k.Session != "" {
			continue
		}
		if !l.machine {
			fmt.Fprintf(l.out, "%s:\n", k.Name)
		}
		if err := show(&k); err != nil {
			return err
		}
	}
	return nil
}

func (l *live) showRelay() error {
	if l.machine {
		return l.json(l.info)
	}
	r := l.info
	state := "running"
	if r.Draining {
		state = "draining: nothing new is taken"
	}
	rows := [][]string{
		{"relay", r.Name}, {"state", state},
		{"process", fmt.Sprintf("%d, since %s", r.PID, r.Started.Format(time.DateTime))},
	}
	if r.Lease != nil {
		rows = append(rows, []string{"lease", fmt.Sprintf("%gs, %.2fs left", r.Lease.Seconds, r.Lease.Left)})
	}
	if r.Pinned != "" {
		rows = append(rows, []string{"pinned", r.Pinned})
	}
	for _, k := range r.Sessions {
		rows = append(rows, []string{"session " + k.Name, fmt.Sprintf("%s open, of %s", thousands(uint64(*k.Open)),
			thousands(uint64(k.Limit)))})
	}
	for _, k := range r.Groups {
		text := fmt.Sprintf("%s open, of %s, with %s", thousands(uint64(*k.Open)), thousands(uint64(k.Limit)),
			plural(*k.Receivers, "receiver"))
		rows = append(rows, []string{"group " + k.Name, text})
	}
	for _, k := range r.Tables {
		if k.Open != nil {
			rows = append(rows, []string{"table " + k.Name, plural(*k.Open, "row")})
		}
	}
	for _, e := range r.Events {
		rows = append(rows, []string{"event " + e.Name, thousands(e.Lost) + " lost"})
	}
	if r.Ring != nil {
		rows = append(rows, []string{"ring", fmt.Sprintf("%s of %s bytes wait to be read", thousands(r.Ring.Waiting),
			thousands(r.Ring.Size))})
	}
	for _, s := range r.Settings {
		rows = append(rows, []string{"setting " + s.Name, showValue(s.Value)})
	}
	fmt.Fprint(l.out, columns(rows)+"\n")
	return l.showPrograms(nil)
}

func (l *live) showKinds() error {
	if l.machine {
		return l.json(l.kinds())
	}
	rows := [][]string{{"KIND", "NAME", "KEY", "VALUES"}}
	for _, k := range l.kinds() {
		what := k.what
		if k.Session != "" {
			what += " of session " + k.Session
		}
		rows = append(rows, []string{what, k.Name, memberList(k.Key), memberList(k.Values)})
	}
	_, err := fmt.Fprint(l.out, columns(rows))
	return err
}

func memberList(members []api.Member) string {
	var parts []string
	for _, m := range members {
		text := m.Name + ":" + m.Kind
		if m.Kind == "uint" {
			text = fmt.Sprintf("%s:u%d", m.Name, m.Bits)
		}
		if m.Levels > 0 {
			text += fmt.Sprintf("[%d]", m.Levels)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " ")
}

func (l *live) showPrograms(words []string) error {
	var all api.Programs
	if err := l.get("/v1/programs", &all); err != nil {
		return err
	}
	if len(words) > 0 {
		var p api.Program
		if err := l.get("/v1/programs/"+api.Escape(words[0]), &p); err != nil {
			return err
		}
		all.Items = []api.Program{p}
	}
	if l.machine {
		return l.json(all.Items)
	}
	var rows []row
	for _, p := range all.Items {
		rows = append(rows, heads(fmt.Sprintf("%s (%s): %s", p.Name, p.Hook, attachmentList(p))))
		rows = append(rows, rowsOf("", reasons(p), label)...)
	}
	text := layOut(rows, 0, true)
	if d := droppedAfterXDP(&l.info); d != "" && len(words) == 0 {
		text += "\n" + d + "\n"
	}
	_, err := fmt.Fprint(l.out, text)
	return err
}

// droppedAfterXDP says which devices have dropped frames that programs had sent from XDP.
func droppedAfterXDP(r *api.Relay) string {
	if r.NoXDPDrops != "" {
		return "dropped after XDP: not counted: " + r.NoXDPDrops
	}
	var parts []string
	for _, d := range r.XDPDrops {
		parts = append(parts, fmt.Sprintf("%s %s %s", d.Interface, d.Reason, thousands(d.Packets)))
	}
	if parts == nil {
		return ""
	}
	return "dropped after XDP: " + strings.Join(parts, ", ")
}

func (l *live) showHops(missing bool) error {
	path := "/v1/next-hops"
	if missing {
		path += "?missing=true"
	}
	all, err := api.All[api.NextHop](l.ctx, l.client, path)
	if err != nil {
		return controlError(l.client.Path, err)
	}
	if l.machine {
		return l.json(all)
	}
	rows := [][]string{{"TO", "FROM", "PROTOCOL", "STATE", "INTERFACE", "LINK ADDRESS", "MTU", "ROWS", "WHY"}}
	for _, h := range all {
		rows = append(rows, []string{withPort(h.To, h.ToPort), withPort(h.From, h.FromPort), h.Protocol, h.State,
			h.Interface, h.MAC, fmt.Sprint(h.MTU), fmt.Sprint(h.Rows), h.Missing})
	}
	_, err = fmt.Fprint(l.out, columns(sparse(rows)))
	return err
}

// withPort is an address with its port, if that is known.
func withPort(addr string, port uint16) string {
	if port == 0 {
		return addr
	}
	return net.JoinHostPort(addr, fmt.Sprint(port))
}

// memberCells are a row's values, in the order of the members.
func memberCells(members []api.Member, o api.Object) (cells []string) {
	for _, m := range members {
		cells = append(cells, showValue(o.Get(m.Name)))
	}
	return cells
}

func memberHeads(members []api.Member) (cells []string) {
	for _, m := range members {
		cells = append(cells, strings.ToUpper(m.Name))
	}
	return cells
}

func hopCell(hops []api.NextHop) string {
	for _, h := range hops {
		if h.Missing != "" {
			return h.State + " " + h.To
		}
	}
	return ""
}

func (l *live) showSessions(k *kindOf) error {
	all, err := api.All[api.Session](l.ctx, l.client, "/v1/sessions/"+k.Name)
	if err != nil {
		return controlError(l.client.Path, err)
	}
	if l.machine {
		return l.json(all)
	}
	rows := [][]string{append(append([]string{"ID"}, memberHeads(k.Values)...),
		"PACKETS", "USED", "ENDS", "REFUSED", "NO HOP")}
	for _, s := range all {
		rows = append(rows, append(append([]string{s.ID}, memberCells(k.Values, s.Fields)...),
			packetsOf(s), l.used(s), until(s.Expires), refusedText(s.Fields), hopCell(s.Hops)))
	}
	_, err = fmt.Fprint(l.out, columns(sparse(rows)))
	return err
}

// packetsOf is what was sent for each row of a session: 12/30.
func packetsOf(s api.Session) string {
	var parts []string
	for _, r := range s.Rows {
		parts = append(parts, fmt.Sprint(r.Packets))
	}
	return strings.Join(parts, "/")
}

// used is when a session was used last, which a relay in user space doesn't know.
func (l *live) used(s api.Session) string {
	if l.info.Lease == nil {
		return ""
	}
	return ago(s.LastUsed)
}

func ago(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return max(time.Since(*t), 0).Round(time.Second).String() + " ago"
}

func until(t *time.Time) string {
	if t == nil {
		return ""
	}
	return "in " + max(time.Until(*t), 0).Round(time.Second).String()
}

func (l *live) showGroups(k *kindOf) error {
	all, err := api.All[api.Group](l.ctx, l.client, "/v1/groups/"+k.Name)
	if err != nil {
		return controlError(l.client.Path, err)
	}
	if l.machine {
		return l.json(all)
	}
	rows := [][]string{append(memberHeads(k.Key), "RECEIVERS")}
	for _, g := range all {
		rows = append(rows, append(memberCells(k.Key, g.Key), fmt.Sprint(g.Receivers)))
	}
	_, err = fmt.Fprint(l.out, columns(rows))
	return err
}

// showReceivers shows those of a group, or of all groups of a kind.
func (l *live) showReceivers(words []string) error {
	if len(words) == 0 {
		return l.each(nil, "group", func(k *kindOf) error { return l.showReceivers([]string{k.Name}) })
	}
	k, err := l.kind(words[0], "group")
	if err != nil {
		return err
	}
	var ids []string
	if len(words) > 1 {
		id, err := keyText(k.Name, k.Key, words[1:])
		if err != nil {
			return err
		}
		ids = []string{id}
	} else {
		groups, err := api.All[api.Group](l.ctx, l.client, "/v1/groups/"+k.Name)
		if err != nil {
			return controlError(l.client.Path, err)
		}
		for _, g := range groups {
			ids = append(ids, g.ID)
		}
	}
	type line struct {
		Group string `json:"group"`
		api.Receiver
	}
	all := []line{}
	for _, id := range ids {
		receivers, err := api.All[api.Receiver](l.ctx, l.client, "/v1/groups/"+k.Name+"/"+api.Escape(id)+"/receivers")
		if err != nil {
			return controlError(l.client.Path, err)
		}
		for _, v := range receivers {
			all = append(all, line{id, v})
		}
	}
	if l.machine {
		return l.json(all)
	}
	rows := [][]string{append(append([]string{"GROUP", "ID"}, memberHeads(k.Values)...),
		"COPIES", "DECLINED", "REFUSED", "NO HOP")}
	for _, v := range all {
		rows = append(rows, append(append([]string{v.Group, fmt.Sprint(v.ID)}, memberCells(k.Values, v.Values)...),
			thousands(v.Packets), thousands(v.Declined), refusedText(v.Values), hopCell(v.Hops)))
	}
	_, err = fmt.Fprint(l.out, columns(sparse(rows)))
	return err
}

// refusedText says what credits and buckets have refused: "share 31".
func refusedText(o api.Object) string {
	var parts []string
	for _, m := range o {
		n := uint64(0)
		for _, level := range refused(m.Value) {
			n += level
		}
		if n > 0 {
			parts = append(parts, m.Name+" "+thousands(n))
		}
	}
	return strings.Join(parts, ", ")
}

// refused is what a credit or a bucket has refused, or all of a list, by level of priority; nil: it is none. Each of a
// list counts by level, although a packet asks the one of its own level as a rule.
func refused(v any) (levels []uint64) {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	for _, one := range list {
		credit, _ := one.(map[string]any)
		all, _ := credit["refused"].([]any)
		for i, n := range all {
			if i == len(levels) {
				levels = append(levels, 0)
			}
			levels[i] += number(n)
		}
	}
	return levels
}

// number is an integer of an answer.
func number(v any) uint64 {
	n, _ := strconv.ParseUint(fmt.Sprint(v), 10, 64) // it is one
	return n
}

func (l *live) showRows(k *kindOf) error {
	all, err := api.All[api.Row](l.ctx, l.client, "/v1/tables/"+k.Name)
	if err != nil {
		return controlError(l.client.Path, err)
	}
	if l.machine {
		return l.json(all)
	}
	rows := [][]string{append(append(memberHeads(k.Key), memberHeads(k.Values)...), "REFUSED", "NO HOP")}
	for _, r := range all {
		rows = append(rows, append(append(memberCells(k.Key, r.Key), memberCells(k.Values, r.Value)...),
			refusedText(r.Value), hopCell(r.Hops)))
	}
	_, err = fmt.Fprint(l.out, columns(sparse(rows)))
	return err
}
