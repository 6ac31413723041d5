package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/spell"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/literal"
)

// Commands for relays that run, whoever runs them: they use the relay's control socket.

// askFor is how long a relay may take to answer what it answers at once.
const askFor = 5 * time.Second

// live is a relay that runs.
type live struct {
	*app
	ctx    context.Context
	client *api.Client
	info   api.Relay
}

// find connects to a relay: the one of a socket, or the only one that there is.
func (a *app) find(ctx context.Context, socket string) (*live, error) {
	if socket == "" {
		all := sockets()
		switch len(all) {
		case 1:
			socket = all[0]
		case 0:
			return nil, &diag.Diagnostic{Code: codeRelay, Message: "no relay with a control socket runs here",
				Hint: fmt.Sprintf("sockets are looked for in %s; run a relay with --control, or name its socket: "+
					"--socket PATH", api.Folder())}
		default:
			var names []string
			for _, path := range all {
				names = append(names, socketName(path))
			}
			return nil, &diag.Diagnostic{Code: codeRelay, Message: fmt.Sprintf("%d relays run here", len(all)),
				Hint: "say which: --socket " + strings.Join(names, ", --socket ")}
		}
	}
	l := &live{app: a, ctx: ctx, client: api.NewClient(api.PathOf(socket))}
	if err := l.get("/v1", &l.info); err != nil {
		return nil, err
	}
	return l, nil
}

// sockets lists those of relays that answer, or can't be asked by this user.
func sockets() []string {
	paths, _ := filepath.Glob(filepath.Join(api.Folder(), "*.sock")) // the pattern is one
	return slices.DeleteFunc(paths, func(path string) bool {
		ctx, cancel := context.WithTimeout(context.Background(), askFor)
		defer cancel()
		c := api.NewClient(path)
		defer c.Close()
		return errors.Is(c.Get(ctx, "/v1", nil), syscall.ECONNREFUSED) // its process was killed
	})
}

func socketName(path string) string { return strings.TrimSuffix(filepath.Base(path), ".sock") }

func (l *live) get(path string, out any) error { return l.do("GET", path, nil, out) }

// do asks for what is answered at once.
func (l *live) do(method, path string, body, out any) error {
	return controlError(l.client.Path, l.ask(method, path, body, out))
}

// ask is do with the error as it is: what the relay refuses is an [api.Problem].
func (l *live) ask(method, path string, body, out any) error {
	ctx, cancel := context.WithTimeout(l.ctx, askFor)
	defer cancel()
	return l.client.Do(ctx, method, path, body, out)
}

// controlError says what to do about an error of a control socket.
func controlError(path string, err error) error {
	var p *api.Problem
	if err == nil || errors.Is(err, context.Canceled) { // "stopped": what was asked for may not have happened
		return err
	}
	d := &diag.Diagnostic{Code: codeRelay, Message: err.Error()}
	switch {
	case errors.As(err, &p):
		d.Message, d.Hint = p.Detail, strings.ReplaceAll(p.Fix, "GET /v1/openapi.json has the types",
			"fastrelay-gen show kinds lists fields and their types")
	case errors.Is(err, fs.ErrNotExist):
		d.Message, d.Hint = "there is no socket "+path, "fastrelay-gen ps lists the relays of this machine"
	case errors.Is(err, syscall.ECONNREFUSED):
		d.Message = "no process listens on " + path
		d.Hint = "the relay's process was killed; its packets pass to the stack. Start it again"
	case errors.Is(err, fs.ErrPermission):
		d.Message, d.Hint = "this user may not use "+path, "ask as the user of the relay's process, or as root"
	}
	return d
}

// kindOf is what a name on the command line stands for.
type kindOf struct {
	what string // session, group, table
	api.Kind
}

// kind finds a kind of session, a kind of group, or a table.
func (l *live) kind(name string, what ...string) (*kindOf, error) {
	var names []string
	for _, k := range l.kinds() {
		if slices.Contains(what, k.what) {
			if k.Name == name {
				return &k, nil
			}
			names = append(names, k.Name)
		}
	}
	d := &diag.Diagnostic{Code: codeRelay, Message: fmt.Sprintf("relay %q has no %s %q", l.info.Name,
		strings.Join(what, " or "), name)}
	if n := spell.Nearest(name, names); n != "" {
		d.Hint = "did you mean " + n + "?"
	} else if len(names) > 0 {
		d.Hint = "it has " + strings.Join(names, ", ")
	}
	return nil, d
}

