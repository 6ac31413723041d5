package spell

import "testing"

func TestNearest(t *testing.T) {
	words := []string{"number", "length", "src", "dst", "src_port", "hook", "stack"}
	for _, c := range []struct{ word, want string }{
		{"numbr", "number"},
		{"numebr", "number"},
		{"numberr", "number"},
		{"lenght", "length"},
		{"srcport", "src_port"},
		{"sr", "src"},
		{"dts", "dst"},
		{"hoook", "hook"},
		{"src", ""}, // the word itself is not a suggestion, and "dst" is too far away
		{"payload", ""},
		{"", ""},
		{"x", ""},
	} {
		if got := Nearest(c.word, words); got != c.want {
			t.Errorf("Nearest(%q) = %q, want %q", c.word, got, c.want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "abc", 3}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"abcd", "badc", 2}, {"kitten", "sitting", 3}} {
		if got := distance(c.a, c.b, 10); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
		if got := distance(c.a, c.b, c.want-1); got < c.want {
			t.Errorf("distance(%q, %q) with a lower limit = %d", c.a, c.b, got)
		}
	}
}
