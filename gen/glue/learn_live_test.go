//go:build linux

package glue_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// A row that a packet makes ends with the session that it was learned with, and with no other: not with one that has
// the same slot later.
func TestLearnedRows(t *testing.T) {
	const client, door, asks = "198.51.100.7:40001", "192.0.2.1:26725", "192.0.2.1:7000" // 26725: "he"
	load := caseOf(t, "learn-with")
	opt := runtime.Options{PinPath: pinsOf(t), Linger: time.Minute}
	r := must(load(opt))
	t.Cleanup(func() { r.Close() })
	counted := func(what, program, to, reason string) {
		t.Helper()
		if got := packetOf(t, r, program, client, to); got != reason {
			t.Errorf("%s: %q, not %q", what, got, reason)
		}
	}
	open := func(group uint64) *runtime.AnySession {
		t.Helper()
		return must(r.Open("client", netip.MustParseAddrPort(client), group))
	}
	gone := func(what string) {
		t.Helper()
		none := func() bool {
			for _, err := range r.Table("doors").All() {
				return must(false, err)
			}
			return true
		}
		if err := testnet.Until(time.Minute, what, none); err != nil {
			t.Error("the row stays:", err)
		}
	}

	counted("no session", "asks", asks, "no_clients")
	open(3)
	counted("a session", "asks", asks, "asked")
	counted("a row", "enters", door, "forwarding_off")
	r = successor(t, r, load, opt)
	counted("another process", "enters", door, "forwarding_off")
	first := slices.Collect(r.Sessions())[0]

	for what, err := range map[string]error{
		"put":    r.Table("doors").Put([]any{uint64(1)}, []any{netip.MustParseAddrPort(client), uint64(3)}),
		"delete": r.Table("doors").Delete(uint64(26725)),
	} {
		if err == nil || !strings.Contains(err.Error(), "close the session instead") {
			t.Errorf("%s by hand: %v", what, err)
		}
	}

	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	counted("a session that has ended", "enters", door, "no_doors")
	second := open(3) // in the same slot
	counted("a session after it", "enters", door, "no_doors")
	gone("the session has ended")
	counted("learned anew", "asks", asks, "asked")
	counted("the new row", "enters", door, "forwarding_off")
	counted("learned with a row that was learned", "asks", asks, "shared")
	counted("the row of that", "enters", door, "forwarding_off")
	if err := second.Change(netip.MustParseAddrPort(client), uint64(4)); err != nil {
		t.Fatal(err)
	}
	counted("a session that has changed", "enters", door, "no_doors")
	counted("learned after the change", "asks", asks, "asked")
	counted("its row", "enters", door, "forwarding_off")
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	counted("the end", "enters", door, "no_doors")
	gone("the end")
}
