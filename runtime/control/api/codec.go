package api

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/literal"
)

// FieldError says which member of a request is wrong, and why.
type FieldError struct {
	Field string
	Err   error
}

func (e *FieldError) Error() string { return fmt.Sprintf("%s %v", e.Field, e.Err) }

func (e *FieldError) Unwrap() error { return e.Err }

// ErrUnknown is wrapped by a [*FieldError] about a member that nothing has.
var ErrUnknown = errors.New("is unknown here")

func unknown(known []string) error {
	return fmt.Errorf("%w; there are %s", ErrUnknown, strings.Join(known, ", "))
}

// Members returns the members that have a value in JSON.
func Members(all []abi.Member) []abi.Member {
	var out []abi.Member
	for _, m := range all {
		if !m.Hidden && m.Kind != abi.KindTranslation {
			out = append(out, m)
		}
	}
	return out
}

// FieldMembers returns the fields of a session as members.
func FieldMembers(fields []abi.Field) []abi.Member {
	var out []abi.Member
	for _, f := range fields {
		out = append(out, abi.Member{Name: f.Name, Kind: f.Kind, Bits: f.Bits, Levels: f.Levels, Size: f.Size})
	}
	return out
}

// Describe returns what a description says of its relay: all of [Relay] that is known before the relay is loaded.
func Describe(d *abi.Desc) Relay {
	out := Relay{
		Name: d.Name, Kernel: fmt.Sprintf("%d.%d", d.Kernel[0], d.Kernel[1]), Settings: Object{}, Programs: []string{},
		Sessions: []Kind{}, Groups: []Kind{}, Tables: []Kind{}, Events: []LostKind{}, Levels: d.Levels,
	}
	for _, p := range d.Programs {
		out.Programs = append(out.Programs, p.Name)
	}
	for _, k := range d.Sessions {
		out.Sessions = append(out.Sessions, Kind{Name: k.Name, Values: describe(FieldMembers(k.Fields)), Limit: k.Size})
	}
	for _, k := range d.Groups {
		out.Groups = append(out.Groups, Kind{
			Name: k.Name, Key: describe(k.Key), Values: describe(k.Receiver), Limit: k.Size, PerGroup: k.Max,
		})
	}
	for _, t := range d.Tables {
		out.Tables = append(out.Tables, Kind{
			Name: t.Name, Session: t.Session, Key: describe(t.Key), Values: describe(t.Value), Limit: t.Size,
		})
	}
	for _, e := range d.Events {
		kind := LostKind{Name: e.Name, Fields: describe(e.Fields)}
		if e.Copies != nil {
			kind.Copies = describe(e.Copies.Values)
		}
		out.Events = append(out.Events, kind)
	}
	return out
}

func describe(all []abi.Member) []Member {
	out := []Member{}
	for _, m := range Members(all) {
		out = append(out, Member{Name: m.Name, Kind: m.Kind.String(), Bits: m.Bits, Levels: m.Levels})
	}
	return out
}

// Encode returns the JSON value of a value as package runtime has it. State (credits, …) has been made a value of
// this package before.
func Encode(v any) any {
	switch v := v.(type) {
	case []byte:
		return hex.EncodeToString(v)
	case net.HardwareAddr:
		return v.String()
	case netip.Addr:
		return v.String()
	case netip.AddrPort:
		return v.String()
	case netip.Prefix:
		return v.String()
	case []any:
		out := make([]any, len(v))
		for i, one := range v {
			out[i] = Encode(one)
		}
		return out
	}
	return v
}

// Text returns a value as paths have it: a part of the ID of a row or a group.
func Text(v any) string { return fmt.Sprint(Encode(v)) }

// KeyText returns the ID of a row or a group: the values of its key, separated by commas.
func KeyText(key []any) string {
	var parts []string
	for _, v := range key {
		parts = append(parts, Text(v))
	}
	return strings.Join(parts, ",")
}

// ParseKey is the inverse of KeyText.
func ParseKey(members []abi.Member, text string) ([]any, error) {
	members = Members(members)
	parts := strings.Split(text, ",")
	if len(parts) != len(members) {
		return nil, fmt.Errorf("%q isn't a key: it has %d values, separated by commas: %s", text, len(members),
			strings.Join(Names(members), ","))
	}
	var out []any
	for i, m := range members {
		v, err := DecodeText(m, parts[i])
		if err != nil {
			return nil, &FieldError{m.Name, err}
		}
		out = append(out, v)
	}
	return out, nil
}

