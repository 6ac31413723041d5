package spec

import (
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
)

// Tests in a spec.

const (
	maxPacket    = 65535 // bytes
	maxReceivers = 4096  // of a group
	tag8021Q     = 0x8100
)

func (l *loader) test(n Name, v cue.Value) *Test {
	t := &Test{
		Name: n, Program: l.name(get(v, "program"), "program"), Settings: l.values(get(v, "settings")), Pos: n.Pos,
	}
	for _, e := range l.list(get(v, "sessions")) {
		if session, fields, ok := l.only(e, "a session"); ok {
			t.Sessions = append(t.Sessions, &TestSession{Session: session, Fields: l.values(fields)})
		}
	}
	t.Rows = l.rows(get(v, "rows"), false)
	t.Groups = l.testGroups(get(v, "groups"))
	if r := get(v, "route"); r.IncompleteKind() == cue.StructKind {
		t.Route = &TestRoute{State: "direct", MTU: 1500, Pos: l.labelPos(r)}
		if s := l.string(get(r, "state")); s != "" {
			t.Route.State = s
		}
		if m := l.int(get(r, "mtu")); m != 0 {
			t.Route.MTU = m
		}
	}
	for _, word := range Conditions {
		if l.bool(get(v, word)) {
			t.Conditions = append(t.Conditions, word)
		}
	}
	if p := get(v, "packet"); p.Exists() {
		t.Packet = l.packet(p)
		t.Packet.VLAN = l.tag(get(v, "vlan"))
		t.Packet.Partial = l.bool(get(v, "partial"))
		t.Packet.OtherHost = l.bool(get(v, "other_host"))
	}
	if e := get(v, "expect"); e.IncompleteKind() == cue.StructKind {
		t.Expect = l.expect(e)
	}
	return t
}

func (l *loader) values(v cue.Value) (all []*TestValue) {
	l.each(v, func(n Name, v cue.Value) {
		if v.IncompleteKind() == cue.ListKind {
			list := Literal{Kind: LitList, Pos: l.pos(v)}
			for _, v := range l.list(v) {
				if one, ok := l.value(v); ok {
					list.List = append(list.List, one)
				}
			}
			all = append(all, &TestValue{Name: n, Value: list})
		} else if lit, ok := l.value(v); ok {
			all = append(all, &TestValue{Name: n, Value: lit})
		}
	})
	return all
}

func (l *loader) value(v cue.Value) (lit Literal, ok bool) {
	if v.IncompleteKind()&(cue.IntKind|cue.BoolKind|cue.StringKind) == 0 || !v.IsConcrete() {
		return lit, false // reported
	}
	return l.literal(v, l.literalPos(v))
}

// rows reads {TABLE: {MEMBER: value}}, and after a program {TABLE: {…}, absent: true}.
func (l *loader) rows(v cue.Value, after bool) (all []*TestRow) {
	for _, e := range l.list(v) {
		r := &TestRow{}
		l.each(e, func(n Name, v cue.Value) {
			switch isStruct := v.IncompleteKind() == cue.StructKind; {
			case !isStruct && n.Value == "absent" && after:
				r.Absent = l.bool(v)
			case !isStruct:
				l.add(codeKind, l.pos(v), "%s has to be a struct of members, not %s", n.Value,
					kindWord(v.IncompleteKind()))
				l.notWhole(e)
			case r.Table.Value != "":
				l.add(codeOneOf, n.Pos, "a row is of exactly one table").
					WithRelated(r.Table.Pos, "the first one is here")
			default:
				r.Table, r.Values = n, l.values(v)
			}
		})
		if r.Table.Value == "" {
			if l.whole(e) {
				l.add(codeMissing, l.pos(e), "the row needs a table")
			}
			continue
		}
		all = append(all, r)
	}
	return all
}

func (l *loader) tag(v cue.Value) *TestVLAN {
	if v.IncompleteKind() != cue.StructKind {
		return nil
	}
	t := &TestVLAN{Proto: tag8021Q, TCI: uint16(l.int(get(v, "tci")))}
	if p := l.int(get(v, "proto")); p != 0 {
		t.Proto = uint16(p)
	}
	return t
}

