package spec

import "testing"

// Constraints may be written as CUE allows it: through references, definitions and functions.
func TestConstraints(t *testing.T) {
	for _, c := range []struct{ cue, want string }{
		{"5", "5"},
		{"true", "true"},
		{`"10.0.0.0/8"`, "10.0.0.0/8"},
		{">=0x4000 & <=0x4FFF", ">=0x4000 & <=0x4FFF"},
		{"443 | 8443", "0x01BB or 0x20FB"},
		{"1 | 2 | 3", "1 or 2 or 3"},
		{"*1 | 2", "1 or 2"},
		{"int & >3", ">3"},
		{"uint8 & !=4", ">=0 & <=255 & !=4"},
		{"(1 | >=8) & !=9", "1 or >=8 & !=9"},
		{"2 + 3", "5"},
		{"-1 + 3", "2"},
		{"#port", ">=1 & <=5"},
		{"#port & !=3", ">=1 & <=5 & !=3"},
		{"#port | 9", ">=1 & <=5 or 9"},
		{"some", "7 or 9"},
		{"range & !=7", ">=5 & <=9 & !=7"},
		{">#limits.low", ">3"},
		{"#limits.high", "9"},
		{"[1, 2][1]", "2"},
		{"or([1, 2, 3])", "1 or 2 or 3"},
		{"or([for x in [1, 2] {x * 10}])", "10 or 20"},
		{">=5 & <=5", ">=5 & <=5"},
	} {
		text := `name: "c"
#port: >=1 & <=5
#limits: {low: 3, high: 9}
let some = 7 | 9
let range = >=5 & <=9
#used: [some, range]
programs: p: {hook: "tc/ingress", stack: ["eth"], match: "eth.type": ` + c.cue + `, do: ["pass"]}
`
		s, list := Load("spec.cue", []byte(text))
		if err := list.Err(); err != nil {
			t.Errorf("%s: %s", c.cue, err)
			continue
		}
		m := s.Programs[0].Match[0]
		// CUE may put a conjunction's parts, or a choice's, in its own order and nesting; & binds
		// closer in what is printed.
		if got := m.Is.String(); got != c.want {
			t.Errorf("%s is %s, not %s", c.cue, got, c.want)
		}
		if m.Is.Pos.Line < 3 || m.Is.Pos.Line > 8 {
			t.Errorf("%s is at %s", c.cue, m.Is.Pos)
		}
	}
}