// kinds lists what the relay has. Tables of sessions come under their sessions.
func (l *live) kinds() (all []kindOf) {
	for _, k := range l.info.Sessions {
		all = append(all, kindOf{"session", k})
	}
	for _, k := range l.info.Groups {
		all = append(all, kindOf{"group", k})
	}
	for _, k := range l.info.Tables {
		all = append(all, kindOf{"table", k})
	}
	return all
}

// assign reads words such as client=198.51.100.7:40001 as values of members.
func assign(where string, members []api.Member, words []string) (api.Object, error) {
	var out api.Object
	names := memberNames(members)
	for _, word := range words {
		name, text, ok := strings.Cut(word, "=")
		i := slices.IndexFunc(members, func(m api.Member) bool { return m.Name == name })
		switch {
		case !ok:
			return nil, usage("%s: %q isn't NAME=VALUE", where, word).hint("it has %s", strings.Join(names, ", "))
		case i < 0:
			return nil, usage("%s has no %q", where, name).nearest(name, names, "").
				hint("it has %s", strings.Join(names, ", "))
		case out.Get(name) != nil:
			return nil, usage("%s: %s is given twice", where, name)
		}
		v, err := jsonValues(members[i], text)
		if err != nil {
			return nil, &diag.Diagnostic{Code: codeValue, Message: fmt.Sprintf("%s, %s: %v", where, name, err)}
		}
		out = append(out, api.Named{Name: name, Value: v})
	}
	return out, nil
}

func memberNames(members []api.Member) (names []string) {
	for _, m := range members {
		names = append(names, m.Name)
	}
	return names
}

// jsonValues reads a value as a person writes it, for a request.
func jsonValues(m api.Member, text string) (any, error) {
	var kind abi.Kind
	if err := kind.UnmarshalText([]byte(m.Kind)); err != nil {
		return nil, err // the relay is newer than this program
	}
	var tooLarge error
	v, err := readValues(kind, m.Levels, text, func(v any) any {
		switch v := v.(type) {
		case literal.Rate:
			return api.Rate(v)
		case uint64:
			if m.Bits > 0 && v>>m.Bits > 0 {
				tooLarge = fmt.Errorf("%d doesn't fit in %d bits (at most %d)", v, m.Bits, uint64(1)<<m.Bits-1)
			}
		}
		return api.Encode(v)
	})
	return v, cmp.Or(err, tooLarge)
}

// keyText is the ID of a row or a group: the values of its key, which have to be there.
func keyText(where string, members []api.Member, words []string) (string, error) {
	key, err := assign(where, members, words)
	if err != nil {
		return "", err
	}
	for _, m := range members {
		if key.Get(m.Name) == nil {
			return "", usage("%s: the key's %s is missing", where, m.Name)
		}
	}
	return keyID(members, key), nil
}

// keyID is the ID of a row or a group with a key.
func keyID(members []api.Member, key api.Object) string {
	var parts []string
	for _, m := range members {
		parts = append(parts, fmt.Sprint(key.Get(m.Name)))
	}
	return strings.Join(parts, ",")
}

// cutKey separates the words of a key from those of values: by a slash, or else by the names.
func cutKey(k *kindOf, words []string) (key, values []string) {
	if i := slices.Index(words, "/"); i >= 0 {
		return words[:i], words[i+1:]
	}
	for _, w := range words {
		name, _, _ := strings.Cut(w, "=")
		if slices.ContainsFunc(k.Key, func(m api.Member) bool { return m.Name == name }) && len(key) < len(k.Key) {
			key = append(key, w)
		} else {
			values = append(values, w)
		}
	}
	return key, values
}

// objectText is an object in a line: names and values.
func objectText(o api.Object) string {
	var parts []string
	for _, m := range o {
		parts = append(parts, m.Name+"="+showValue(m.Value))
	}
	return strings.Join(parts, " ")
}

// showValue is a value as a person reads it: of a credit, what is left of its limit.
func showValue(v any) string {
	switch v := v.(type) {
	case map[string]any:
		if v["per_second"] != nil {
			return fmt.Sprintf("%v/%v", v["per_second"], v["burst"])
		}
		return fmt.Sprintf("%v of %v", v["available"], v["limit"])
	case []any:
		var parts []string
		for _, one := range v {
			parts = append(parts, showValue(one))
		}
		return strings.Join(parts, ",")
	}
	return fmt.Sprint(v)
}
