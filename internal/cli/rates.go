package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/planfmt"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// tally is what one reason of one program has counted, or one receiver, or one event.
type tally struct {
	program, kind, reason string
	doc                   string
	packets, bytes        uint64
}

// Kinds of tallies that aren't kinds of reasons. Their doc is the whole label.
const (
	kindReceiver  = "receiver"  // program: "subscribers 1"; packets: copies
	kindLost      = "lost"      // reason: the event; packets: records
	kindArrived   = "arrived"   // program: "at peer"; doc: from where to where
	kindInterface = "interface" // reason: its name; doc: why the program isn't attached to it, or nothing
)

// asTheSpecSays is what the reasons of `drop` say in a fan-out. Their names say more.
const asTheSpecSays = "no copy, as the spec says"

// isCopy: of a receiver's turn, not of a packet that came.
func (t tally) isCopy() bool { return t.kind == "copy" || t.kind == "declined" }

// view turns tallies into what a person sees: rates since the last look, and totals.
type view struct {
	last     map[tallyKey]tally
	lastTime time.Time
	lines    int // drawn by the last look, to be drawn over
}

// tallyKey identifies a tally.
type tallyKey struct{ program, kind, reason string }

func (t tally) key() tallyKey { return tallyKey{t.program, t.kind, t.reason} }

// rate is one line of the table.
type rate struct {
	tally
	packetsPerSecond, bitsPerSecond float64
}

// reasons are what a program has counted, with the rates that the relay has computed.
func reasons(p api.Program) (all []rate) {
	for _, r := range p.Reasons {
		all = append(all, rate{tally{program: p.Name, kind: r.Kind, reason: r.Name, doc: r.Doc, packets: r.Packets,
			bytes: r.Bytes}, r.PPS, r.BPS})
	}
	return all
}

// packetRate is what a program sees in a second: copies are not packets that came.
func packetRate(p api.Program) (n float64) {
	for _, r := range reasons(p) {
		if !r.isCopy() {
			n += r.packetsPerSecond
		}
	}
	return n
}

// look returns the rates since the last look. What wasn't there then has none yet, unless it begins when it is first
// seen, like a flow.
func (v *view) look(now time.Time, all []tally) []rate {
	seconds := now.Sub(v.lastTime).Seconds()
	out := make([]rate, len(all))
	current := make(map[tallyKey]tally, len(all))
	for i, t := range all {
		out[i].tally = t
		key := t.key()
		current[key] = t
		if v.last != nil && seconds > 0 {
			before, known := v.last[key]
			if !known && t.kind != kindArrived || before.packets > t.packets { // the latter: another one of this name
				before = t
			}
			out[i].packetsPerSecond = float64(t.packets-before.packets) / seconds
			out[i].bitsPerSecond = 8 * float64(t.bytes-before.bytes) / seconds
		}
	}
	v.last, v.lastTime = current, now
	return out
}

// row is a line of the table; one without a program belongs to the program above.
type row struct{ program, perSecond, megabits, total, label string }

// heads is the row above the numbers of one program, or of all.
func heads(program string) row { return row{program, "packets/s", "Mbit/s", "total", ""} }

// table draws all that has counted anything; a program or a receiver that hasn't is a line of its own. No line is
// wider than width, if that isn't 0.
func table(rates []rate, width int) string {
	rows := []row{heads("")}
	for i := 0; i < len(rates); {
		end := i
		for end < len(rates) && rates[end].program == rates[i].program {
			end++
		}
		rows = append(rows, rowsOf(rates[i].program, rates[i:end], label)...)
		i = end
	}
	return layOut(rows, width, false)
}

// rowsOf are the rows of a program.
func rowsOf(program string, rates []rate, label func(tally) string) (rows []row) {
	for _, r := range rates {
		if r.packets == 0 && r.kind != kindReceiver && (r.kind != kindInterface || r.doc == "") {
			continue
		}
		rows = append(rows, row{program, thousands(uint64(r.packetsPerSecond + 0.5)),
			fmt.Sprintf("%.1f", r.bitsPerSecond/1e6), thousands(r.packets), label(r.tally)})
		program = ""
	}
	if rows == nil && (rates == nil || rates[0].kind != kindLost) {
		rows = []row{{program, "0", "0.0", "0", "no packet yet"}}
	}
	return rows
}

// leastLabel is how wide the column of labels is at least, leastWidth what is laid out for on a narrower terminal.
const leastLabel, leastWidth = 24, 40

