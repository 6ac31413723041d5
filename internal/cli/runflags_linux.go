package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// beginning is what a relay of `run` begins with, as the control socket takes it: from the command line, or from the
// spec's tests.
type beginning struct {
	*live    // until the relay is loaded, it has only what its description says
	attach   []wantedAttachment
	hook     runtime.Hook
	settings map[string]any // as package runtime takes them
	open     []*opening
}

type attachment struct{ program, iface string }

// wantedAttachment is one with its place among the programs of others.
type wantedAttachment struct {
	attachment
	place
}

// parse reads the flags against the relay's description. All names and values are checked before anything is loaded.
func (b *beginning) parse(desc *abi.Desc, opt runOptions) error {
	if err := b.hook.UnmarshalText([]byte(opt.hook)); err != nil {
		return usage("--hook %v", err)
	}
	for _, text := range opt.attach {
		program, iface, at, err := parseAttach(text, b.info.Programs[0])
		if err != nil {
			return err
		}
		if !slices.Contains(b.info.Programs, program) {
			return unknown("program", program, b.info.Programs)
		}
		b.attach = append(b.attach, wantedAttachment{attachment{program, iface}, at})
	}
	for _, text := range opt.settings {
		if err := b.setting(desc, text); err != nil {
			return err
		}
	}
	for _, flag := range []struct {
		given []string
		read  func(text string) error
	}{{opt.sessions, b.session}, {opt.rows, b.row}, {opt.receivers, b.receiver}} {
		for _, text := range flag.given {
			if err := flag.read(text); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *beginning) setting(desc *abi.Desc, text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return usage("--set %q isn't SETTING=VALUE", text)
	}
	var names []string
	for _, s := range desc.Settings {
		if s.Name == name {
			v, err := readValue(s.Kind, value)
			if err != nil {
				return &diag.Diagnostic{Code: codeValue, Message: fmt.Sprintf("setting %s: %v", name, err)}
			}
			b.settings[name] = v
			return nil
		}
		names = append(names, s.Name)
	}
	return unknown("setting", name, names)
}

func (b *beginning) kind(name, what string) (*kindOf, error) {
	k, err := b.live.kind(name, what)
	if err != nil {
		return nil, unknown(what, name, b.kindNames(what))
	}
	return k, nil
}

func (b *beginning) session(text string) error {
	name, rest, ok := strings.Cut(text, "=")
	if !ok {
		return usage("--session %q isn't KIND=FIELD=VALUE…", text).
			hint("for example --session 'flow=client=198.51.100.7:40001 id=7'")
	}
	k, err := b.kind(name, "session")
	if err != nil {
		return err
	}
	fields, err := assign("session "+name, k.Values, strings.Fields(rest))
	if err == nil {
		err = whole("--session "+name, "", "a session needs all its fields:", k.Values, fields)
	}
	b.add(&opening{kindOf: *k, values: fields})
	return err
}

func (b *beginning) row(text string) error {
	name, rest, ok := strings.Cut(text, "=")
	if !ok {
		return usage("--row %q isn't TABLE=MEMBER=VALUE…", text).
			hint("for example --row 'routes=dst=203.0.113.0/24 fast=192.0.2.1'")
	}
	k, err := b.kind(name, "table")
	if err != nil {
		return err
	}
	if k.Session != "" {
		return usage("the rows of %q belong to the session %q", name, k.Session).hint("open one with --session")
	}
	all, err := assign("table "+name, slices.Concat(k.Key, k.Values), strings.Fields(rest))
	if err == nil {
		err = whole("--row "+name, "", "the key of "+name+" is", k.Key, all)
	}
	if err == nil {
		err = whole("--row "+name, "", "a row of "+name+" has", k.Values, all)
	}
	o := &opening{kindOf: *k}
	for _, v := range all {
		if slices.ContainsFunc(k.Key, func(m api.Member) bool { return m.Name == v.Name }) {
			o.key = append(o.key, v)
		} else {
			o.values = append(o.values, v)
		}
	}
	b.add(o)
	return err
}

// receiver reads 'GROUP=KEY=V KEY=V / FIELD=V FIELD=V'. The key is before the slash, since a key and a receiver may
// have members of the same name. Receivers with the same key are one group.
func (b *beginning) receiver(text string) error {
	name, rest, ok := strings.Cut(text, "=")
	parts := split(strings.Fields(rest))
	if !ok || strings.ContainsAny(name, " /") || len(parts) != 2 {
		return usage("--receiver %q isn't 'GROUP=KEY=VALUE… / FIELD=VALUE…'", text).
			hint("for example --receiver 'subscribers=publisher=192.0.2.2:5004 ssrc=7 / " +
				"local=192.0.2.1:5004 remote=203.0.113.2:6000'")
	}
	k, err := b.kind(name, "group")
	if err != nil {
		return err
	}
	given, err := assign("the key of group "+name, k.Key, parts[0])
	if err == nil {
		err = whole("--receiver "+name, " before the /", "the key of "+name+" is", k.Key, given)
	}
	if err != nil {
		return err
	}
	v, err := assign("receiver of "+name, k.Values, parts[1])
	if err == nil {
		err = whole("--receiver "+name, " after the /", "a receiver of "+name+" has", k.Values, v)
	}
	b.add(&opening{kindOf: *k, key: given, receivers: []api.Object{v}})
	return err
}

// add adds what there is to open. Receivers with the key of a group are added to that one.
func (b *beginning) add(o *opening) *opening {
	into, number := o, 0 // of receivers of this kind of group
	for _, other := range b.all(o.what) {
		if other.Name == o.Name {
			number += len(other.receivers)
			if o.what == "group" && keyID(o.Key, other.key) == keyID(o.Key, o.key) {
				into = other
			}
		}
	}
	for i := range o.receivers {
		into.names = append(into.names, fmt.Sprintf("%s %d", o.Name, number+i+1))
	}
	if into != o {
		into.receivers = append(into.receivers, o.receivers...)
	} else {
		b.open = append(b.open, o)
	}
	return into
}

// whole makes sure that all members are given, apart from counters, which begin at 0. A credit without a limit would
// admit nothing.
func whole(flag, place, needed string, members []api.Member, given api.Object) error {
	for _, m := range members {
		if given.Get(m.Name) == nil && m.Kind != abi.KindCounter.String() {
			return usage("%s has no %s%s", flag, m.Name, place).
				hint("%s %s", needed, strings.Join(memberNames(members), ", "))
		}
	}
	return nil
}

// all returns what there is to open of a sort: sessions, groups, or rows ("table").
func (b *beginning) all(what string) (all []*opening) {
	for _, o := range b.open {
		if o.what == what {
			all = append(all, o)
		}
	}
	return all
}