func (l *loader) packet(v cue.Value) *Packet {
	p := &Packet{Pos: l.pos(v)}
	if v.IncompleteKind() == cue.StructKind {
		p.Hex = l.hex(get(v, "hex"))
		return p
	}
	p.Layers = []*Layer{}
	total := 0
	for _, e := range l.list(v) {
		n, arg, ok := l.only(e, "a layer")
		if !ok {
			continue
		}
		layer := &Layer{Pos: n.Pos}
		if n.Value == "payload" {
			layer.Bytes = l.payload(arg)
			total += len(layer.Bytes)
		} else if arg.IncompleteKind() == cue.StringKind {
			l.add(codeKind, l.pos(arg), "%s has to be a struct of fields, not a string", n.Value)
		} else {
			layer.Header, layer.Fields = n, l.values(arg)
		}
		p.Layers = append(p.Layers, layer)
	}
	switch {
	case l.empty(v):
		l.add(codeMissing, p.Pos, "the packet has no headers")
	case total > maxPacket:
		l.add(codeLimit, p.Pos, "the packet has more than %d bytes", maxPacket)
	}
	return p
}

// payload reads "text", {hex: "0011"} or {zeros: 1200}.
func (l *loader) payload(v cue.Value) []byte {
	if text, _, ok := l.text(v); ok {
		return []byte(text)
	}
	n, arg, ok := l.only(v, "a payload")
	if !ok {
		return nil
	}
	switch kind := arg.IncompleteKind(); n.Value {
	case "hex":
		if kind == cue.StringKind {
			return l.hex(arg)
		}
		l.add(codeKind, l.pos(arg), "hex has to be a string, not %s", kindWord(kind))
	case "zeros":
		if count, err := arg.Int64(); err == nil && count >= 0 && count <= maxPacket {
			return make([]byte, count)
		}
		l.add(codeRange, l.pos(arg), "zeros has to be a number from 0 to %d", maxPacket)
	default:
		l.add(codeUnknown, n.Pos, "a payload is \"text\", {hex: \"0011\"} or {zeros: 1200}")
	}
	return nil
}

func (l *loader) hex(v cue.Value) []byte {
	text, p, ok := l.text(v)
	if !ok {
		return nil
	}
	digits := strings.Join(strings.Fields(text), "")
	b, err := hex.DecodeString(digits)
	switch {
	case err != nil && len(digits)%2 != 0 && strings.Trim(digits, "0123456789abcdefABCDEF") == "":
		l.add(codeLiteral, p.pos, "a hexadecimal digit is missing: bytes have two")
	case err != nil:
		l.add(codeLiteral, p.pos, "%s is not in hexadecimal digits", strconv.Quote(short(text)))
	case len(b) == 0 || len(b) > maxPacket:
		l.add(codeRange, p.pos, "%d bytes, but there have to be from 1 to %d", len(b), maxPacket)
	}
	return b
}

var verdicts = []string{"sent", "pass", "drop", "up"}

func (l *loader) expect(v cue.Value) *Expect {
	e := &Expect{
		Untouched: l.bool(get(v, "untouched")), Rows: l.rows(get(v, "rows"), true),
		Counters: l.values(get(v, "counters")), Pos: l.labelPos(v),
	}
	var given []Name
	l.each(v, func(n Name, arg cue.Value) {
		if !slices.Contains(verdicts, n.Value) {
			return
		}
		given = append(given, n)
		e.Verdict, e.Pos = n.Value, n.Pos
		switch kind := arg.IncompleteKind(); {
		case kind == cue.StringKind:
			reason := l.name(arg, "reason")
			e.Reason, e.Pos = reason.Value, reason.Pos
		case (kind == cue.ListKind || kind == cue.StructKind) && (n.Value == "sent" || n.Value == "pass"):
			e.Packet = l.packet(arg)
		}
	})
	switch {
	case len(given) == 0:
		if l.whole(v) {
			l.add(codeOneOf, e.Pos, "a test expects exactly one of sent, pass, drop and up")
		}
	case len(given) > 1:
		l.add(codeOneOf, given[1].Pos, "a test expects exactly one of sent, pass, drop and up").
			WithRelated(given[0].Pos, "the first one is here")
	}
	e.Untouched = e.Untouched || e.Verdict == "up"
	e.Copies, e.Events = l.copies(get(v, "copies")), l.testEvents(get(v, "events"))
	for _, m := range []string{"via", "vlan"} {
		if w := get(v, m); w.Exists() && e.Verdict != "sent" && !(m == "vlan" && e.Verdict == "pass") &&
			e.Verdict != "" {
			l.add(codeTogether, l.labelPos(w), "%q says nothing about a packet that isn't sent", m)
		}
	}
	if via := get(v, "via"); via.IncompleteKind() == cue.StringKind {
		if lit, ok := l.literal(via, l.literalPos(via)); ok {
			e.Via = &lit
		}
	}
	if t := l.tag(get(v, "vlan")); t != nil && e.Packet != nil {
		e.Packet.VLAN = t
	}
	return e
}
