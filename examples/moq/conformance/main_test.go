package main

import (
	"slices"
	"strings"
	"testing"
)

// The table says where a relay passes a case.
func TestTable(t *testing.T) {
	text := "TAP version 14\n1..3\nok 1 - setup-only\n  ---\n  ...\n" +
		"not ok 2 - rendezvous-timeout\n  ---\n  message: \"too early\"\n  ...\nok 3 - join # 12 ms\n"
	results := tap(text)
	if want := []caseResult{{name: "setup-only", passed: true}, {name: "rendezvous-timeout", note: "too early"},
		{name: "join", passed: true}}; !slices.Equal(results, want) {
		t.Fatal(results)
	}
	table := table{relays: []string{"ours", "another"}}
	for _, on := range []string{"22 QUIC", "18 QUIC"} {
		for _, c := range results {
			table.results = append(table.results, c.of("another", on))
			c.passed = c.passed || on == "18 QUIC"
			table.results = append(table.results, c.of("ours", on))
		}
	}
	table.results = append(table.results, caseResult{name: "datagrams", note: "3 of 4", relay: "ours", on: "22 QUIC"},
		caseResult{name: "datagrams", passed: true, note: "4 of 4", relay: "another", on: "22 QUIC"})
	var out strings.Builder
	table.print(&out)
	if want := `| case | ours | another |
|---|---|---|
| setup-only | yes | yes |
| rendezvous-timeout | 18 QUIC: too early | no: too early |
| join | yes | yes |
| datagrams | no: 3 of 4 | yes |
`; out.String() != want {
		t.Errorf("it prints\n%s\ninstead of\n%s", out.String(), want)
	}
	want := []string{"rendezvous-timeout 22 QUIC", "datagrams 22 QUIC"}
	if failed := table.failed("ours"); !slices.Equal(failed, want) {
		t.Error(failed)
	}
}
