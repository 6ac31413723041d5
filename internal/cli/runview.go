package cli

import (
	"fmt"
	"io"
	"strings"
	"time"
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

// rate is one line of the table.
type rate struct {
	tally
	packetsPerSecond, bitsPerSecond float64
}

// look returns the rates since the last look.
func (v *view) look(now time.Time, all []tally) []rate {
	seconds := now.Sub(v.lastTime).Seconds()
	out := make([]rate, len(all))
	current := make(map[tallyKey]tally, len(all))
	for i, t := range all {
		out[i].tally = t
		key := tallyKey{t.program, t.kind, t.reason}
		current[key] = t
		if v.last != nil && seconds > 0 {
			before := v.last[key]
			out[i].packetsPerSecond = float64(t.packets-before.packets) / seconds
			out[i].bitsPerSecond = 8 * float64(t.bytes-before.bytes) / seconds
		}
	}
	v.last, v.lastTime = current, now
	return out
}

// table draws all that has counted anything; a program or a receiver that hasn't is a line of its own.
func table(rates []rate) string {
	width := len("program")
	for _, r := range rates {
		width = max(width, len(r.program))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-*s %12s %10s %14s\n", width, "", "packets/s", "Mbit/s", "total")
	for i := 0; i < len(rates); {
		end, shown := i, false
		for ; end < len(rates) && rates[end].program == rates[i].program; end++ {
			r := rates[end]
			if r.packets == 0 && r.kind != kindReceiver && (r.kind != kindInterface || r.doc == "") {
				continue
			}
			name := ""
			if !shown {
				name = r.program
			}
			shown = true
			fmt.Fprintf(&b, "%-*s %12s %10.1f %14s  %s\n", width, name, thousands(uint64(r.packetsPerSecond+0.5)),
				r.bitsPerSecond/1e6, thousands(r.packets), label(r.tally))
		}
		if !shown && rates[i].kind != kindLost {
			fmt.Fprintf(&b, "%-*s %12s %10.1f %14s  no packet yet\n", width, rates[i].program, "0", 0.0, "0")
		}
		i = end
	}
	return b.String()
}

// label says what happened to the packets of a reason: "sent", "up: no_by_channel (no row in by_channel)", "drop:
// over_quota", "declined: layer".
func label(t tally) string {
	switch {
	case t.kind == kindReceiver, t.kind == kindLost, t.kind == kindInterface, t.kind == kindArrived:
		return t.doc
	case t.kind == t.reason:
		return t.kind
	case (t.kind == "up" || t.kind == "declined") && t.doc != "" && t.doc != asTheSpecSays:
		return t.kind + ": " + t.reason + " (" + t.doc + ")"
	}
	return t.kind + ": " + t.reason
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
				text := thousands(r.packets) + " " + r.kind
				if r.kind != r.reason && r.kind != kindArrived {
					text += " " + r.reason
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
// are missing.
func (v *view) redraw(w io.Writer, text string, height int) error {
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	if height > 2 && len(lines) > height-2 {
		shown := height - 3
		lines = append(lines[:shown:shown], fmt.Sprintf("… %s more; a higher terminal, --format json and the end of "+
			"the run show all",
			plural(len(lines)-shown, "line")))
	}
	var b strings.Builder
	if v.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\x1b[J", v.lines)
	}
	b.WriteString(strings.TrimSuffix(strings.Join(lines, ""), "\n") + "\n")
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
