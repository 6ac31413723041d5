package spectest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// gotCopy is what became of a receiver's turn.
type gotCopy struct {
	receiver uint32
	sent     bool
	reasons  []string // under which the turn ended; the kernel doesn't say which of several
	data     []byte   // sent: the frame
}

type gotEvent struct {
	event    *ir.Event
	receiver uint32
	record   []byte
}

// kernelCopies finds out whose copies the kernel sent: the receivers that had a turn are those whose usage is no longer
// 0, and copies leave in the order of the group.
func (t *test) kernelCopies(sent []testrun.Copy, before []sim.Tally) []gotCopy {
	var declined []string
	for i, r := range t.program.Reasons {
		at := t.state.Tally(t.program, i)
		if r.Kind == ir.Declined && t.state.Reasons[at] != before[at] {
			declined = append(declined, r.Name)
		}
	}
	var out []gotCopy
	for _, g := range t.groups {
		for _, id := range g.receivers {
			switch u := t.state.Receivers[id]; {
			case u.Packets > 0 && len(sent) > 0:
				out = append(out, gotCopy{receiver: id, sent: true, data: bytes.Clone(sent[0].Data)})
				sent = sent[1:]
			case u.Packets > 0:
				out = append(out, gotCopy{receiver: id, reasons: []string{"counted, but not seen on the device"}})
			case u.Declined > 0:
				out = append(out, gotCopy{receiver: id, reasons: declined})
			}
		}
	}
	for _, c := range sent { // of no receiver
		out = append(out, gotCopy{sent: true, data: bytes.Clone(c.Data)})
	}
	return out
}

// judgeCopies compares the receivers' turns with what the test expects.
func (t *test) judgeCopies(hs *packet.Headers, r result) []string {
	var out []string
	if got, want := len(r.copies), len(t.expect.copies); got != want {
		return []string{fmt.Sprintf("copies: got %d receivers' turns, want %d", got, want)}
	}
	for i, want := range t.expect.copies {
		got := r.copies[i]
		add := func(format string, args ...any) {
			out = append(out, fmt.Sprintf("copy %d: ", i)+fmt.Sprintf(format, args...))
		}
		switch {
		case want.src.Declined && got.sent:
			add("got a copy, want %s", said("none", want.src.Reason))
		case want.src.Declined:
			if want.src.Reason != "" && !slices.Contains(got.reasons, want.src.Reason) {
				add("reason: got %s, want %s", strings.Join(got.reasons, " or "), want.src.Reason)
			}
		case !got.sent:
			add("got %s, want one", said("none", strings.Join(got.reasons, " or ")))
		case want.src.Packet != nil:
			for _, p := range t.packetProblems(hs, got.data, want.src.Packet, want.layers, true) {
				add("%s", placed(p))
			}
		}
	}
	return out
}

// judgeEvents compares the records with what the test expects.
func (t *test) judgeEvents(r result) []string {
	var out []string
	for i := range max(len(r.events), len(t.expect.events)) {
		add := func(format string, args ...any) {
			out = append(out, fmt.Sprintf("event %d: ", i)+fmt.Sprintf(format, args...))
		}
		if i >= len(r.events) {
			add("got nothing, want %s", t.expect.events[i].event.Name)
			continue
		}
		got := r.events[i]
		if i >= len(t.expect.events) {
			add("got %s, want nothing", got.event.Name)
			continue
		}
		want := t.expect.events[i]
		if got.event != want.event {
			add("got %s, want %s", got.event.Name, want.event.Name)
			continue
		}
		if n := want.src.Receiver; n >= 0 && n != t.place(got.receiver) {
			add("receiver: got %s, want %d", placeText(t.place(got.receiver)), n)
		}
		for _, f := range want.fields {
			m := f.member
			if b := want.event.Field(got.record, m); !bytes.Equal(b, f.bytes) {
				add("%s: got %s, want %s", m.Name, m.Type.Show(b), m.Type.Show(f.bytes))
			}
		}
		if want.src.Copies != nil {
			t.judgeEntries(want, got.record, add)
		}
	}
	return out
}

// judgeEntries compares what a record says of each copy with what the test expects.
func (t *test) judgeEntries(want wantEvent, record []byte, add func(format string, args ...any)) {
	entries := want.event.Entries(record)
	if len(entries) != len(want.copies) {
		add("copies: got %d, want %d", len(entries), len(want.copies))
		return
	}
	for i, entry := range entries {
		place := t.place(binary.LittleEndian.Uint32(entry))
		if n := want.src.Copies[i].Receiver; n >= 0 && n != place {
			add("copy %d: receiver: got %s, want %d", i, placeText(place), n)
		}
		for _, f := range want.copies[i] {
			m := f.member
			if b := entry[m.Off : m.Off+m.Type.Size]; !bytes.Equal(b, f.bytes) {
				add("copy %d: %s: got %s, want %s", i, m.Name, m.Type.Show(b), m.Type.Show(f.bytes))
			}
		}
	}
}

// place returns the place of a receiver in its group, or -1.
func (t *test) place(identity uint32) int {
	for _, g := range t.groups {
		if i := slices.Index(g.receivers, identity); i >= 0 {
			return i
		}
	}
	return -1
}

func placeText(n int) string {
	if n < 0 {
		return "none"
	}
	return fmt.Sprint(n)
}
