package c

import (
	"strings"
	"testing"
)

// Lines that are too long are broken after operators and commas, and no text is lost.
func TestWrap(t *testing.T) {
	long := strings.Repeat("x", 60)
	for _, line := range []string{
		"\tfound = find(" + long + ", " + long + ", third);",
		"\t\tif (" + long + " == 1 && (" + long + " == 2 || " + long + " == 3))",
		"static __always_inline int f(struct __sk_buff *skb, __u64 " + long + ", __u64 b)",
		"static __always_inline struct list_" + long + " *list_of_" + long + "(const struct group *key)",
		"\tx = y; /* " + strings.Repeat("word ", 40) + "*/",
		"\t/* " + strings.Repeat("word ", 40) + "*/",
		" * " + strings.Repeat("word ", 40),
	} {
		parts := wrap(line)
		if len(parts) < 2 {
			t.Errorf("%q is in one line", line)
		}
		for _, p := range parts {
			if width(p) > maxColumns {
				t.Errorf("%q has %d columns", p, width(p))
			}
			if strings.TrimRight(p, " \t") != p {
				t.Errorf("%q ends in a space", p)
			}
		}
		want, got := strings.Fields(line), strings.Fields(strings.Join(parts, " "))
		if !strings.Contains(line, "/*") && !strings.HasPrefix(line, " *") && strings.Join(want,
			"") != strings.Join(got, "") {
			t.Errorf("%q became %q", line, parts)
		}
	}
	for _, line := range []string{"", "\treturn 0;", "\t" + strings.Repeat("y", 120)} {
		if parts := wrap(line); len(parts) != 1 || parts[0] != line {
			t.Errorf("%q became %q", line, parts)
		}
	}
}
