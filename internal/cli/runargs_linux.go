package cli

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/literal"
)

// What `run` takes on the command line, in the values of package runtime.
type runInput struct {
	page     string // the address of the page about the relay, or ""
	log      *slog.Logger
	attach   []wantedAttachment
	detached []attachment // that a relay which was taken over had, and that aren't asked for
	settings map[string]any
	sessions []sessionInput
	rows     []rowInput
	groups   []*groupInput
	traffic  *traffic // nil: none

	before []attachment          // of the relay, when it was loaded
	opened []*runtime.AnySession // by this run
	stands bool                  // what is asked for stands
}

type attachment struct{ program, iface string }

// wantedAttachment is one with its place among the programs of others.
type wantedAttachment struct {
	attachment
	place
}

type sessionInput struct {
	kind   string
	fields []any  // in the order of the session's fields
	text   string // as it was given
}

type rowInput struct {
	table      string
	key, value []any  // in the order of the visible members
	text       string // as it was given
}

// parseRun reads the flags against the relay's description. All names and values are checked before anything is loaded.
func parseRun(desc *abi.Desc, opt runOptions) (*runInput, error) {
	in := &runInput{settings: map[string]any{}}
	for _, text := range opt.attach {
		program, iface, at, err := parseAttach(text, desc.Programs[0].Name)
		if err != nil {
			return nil, err
		}
		if findProgram(desc, program) == nil {
			return nil, unknown("program", program, programNames(desc))
		}
		in.attach = append(in.attach, wantedAttachment{attachment{program, iface}, at})
	}
	for _, text := range opt.settings {
		if err := in.setting(desc, text); err != nil {
			return nil, err
		}
	}
	for _, s := range desc.Settings {
		if _, given := in.settings[s.Name]; s.Required && !given {
			return nil, usage("the setting %q has no default", s.Name).hint("give it a value: --set %s=…", s.Name)
		}
	}
	for _, text := range opt.sessions {
		if err := in.session(desc, text); err != nil {
			return nil, err
		}
	}
	for _, text := range opt.rows {
		if err := in.row(desc, text); err != nil {
			return nil, err
		}
	}
	for _, text := range opt.receivers {
		if err := in.receiver(desc, text); err != nil {
			return nil, err
		}
	}
	return in, nil
}

func findProgram(desc *abi.Desc, name string) *abi.Program {
	for i := range desc.Programs {
		if desc.Programs[i].Name == name {
			return &desc.Programs[i]
		}
	}
	return nil
}

func programNames(desc *abi.Desc) []string {
	var names []string
	for _, p := range desc.Programs {
		names = append(names, p.Name)
	}
	return names
}

func (in *runInput) setting(desc *abi.Desc, text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return usage("--set %q isn't SETTING=VALUE", text)
	}
	var names []string
	for _, s := range desc.Settings {
		if s.Name == name {
			v, err := parseValue("setting "+name, member{kind: s.Kind}, value)
			if err != nil {
				return err
			}
			in.settings[name] = v
			return nil
		}
		names = append(names, s.Name)
	}
	return unknown("setting", name, names)
}

// member is a name with a kind: a field of a session, a member of a row.
type member struct {
	name   string
	kind   abi.Kind
	levels int // how many values, one for each level of priority; 0: a single one
}

// isState says whether the member refers to something that changes while packets flow.
func (m member) isState() bool {
	switch m.kind {
	case abi.KindCounter, abi.KindCredit, abi.KindBucket, abi.KindTranslation:
		return true
	}
	return false
}

// mayBeLeftOut reports whether a value is optional: a counter begins at 0, and a translation has no value. A credit
// without a limit would admit nothing.
func (m member) mayBeLeftOut() bool {
	return m.kind == abi.KindCounter || m.kind == abi.KindTranslation
}

