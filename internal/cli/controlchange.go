package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// Commands that change a relay that runs, or wait for it.

// opening is a session or a group to open, or a row to put.
type opening struct {
	kindOf
	key       api.Object    // of a group or a row
	values    api.Object    // fields of a session, values of a row
	receivers []api.Object  // of a group
	names     []string      // of these receivers, as `run` shows them
	lifetime  time.Duration // of a session; 0: none of its own

	session api.Session // the answer, of a session
	group   api.Group   // likewise
}

// put opens it, or puts the row. What the relay refuses is an [api.Problem].
func (l *live) put(o *opening) error {
	at := "/v1/" + o.what + "s/" + o.Name
	switch o.what {
	case "session":
		if o.lifetime > 0 {
			at += fmt.Sprintf("?lifetime=%v", o.lifetime.Seconds())
		}
		return l.ask("POST", at, o.values, &o.session)
	case "group":
		return l.ask("POST", at, api.OpenGroup{Key: o.key, Receivers: o.receivers}, &o.group)
	}
	return l.ask("PUT", o.at(), o.values, nil)
}

// at is the path of a group or a row.
func (o *opening) at() string {
	return "/v1/" + o.what + "s/" + o.Name + "/" + api.Escape(keyID(o.Key, o.key))
}

// open opens a session or a group.
func (l *live) open(name string, words []string, lifetime time.Duration) error {
	k, err := l.kind(name, "session", "group")
	if err != nil {
		return err
	}
	o := &opening{kindOf: *k, lifetime: lifetime}
	if k.what == "session" {
		if o.values, err = assign(name, k.Values, words); err != nil {
			return err
		}
		if err := l.put(o); err != nil {
			return controlError(l.client.Path, err)
		}
		s := o.session
		return l.print(s, fmt.Sprintf("%s %s is open%s\n", name, s.ID, trouble(s.Hops)))
	}
	if lifetime > 0 {
		return usage("--lifetime is for sessions, and %s is a group", name)
	}
	parts := split(words)
	if o.key, err = assign(name, k.Key, parts[0]); err != nil {
		return err
	}
	for _, words := range parts[1:] {
		v, err := assign("a receiver of "+name, k.Values, words)
		if err != nil {
			return err
		}
		o.receivers = append(o.receivers, v)
	}
	if err := l.put(o); err != nil {
		return controlError(l.client.Path, err)
	}
	g := o.group
	return l.print(g, fmt.Sprintf("%s %s is open, with %s\n", name, g.ID, plural(g.Receivers, "receiver")))
}

// split splits words at slashes.
func split(words []string) [][]string {
	out := [][]string{nil}
	for _, w := range words {
		if w == "/" {
			out = append(out, nil)
		} else {
			out[len(out)-1] = append(out[len(out)-1], w)
		}
	}
	return out
}

// trouble says which next hops are missing.
func trouble(hops []api.NextHop) string {
	text := ""
	for _, h := range hops {
		if h.Missing != "" {
			text += fmt.Sprintf("; to %s: %s", h.To, h.Missing)
		}
	}
	return text
}

// print prints an answer for machines or for people.
func (a *app) print(answer any, text string) error {
	if a.machine {
		return a.json(answer)
	}
	_, err := fmt.Fprint(a.out, text)
	return err
}

// close closes sessions, a group, some of its receivers, or removes a row.
func (l *live) close(name string, words []string, all bool) error {
	k, err := l.kind(name, "session", "group", "table")
	if err != nil {
		return err
	}
	if k.what == "session" {
		return l.closeSessions(k, words, all)
	}
	key, rest := cutKey(k, words)
	id, err := keyText(name, k.Key, key)
	if err != nil {
		return err
	}
	at := "/v1/" + k.what + "s/" + name + "/" + api.Escape(id)
	if len(rest) == 0 {
		if err := l.do("DELETE", at, nil, nil); err != nil {
			return err
		}
		return l.print(map[string]string{"closed": id}, fmt.Sprintf("%s %s is closed\n", name, id))
	}
	change := api.ChangeGroup{}
	for _, word := range rest {
		n, err := strconv.ParseUint(word, 10, 32)
		if k.what != "group" || err != nil {
			return usage("%q is neither a part of the key of %s nor a receiver's number", word, name)
		}
		change.Remove = append(change.Remove, uint32(n))
	}
	var done api.GroupChanged
	if err := l.do("PATCH", at, change, &done); err != nil {
		return err
	}
	return l.print(done, fmt.Sprintf("%s %s has %s\n", name, id, plural(done.Receivers, "receiver")))
}

