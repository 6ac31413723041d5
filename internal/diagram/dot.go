package diagram

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// DOT writes headers and decisions for Graphviz: a table for each header, a cluster for each program.
func DOT(name string, headers []*spec.Header, decisions []*Decision) string {
	var b strings.Builder
	fmt.Fprintf(&b, "digraph %s {\n", quote(name))
	b.WriteString("\tnode [shape=box, style=rounded, fontname=\"monospace\", fontsize=10];\n" +
		"\tedge [fontname=\"monospace\", fontsize=9];\n")
	for _, h := range headers {
		fmt.Fprintf(&b, "\t%s [shape=plain, label=<%s>];\n", quote("header "+h.Name.Value), table(h))
	}
	for _, d := range decisions {
		d.dot(&b)
	}
	b.WriteString("}\n")
	return b.String()
}

// quote makes any text an identifier of DOT. In a quoted one only the quotation mark and a backslash mean something.
func quote(text string) string { return `"` + inQuotes(text) + `"` }

func inQuotes(text string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(printable(text))
}

// printable leaves out what parsers of DOT can't read.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		return pick(unicode.IsControl(r) || r == unicode.ReplacementChar, '?', r)
	}, text)
}

// lines are the lines of a label, aligned to the left.
func lines(all ...string) string {
	var b strings.Builder
	for _, text := range all {
		for _, part := range wrap(text, 60) {
			b.WriteString(inQuotes(part) + `\l`)
		}
	}
	return `"` + b.String() + `"`
}

// table writes a header as a table of 32 columns.
func table(h *spec.Header) string {
	var b strings.Builder
	b.WriteString(`<TABLE BORDER="0" CELLBORDER="1" CELLSPACING="0"><TR>`)
	fmt.Fprintf(&b, `<TD COLSPAN="%d" BORDER="0"><B>%s</B></TD></TR><TR>`, rowBits, escape(printable(h.Name.Value)))
	for bit := range rowBits {
		fmt.Fprintf(&b, `<TD BORDER="0" WIDTH="18"><FONT POINT-SIZE="7">%d</FONT></TD>`, bit)
	}
	b.WriteString("</TR>")
	bit := 0
	open := func() {
		if bit == 0 {
			b.WriteString("<TR>")
		}
	}
	end := func() {
		if bit > 0 {
			b.WriteString("</TR>")
		}
		bit = 0
	}
	for _, f := range h.Fields {
		bits, fixed := fixedBits(f)
		if !fixed {
			end()
			fmt.Fprintf(&b, `<TR><TD COLSPAN="%d">%s</TD></TR>`, rowBits,
				escape(printable(f.Name.Value+": "+extent(f))))
			continue
		}
		for name := f.Name.Value; bits > 0; name = "…" {
			open()
			n := min(bits, rowBits-bit)
			fmt.Fprintf(&b, `<TD COLSPAN="%d">%s</TD>`, n, escape(printable(name)))
			bits -= n
			if bit += n; bit == rowBits {
				end()
			}
		}
	}
	end()
	if !h.Closed || h.Trailer > 0 {
		fmt.Fprintf(&b, `<TR><TD COLSPAN="%d"><I>payload</I></TD></TR>`, rowBits)
	}
	if h.Trailer > 0 {
		fmt.Fprintf(&b, `<TR><TD COLSPAN="%d">trailer: %d bytes</TD></TR>`, rowBits, h.Trailer)
	}
	b.WriteString("</TABLE>")
	return b.String()
}

func (d *Decision) dot(b *strings.Builder) {
	fmt.Fprintf(b, "\tsubgraph %s {\n\t\tlabel=%s;\n", quote("cluster "+d.Program), quote("program "+d.Program))
	id := func(n int) string { return quote(fmt.Sprintf("%s stage %d", d.Program, n)) }
	ends := map[string]bool{}
	for n, s := range d.Stages {
		all := append([]string{s.Title}, s.Conditions...)
		for _, a := range s.Actions {
			all = append(all, "- "+a)
		}
		fmt.Fprintf(b, "\t\t%s [label=%s];\n", id(n), lines(all...))
		if n > 0 {
			word := ""
			if d.Stages[n-1].Rule {
				word = " [label=else, weight=10]"
			}
			fmt.Fprintf(b, "\t\t%s -> %s%s;\n", id(n-1), id(n), word)
		}
		for kind, names := range s.byKind() {
			end := fmt.Sprintf("%s end %s", d.Program, looks[kinds[kind]].word)
			if look := looks[kinds[kind]]; !ends[end] {
				ends[end] = true
				fmt.Fprintf(b, "\t\t%s [label=%s, style=\"rounded,filled\", color=\"%s\", fillcolor=\"%s\"];\n",
					quote(end), quote(look.word), look.stroke, look.fill)
			}
			fmt.Fprintf(b, "\t\t%s -> %s [label=%s];\n", id(n), quote(end), lines(strings.Join(names, ", ")))
		}
	}
	b.WriteString("\t}\n")
}
