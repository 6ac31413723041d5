package c

import (
	"slices"
	"strings"
)

// Lines have at most so many columns, a tab counting as 8. Each statement is printed on one line first; those that are
// too long are broken as the kernel's style has it: after an operator or a comma, what follows aligned with the
// parenthesis that it is in.

const maxColumns = 100

// width is the number of columns of a line.
func width(s string) (n int) {
	for _, c := range s {
		if c == '\t' {
			n += 8 - n%8
		} else {
			n++
		}
	}
	return n
}

// wrap breaks a line of C. A comment after a statement that has no room gets a line of its own in front of it.
func wrap(line string) []string {
	if width(line) <= maxColumns {
		return []string{line}
	}
	body := strings.TrimLeft(line, "\t")
	indent := line[:len(line)-len(body)]
	if strings.HasPrefix(body, "/*") || strings.HasPrefix(body, " *") {
		return comments(indent, body)
	}
	if code, note, ok := strings.Cut(body, " /* "); ok {
		return append(comments(indent, "/* "+note), wrap(indent+code)...)
	}
	base := width(indent)
	out := fill(base, indent, body)
	if at := result(line); at > 0 { // the head of a function: the result has a line of its own if that saves lines
		if lines := fill(0, "", line[at:]); len(lines)+1 < len(out) || slices.ContainsFunc(out, tooLong) {
			return append([]string{strings.TrimRight(line[:at], " ")}, lines...)
		}
	}
	if name, value, ok := strings.Cut(body, " = "); ok && width(indent+name+" =") <= maxColumns {
		// a value has lines of its own if it takes fewer then
		if lines := fill(base, indent+"\t", value); len(lines)+1 < len(out) {
			return append([]string{indent + name + " ="}, lines...)
		}
	}
	return out
}

func tooLong(line string) bool { return width(line) > maxColumns }

// fill breaks what stands in a line after indent; base is the indentation of the statement.
func fill(base int, indent, body string) (out []string) {
	var stack []open
	for width(indent+body) > maxColumns {
		at, next, in := split(base, indent, body, stack)
		if at == 0 && width(indent) > base+8 { // aligned too far to the right
			indent = strings.Repeat("\t", base/8+1)
			continue
		}
		if at == 0 {
			break
		}
		out = append(out, indent+strings.TrimRight(body[:at], " "))
		indent, body, stack = next, body[at:], in
	}
	return append(out, indent+body)
}

// result is where the name begins in the head of a function; 0 elsewhere.
func result(line string) int {
	head, _, ok := strings.Cut(line, "(")
	if !ok || !strings.HasPrefix(line, "static ") || strings.HasSuffix(line, ";") {
		return 0
	}
	return strings.LastIndexAny(head, " *") + 1
}

// comments breaks a comment, or a line inside of one, at spaces.
func comments(indent, body string) (out []string) {
	if width(indent+body) <= maxColumns {
		return []string{indent + body}
	}
	text, whole := strings.CutPrefix(body, "/* ")
	lead := " * "
	if whole {
		out, text = append(out, indent+"/*"), strings.TrimSuffix(text, "*/")
	} else {
		text = strings.TrimLeft(body, " *\t")
		lead = body[:len(body)-len(text)]
	}
	room := maxColumns - width(indent+lead)
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && width(line+" "+word) > room {
			out, line = append(out, indent+lead+line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	out = append(out, indent+lead+line)
	if whole {
		out = append(out, indent+" */")
	}
	return out
}

// open is a parenthesis that is open at a place of a line.
type open struct {
	at     int // after the parenthesis
	column int
}

// split finds the place where a line is broken, and what stands in front of what follows: of the places that leave a
// part which fits, one inside as few parentheses as there can be, and of these the last one. base is the
// indentation of the statement; stack is what is open where the line begins, and in what is where it is broken.
func split(base int, indent, body string, stack []open) (at int, next string, in []open) {
	stack = slices.Clone(stack)
	best, bestCost := 0, 1<<30
	column := width(indent)
	for i := 0; i < len(body) && column <= maxColumns; i++ {
		c := body[i]
		switch c {
		case '"':
			for i++; i < len(body) && body[i] != '"'; i++ {
				column++
			}
		case '(', '{', '[':
			stack = append(stack, open{i + 1, column + 1})
		case ')', '}', ']':
			if len(stack) > 0 {
				stack = stack[:len(stack)-1]
			}
		}
		column++
		if end, cost := breaks(body, i); cost > 0 && column <= maxColumns {
			cost += 4 * len(stack)
			if cost <= bestCost && column > width(indent)+8 {
				best, bestCost, in = end, cost, slices.Clone(stack)
			}
		}
	}
	if best == 0 {
		return 0, "", nil
	}
	to := width(indent)
	if len(in) > 0 && in[len(in)-1].column <= 60 {
		to = in[len(in)-1].column
	} else if to == base {
		to += 8
	}
	return best, strings.Repeat("\t", to/8) + strings.Repeat(" ", to%8), in
}

// breaks reports whether a line may be broken after the character at i, the last one of an operator or a comma: where
// what follows begins, and what speaks against it; 0: it may not.
func breaks(body string, i int) (next, cost int) {
	if i+1 >= len(body) || body[i+1] != ' ' {
		return 0, 0
	}
	head := body[:i+1]
	for _, b := range []struct {
		operator string
		cost     int
	}{
		{",", 4}, {" =", 12}, {" &&", 2}, {" ||", 2}, {" ?:", 2}, {" ?", 6}, {" :", 2}, {" +", 5}, {" -", 5}, {" |", 4},
		{" ==", 10}, {" <", 10}, {" >", 10}, {" <=", 10}, {" >=", 10},
		{" !=", 10}, {" &", 10}, {" <<", 10}, {" >>", 10}, {" *", 0}, {" |=", 12}, {"{", 8},
	} {
		if b.cost > 0 && strings.HasSuffix(head, b.operator) {
			return i + 2, b.cost
		}
	}
	return 0, 0
}