// which finds sessions by ID, or by their fields.
func (l *live) which(k *kindOf, words []string, all bool) (ids []string, err error) {
	if len(words) == 0 && !all {
		return nil, usage("which %s?", k.Name).hint("name an ID, or fields; --all means all")
	}
	var given []string
	for _, w := range words {
		if strings.Contains(w, "=") {
			given = append(given, w)
		} else {
			ids = append(ids, w)
		}
	}
	fields, err := assign(k.Name, k.Values, given)
	if err != nil {
		return nil, err
	}
	if len(fields) > 0 || all {
		sessions, err := api.All[api.Session](l.ctx, l.client, "/v1/sessions/"+k.Name)
		if err != nil {
			return nil, controlError(l.client.Path, err)
		}
		for _, s := range sessions {
			if has(s, fields) {
				ids = append(ids, s.ID)
			}
		}
	}
	if len(ids) == 0 && !all {
		return nil, &diag.Diagnostic{Code: codeRelay, Message: fmt.Sprintf("no open %s has these fields", k.Name),
			Hint: "fastrelay-gen show sessions " + k.Name + " lists those that are open"}
	}
	return ids, nil
}

// closeSessions closes those that are named by ID, or whose fields are as given.
func (l *live) closeSessions(k *kindOf, words []string, all bool) error {
	ids, err := l.which(k, words, all)
	if err != nil {
		return err
	}
	var done api.Closed
	if len(ids) > 0 {
		if err := l.do("POST", "/v1/close/"+k.Name, api.CloseSessions{IDs: ids}, &done); err != nil {
			return err
		}
	}
	return l.print(done, fmt.Sprintf("%s closed\n", plural(done.Closed, "session")))
}

// refresh gives sessions their whole time again, or a time after which they end.
func (l *live) refresh(name string, words []string, all bool, lifetime time.Duration) error {
	k, err := l.kind(name, "session")
	if err != nil {
		return err
	}
	ids, err := l.which(k, words, all)
	if err != nil {
		return err
	}
	var done api.Refreshed
	want := api.RefreshSessions{IDs: ids, Lifetime: lifetime.Seconds()}
	if err := l.do("POST", "/v1/refresh/"+k.Name, want, &done); err != nil {
		return err
	}
	text := plural(done.Refreshed, "session") + " refreshed\n"
	for _, id := range done.Over {
		text += fmt.Sprintf("%s %s is over, or was never open\n", name, id)
	}
	if err := l.print(done, text); err != nil || len(done.Over) == 0 {
		return err
	}
	return exit(statusDiffers)
}

// setSession changes fields of a session.
func (l *live) setSession(k *kindOf, words []string) error {
	parts := split(words)
	if len(parts) == 1 && len(words) > 0 { // ID NAME=VALUE…
		parts = [][]string{words[:1], words[1:]}
	}
	if len(parts) != 2 || len(parts[1]) == 0 {
		return usage("which values of which %s?", k.Name).
			hint("set %[1]s ID NAME=VALUE…, or set %[1]s NAME=VALUE… / NAME=VALUE…: which one, its new values",
				k.Name)
	}
	ids, err := l.which(k, parts[0], false)
	if err != nil {
		return err
	}
	if len(ids) > 1 {
		return usage("%d sessions are so", len(ids)).hint("name one: %s", strings.Join(ids[:min(len(ids), 5)], ", "))
	}
	fields, err := assign(k.Name, k.Values, parts[1])
	if err != nil {
		return err
	}
	var s api.Session
	if err := l.do("PATCH", "/v1/sessions/"+k.Name+"/"+api.Escape(ids[0]), fields, &s); err != nil {
		return err
	}
	return l.print(s, fmt.Sprintf("%s %s: %s%s\n", k.Name, s.ID, objectText(s.Fields), trouble(s.Hops)))
}

// has says whether a session's fields are as given.
func has(s api.Session, fields api.Object) bool {
	return !slices.ContainsFunc(fields, func(m api.Named) bool { return !equal(s.Fields.Get(m.Name), m.Value) })
}

// equal compares a value of an answer with one that was given.
func equal(answer, given any) bool {
	a, err1 := json.Marshal(answer)
	b, err2 := json.Marshal(given)
	return err1 == nil && err2 == nil && string(a) == string(b)
}