func (in *runInput) session(desc *abi.Desc, text string) error {
	kind, rest, ok := strings.Cut(text, "=")
	if !ok {
		return usage("--session %q isn't KIND=FIELD=VALUE…", text).
			hint("for example --session 'flow=client=198.51.100.7:40001 id=7'")
	}
	var names []string
	for _, s := range desc.Sessions {
		if s.Name != kind {
			names = append(names, s.Name)
			continue
		}
		var members []member
		for _, f := range s.Fields {
			members = append(members, member{f.Name, f.Kind, f.Levels})
		}
		fields, err := parseMembers("session "+kind, members, strings.Fields(rest))
		if err != nil {
			return err
		}
		for i, v := range fields {
			if v == nil && !members[i].mayBeLeftOut() {
				return usage("--session %s has no %s", kind, members[i].name).
					hint("a session needs all its fields: %s", memberNames(members))
			}
		}
		in.sessions = append(in.sessions, sessionInput{kind, fields, text})
		return nil
	}
	return unknown("session", kind, names)
}

func (in *runInput) row(desc *abi.Desc, text string) error {
	table, rest, ok := strings.Cut(text, "=")
	if !ok {
		return usage("--row %q isn't TABLE=MEMBER=VALUE…", text).
			hint("for example --row 'routes=dst=203.0.113.0/24 fast=192.0.2.1'")
	}
	var names []string
	for _, t := range desc.Tables {
		if t.Session != "" {
			if t.Name == table {
				return usage("the rows of %q belong to the session %q", table, t.Session).
					hint("open one with --session")
			}
			continue
		}
		if t.Name != table {
			names = append(names, t.Name)
			continue
		}
		keys, values := visible(t.Key), visible(t.Value)
		all, err := parseMembers("table "+table, append(keys, values...), strings.Fields(rest))
		if err != nil {
			return err
		}
		for i, k := range keys {
			if all[i] == nil {
				return usage("--row %s has no %s", table, k.name).hint("the key of %s is %s", table, memberNames(keys))
			}
		}
		for i, m := range values {
			if all[len(keys)+i] == nil && !m.mayBeLeftOut() {
				return usage("--row %s has no %s", table, m.name).hint("a row of %s has %s", table, memberNames(values))
			}
		}
		in.rows = append(in.rows, rowInput{table, all[:len(keys)], all[len(keys):], text})
		return nil
	}
	return unknown("table", table, names)
}

func visible(members []abi.Member) []member {
	var out []member
	for _, m := range members {
		if !m.Hidden {
			out = append(out, member{m.Name, m.Kind, m.Levels})
		}
	}
	return out
}

func memberNames(members []member) string {
	var names []string
	for _, m := range members {
		names = append(names, m.name)
	}
	return strings.Join(names, ", ")
}

// parseMembers reads the words "name=value"; the result has one element for each member, nil where none was given.
func parseMembers(where string, members []member, words []string) ([]any, error) {
	out := make([]any, len(members))
	for _, word := range words {
		name, value, ok := strings.Cut(word, "=")
		if !ok {
			return nil, usage("%s: %q isn't NAME=VALUE", where, word).hint("members are %s", memberNames(members))
		}
		found := false
		for i, m := range members {
			if m.name != name {
				continue
			}
			if out[i] != nil {
				return nil, usage("%s: %s is given twice", where, name)
			}
			v, err := parseValue(where+", "+name, m, value)
			if err != nil {
				return nil, err
			}
			out[i], found = v, true
		}
		if !found {
			return nil, usage("%s has no %q", where, name).hint("it has %s", memberNames(members))
		}
	}
	return out, nil
}

func parseValue(where string, m member, text string) (any, error) {
	v, err := readValues(m.kind, m.levels, text, func(v any) any {
		if r, ok := v.(literal.Rate); ok {
			return runtime.Rate(r)
		}
		return v
	})
	if err != nil {
		return nil, &diag.Diagnostic{Code: codeValue, Message: fmt.Sprintf("%s: %v", where, err)}
	}
	return v, nil
}