// Names returns the names of members.
func Names(members []abi.Member) []string {
	var names []string
	for _, m := range members {
		names = append(names, m.Name)
	}
	return names
}

// DecodeText reads a single value as a path has it.
func DecodeText(m abi.Member, text string) (any, error) {
	m.Levels = 0
	switch m.Kind {
	case abi.KindUint, abi.KindCounter, abi.KindCredit:
		return Decode(m, json.Number(text))
	case abi.KindBool:
		b, err := literal.Bool(text)
		if err != nil {
			return Decode(m, text) // which says so
		}
		return b, nil
	}
	return Decode(m, text)
}

// DecodeMembers reads an object; the result has a value for each member, nil if the object has none.
func DecodeMembers(members []abi.Member, o Object) ([]any, error) {
	out := make([]any, len(members))
	for _, given := range o {
		i := 0
		for i < len(members) && members[i].Name != given.Name {
			i++
		}
		if i == len(members) {
			return nil, &FieldError{given.Name, unknown(Names(members))}
		}
		if out[i] != nil {
			return nil, &FieldError{given.Name, errors.New("is given twice")}
		}
		v, err := Decode(members[i], given.Value)
		if err != nil {
			return nil, &FieldError{given.Name, err}
		}
		out[i] = v
	}
	return out, nil
}

// Decode reads the value of a member from JSON (read with [json.Number]), as package runtime takes it; of a bucket it
// returns a [Rate]. Ranges within a kind's bits are for the runtime to check.
func Decode(m abi.Member, v any) (any, error) {
	if m.Levels == 0 {
		return decodeOne(m, v)
	}
	list, ok := v.([]any)
	if !ok || len(list) != m.Levels {
		return nil, fmt.Errorf("is %s; it must be an array of %d values, one for each level of priority", show(v),
			m.Levels)
	}
	var out []any
	for i, one := range list {
		v, err := decodeOne(m, one)
		if err != nil {
			return nil, fmt.Errorf("at level %d %w", i, err)
		}
		out = append(out, v)
	}
	return out, nil
}

func decodeOne(m abi.Member, v any) (any, error) {
	must := func(what string) error { return fmt.Errorf("is %s; it must be %s", show(v), what) }
	switch m.Kind {
	case abi.KindUint, abi.KindCounter, abi.KindCredit:
		bits := m.Bits
		if m.Kind != abi.KindUint || bits <= 0 || bits > 64 {
			bits = 64
		}
		n, ok := v.(json.Number)
		u, err := strconv.ParseUint(string(n), 10, bits)
		if !ok || err != nil {
			return nil, must(fmt.Sprintf("an integer from 0 to %d", ^uint64(0)>>(64-bits)))
		}
		return u, nil
	case abi.KindBool:
		b, ok := v.(bool)
		if !ok {
			return nil, must("true or false")
		}
		return b, nil
	case abi.KindBucket:
		if o, ok := v.(map[string]any); ok {
			for name := range o {
				if known := []string{"per_second", "burst"}; !slices.Contains(known, name) {
					return nil, &FieldError{name, unknown(known)}
				}
			}
			rate, err1 := decodeOne(abi.Member{Kind: abi.KindUint}, o["per_second"])
			burst, err2 := decodeOne(abi.Member{Kind: abi.KindUint}, o["burst"])
			if err1 == nil && err2 == nil {
				return Rate{rate.(uint64), burst.(uint64)}, nil
			}
		}
		return nil, must("an object of two integers, per_second and burst")
	}
	s, _ := v.(string) // else "", which is a value of no kind that is left
	out, err := literal.Value(m.Kind, m.Size/m.Count(), s)
	var bad *literal.Error
	if errors.As(err, &bad) {
		return nil, must(bad.Want)
	}
	return out, err
}

// show quotes a value of a request in a message, shortened.
func show(v any) string {
	if v == nil {
		return "missing"
	}
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	if len(text) > 60 {
		return string(text[:57]) + "…"
	}
	return string(text)
}