// set changes a session, or puts or changes a row, or changes a receiver, or adds one.
func (l *live) set(name string, words []string) error {
	k, err := l.kind(name, "session", "table", "group")
	if err != nil {
		return err
	}
	switch k.what {
	case "session":
		return l.setSession(k, words)
	case "group":
		return l.setReceiver(k, words)
	}
	key, rest := cutKey(k, words)
	id, err := keyText(name, k.Key, key)
	if err != nil {
		return err
	}
	values, err := assign(name, k.Values, rest)
	if err != nil {
		return err
	}
	at := "/v1/tables/" + name + "/" + api.Escape(id)
	method := "PATCH"
	err = l.client.Get(l.ctx, at, nil)
	var p *api.Problem
	if errors.As(err, &p) && p.Code == api.CodeNotFound {
		method = "PUT"
	}
	var row api.Row
	if err := l.do(method, at, values, &row); err != nil {
		return err
	}
	return l.print(row, fmt.Sprintf("%s %s: %s%s\n", name, row.ID, objectText(row.Value), trouble(row.Hops)))
}

// setReceiver reads KEY=V… / ID NAME=V… or, for a new one, KEY=V… / NAME=V….
func (l *live) setReceiver(k *kindOf, words []string) error {
	parts := split(words)
	if len(parts) != 2 || len(parts[1]) == 0 {
		return usage("which receiver of %s?", k.Name).
			hint("set %s KEY=VALUE… / ID NAME=VALUE… changes one; without ID, it adds one", k.Name)
	}
	id, err := keyText(k.Name, k.Key, parts[0])
	if err != nil {
		return err
	}
	change := api.ChangeGroup{}
	number, err := strconv.ParseUint(parts[1][0], 10, 32)
	rest := parts[1]
	if err == nil {
		rest = rest[1:]
	}
	values, err2 := assign("a receiver of "+k.Name, k.Values, rest)
	if err2 != nil {
		return err2
	}
	if err == nil {
		change.Set = []api.ChangeReceiver{{ID: uint32(number), Values: values}}
	} else {
		change.Add = []api.Object{values}
	}
	var done api.GroupChanged
	if err := l.do("PATCH", "/v1/groups/"+k.Name+"/"+api.Escape(id), change, &done); err != nil {
		return err
	}
	text := fmt.Sprintf("receiver %d of %s %s is changed\n", number, k.Name, id)
	if len(done.Added) > 0 {
		text = fmt.Sprintf("receiver %d of %s %s is added\n", done.Added[0], k.Name, id)
	}
	return l.print(done, text)
}

// attach attaches or detaches programs; hook is what --hook says, if it is given.
func (l *live) attach(method string, places []string, hook string) error {
	var paths []string
	for _, text := range places {
		program, iface, at, err := parseAttach(text, l.info.Programs[0])
		if err != nil {
			return err
		}
		path, query := "/v1/programs/"+api.Escape(program)+"/attachments/"+api.Escape(iface), url.Values{}
		switch {
		case at != place{} && method == "DELETE":
			return usage("%q: what is detached has no place", text).hint("fastrelay-gen detach %s=%s", program, iface)
		case at.first:
			query.Set("first", "true")
		case at.before != "":
			query.Set("before", at.before)
		}
		if hook != "" {
			query.Set("hook", hook)
		}
		if len(query) > 0 {
			path += "?" + query.Encode()
		}
		paths = append(paths, path)
	}
	out := []api.Program{}
	for _, path := range paths {
		var p api.Program
		if err := l.do(method, path, nil, &p); err != nil {
			return err
		}
		out = append(out, p)
	}
	text := ""
	for _, p := range out {
		text += p.Name + ": " + attachmentList(p) + "\n"
	}
	return l.print(out, text)
}

// place is where among the programs of others a program is attached; by default after them.
type place struct {
	first  bool
	before string // the name of a program
}

// parseAttach reads PROGRAM=INTERFACE, PROGRAM=INTERFACE:first, or PROGRAM=INTERFACE:before=NAME. No interface has a
// colon in its name.
func parseAttach(text, program string) (name, iface string, at place, err error) {
	name, rest, _ := strings.Cut(text, "=")
	iface, where, given := strings.Cut(rest, ":")
	at.first = where == "first"
	at.before, _ = strings.CutPrefix(where, "before=")
	if at.first {
		at.before = ""
	}
	if name == "" || iface == "" || given && !at.first && (at.before == "" || at.before == where) {
		return "", "", at, usage("%q isn't PROGRAM=INTERFACE, PROGRAM=INTERFACE:first or PROGRAM=INTERFACE:before=NAME",
			text).hint("for example %s=eth0", program)
	}
	return name, iface, at, nil
}