// layOut draws rows. A program's name has a line of its own above its rows if that is asked for, and if the numbers
// leave no room for labels beside them.
func layOut(rows []row, width int, above bool) string {
	var name, perSecond, megabits, total int
	for _, r := range rows {
		name, perSecond = max(name, len(r.program)), max(perSecond, len(r.perSecond))
		megabits, total = max(megabits, len(r.megabits)), max(total, len(r.total))
	}
	if width > 0 {
		width = max(width, leastWidth)
	}
	above = above || width > 0 && name+1+perSecond+2+megabits+2+total+2+leastLabel > width
	if above {
		name = 1
	}
	var lines []string
	for _, r := range rows {
		if above && r.program != "" {
			lines = append(lines, r.program)
			r.program = ""
		}
		lines = append(lines, fold(fmt.Sprintf("%-*s %*s  %*s  %*s", name, r.program, perSecond, r.perSecond, megabits,
			r.megabits, total, r.total), r.label, width)...)
	}
	return strings.Join(lines, "\n") + "\n"
}

// fold puts a label beside the numbers of its row. What doesn't fit goes on below, from the next word on.
func fold(numbers, label string, width int) []string {
	room := width - len(numbers) - 2
	switch {
	case label == "":
		return []string{numbers}
	case width == 0 || len(label) <= room:
		return []string{numbers + "  " + label}
	}
	var lines []string
	line, below := numbers+" ", strings.Repeat(" ", len(numbers)+3)
	if room < leastLabel {
		lines, line, below = append(lines, numbers), "   ", "     "
	}
	first := true // of a line
	for word := range strings.FieldsSeq(label) {
		if !first && len(line)+1+len(word) > width {
			lines, line = append(lines, line), below
		}
		line, first = line+" "+word, false
		for len(line) > width { // no line has room for the word
			lines, line = append(lines, line[:width]), below+" "+line[width:]
		}
	}
	return append(lines, line)
}

// label says what happened to the packets of a reason: "sent", "to the stack: no_by_channel (no row in
// by_channel)", "drop: over_quota", "declined: layer".
func label(t tally) string {
	kind := planfmt.Verdict(t.kind)
	switch {
	case t.kind == kindReceiver, t.kind == kindLost, t.kind == kindInterface, t.kind == kindArrived:
		return t.doc
	case t.kind == t.reason:
		return t.kind
	case (t.kind == "up" || t.kind == "declined") && t.doc != "" && t.doc != asTheSpecSays:
		return kind + ": " + t.reason + " (" + t.doc + ")"
	}
	return kind + ": " + t.reason
}

// line is the table in one line, for logs: incoming packets and copies by reason. Receivers, of which there may be
// many, are only in the table.
func line(rates []rate) string {
	var parts []string
	for i := 0; i < len(rates); {
		name, kind := rates[i].program, rates[i].kind
		var counted []string
		var pps, bps, copies float64
		fans := false
		for ; i < len(rates) && rates[i].program == name; i++ {
			r := rates[i]
			switch {
			case r.kind == kindInterface:
				if r.doc != "" {
					counted = append(counted, r.doc)
				}
				continue
			case r.kind == "copy":
				copies += r.packetsPerSecond
				fans = true
			case !r.isCopy():
				pps += r.packetsPerSecond
				bps += r.bitsPerSecond
			}
			if r.packets > 0 {
				text := thousands(r.packets) + " " + planfmt.Verdict(r.kind)
				if r.kind != r.reason && r.kind != kindArrived {
					text += " (" + r.reason + ")"
				}
				counted = append(counted, text)
			}
		}
		switch {
		case kind == kindReceiver:
			continue
		case kind == kindLost:
			if len(counted) > 0 {
				parts = append(parts, "events: "+strings.Join(counted, ", "))
			}
			continue
		case len(counted) == 0:
			counted = []string{"no packet yet"}
		}
		text := fmt.Sprintf("%s: %s packets/s %.1f Mbit/s, ", name, thousands(uint64(pps+0.5)), bps/1e6)
		if fans {
			text += fmt.Sprintf("%s copies/s, ", thousands(uint64(copies+0.5)))
		}
		parts = append(parts, text+strings.Join(counted, ", "))
	}
	return strings.Join(parts, "; ") + "\n"
}

// redraw replaces the last table on the terminal. If it has more lines than the terminal, the last line says how many
// are missing; a line that is wider is cut, since the terminal would make two of it.
func (v *view) redraw(w io.Writer, text string, width, height int) error {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if height > 2 && len(lines) > height-2 {
		shown := height - 3
		lines = append(lines[:shown:shown], fmt.Sprintf(
			"… %s more; a higher terminal and the end of the run show all", plural(len(lines)-shown, "line")))
	}
	for i, l := range lines {
		if runes := []rune(l); width > 0 && len(runes) > width {
			lines[i] = string(runes[:width-1]) + "…"
		}
	}
	var b strings.Builder
	if v.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\x1b[J", v.lines)
	}
	b.WriteString(strings.Join(lines, "\n") + "\n")
	v.lines = len(lines)
	_, err := io.WriteString(w, b.String())
	return err
}

// thousands writes 1204991 as 1,204,991.
func thousands(n uint64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