func attachmentList(p api.Program) string {
	if len(p.Attachments) == 0 {
		return "not attached"
	}
	var places []string
	for _, at := range p.Attachments {
		text := fmt.Sprintf("%s (%s)", at.Interface, at.At())
		if at.NoXDP != "" {
			text = strings.TrimSuffix(text, ")") + "; not at XDP: " + at.NoXDP + ")"
		}
		for _, version := range at.NoForwarding {
			text = strings.TrimSuffix(text, ")") + fmt.Sprintf("; forwarding of IPv%d is off)", version)
		}
		for _, front := range at.Front {
			text = strings.TrimSuffix(text, ")") + "; behind " + front + ")"
		}
		if !at.Attached {
			text = at.Interface + " (" + at.Error + ")"
		}
		places = append(places, text)
	}
	return strings.Join(places, ", ")
}

// drain waits until nothing is open.
func (l *live) drain(limit time.Duration, closeRest, undo bool) error {
	if undo {
		if err := l.do("DELETE", "/v1/drain", nil, nil); err != nil {
			return err
		}
		return l.print(map[string]bool{"draining": false}, l.info.Name+" takes new sessions again\n")
	}
	var done api.Drained
	body := api.Drain{Limit: limit.Seconds(), Close: closeRest}
	if err := l.client.Do(l.ctx, "POST", "/v1/drain", body, &done); err != nil {
		return controlError(l.client.Path, err)
	}
	text := fmt.Sprintf("%s is drained, and takes nothing new\n", l.info.Name)
	if !done.Drained {
		text = fmt.Sprintf("%s takes nothing new; %s and %s are left\n", l.info.Name, plural(done.Sessions, "session"),
			plural(done.Receivers, "receiver"))
	}
	if err := l.print(done, text); err != nil || done.Drained {
		return err
	}
	return exit(statusDiffers)
}

// events prints events as they come.
func (l *live) events(names []string) error {
	err := l.client.Events(l.ctx, names, func(name string, data json.RawMessage) error {
		if l.machine {
			_, err := fmt.Fprintf(l.out, "%s\n", data)
			return err
		}
		if name == "missed" {
			var m api.Missed
			if err := json.Unmarshal(data, &m); err != nil {
				return err
			}
			_, err := fmt.Fprintf(l.out, "%s were missed\n", plural(int(m.Missed), "event"))
			return err
		}
		var e api.Event
		if err := json.Unmarshal(data, &e); err != nil {
			return err
		}
		_, err := fmt.Fprint(l.out, eventLine(&e, func(v api.EventReceiver) string {
			return fmt.Sprintf("%s %s, %d", v.Group, v.Key, v.ID)
		}))
		return err
	})
	if errors.Is(err, syscall.EPIPE) || l.ctx.Err() != nil { // its end is none of the relay
		return nil
	}
	return controlError(l.client.Path, err)
}

// eventLine is an event as a line: "14:05:07.123456 sent to subscribers 1: original=17 sequence=4", and what it says of
// each copy in further lines: "  to subscribers 1: sequence=4". name is what a receiver is called.
func eventLine(e *api.Event, name func(api.EventReceiver) string) string {
	to := func(v *api.EventReceiver) string {
		if v == nil {
			return ""
		}
		if s := name(*v); s != "" {
			return " to " + s
		}
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s%s: %s\n", e.Time.Format("15:04:05.000000"), e.Event, to(e.Receiver), objectText(e.Fields))
	for _, c := range e.Copies {
		fmt.Fprintf(&b, " %s: %s\n", cmp.Or(to(c.Receiver), " to one that is gone"), objectText(c.Values))
	}
	return b.String()
}

// stop ends the relay's process, and returns when it has ended: its socket goes first, and its pins last.
func (l *live) stop() error {
	p := listener(l.client.Path)
	defer p.close()
	if err := l.do("POST", "/v1/stop", nil, nil); err != nil {
		return err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := l.client.Get(l.ctx, "/v1", nil)
		if (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)) && p.ended() {
			return l.print(map[string]bool{"stopped": true}, l.info.Name+" has ended\n")
		}
		select {
		case <-l.ctx.Done():
			return l.ctx.Err()
		case <-tick.C:
		}
	}
}
