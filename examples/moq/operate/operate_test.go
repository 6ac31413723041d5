package operate

import (
	"crypto/tls"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
	"github.com/fastrelay/fastrelay-gen/examples/moq/relay"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// Each reason has a description, what a relay shows of itself names no reason twice, and it has the upstream relay.
func TestPrograms(t *testing.T) {
	pair, err := certificate.Development(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	const above = "moqt://127.0.0.1:9/scope"
	r, err := relay.Start(relay.Config{
		Address: netip.MustParseAddrPort("127.0.0.1:0"), TLS: &tls.Config{Certificates: []tls.Certificate{pair}},
		Logger: slog.New(slog.DiscardHandler), Upstreams: []relay.Upstream{{URI: above + "?secret"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	shown := New("moq", r)
	dropped := 0
	for name, doc := range relay.DropReasons() {
		if dropped++; name == "" || doc == "" {
			t.Errorf("%q has the description %q", name, doc)
		}
	}
	for _, p := range shown.Programs() {
		seen := map[string]bool{}
		for _, reason := range p.Reasons {
			if seen[reason.Name] || reason.Doc == "" || reason.Packets != 0 {
				t.Errorf("%s: %+v", p.Name, reason)
			}
			seen[reason.Name] = true
		}
		if p.Name == "subscribers" && len(seen) < dropped {
			t.Errorf("%d reasons, and streams are dropped for %d", len(seen), dropped)
		}
	}
	rows := shown.Rows(upstreamsTable)
	if len(rows) != 1 || rows[0].ID != above || rows[0].Value[0] != (api.Named{Name: "connected", Value: false}) {
		t.Errorf("of the upstream relay, where nothing is: %+v", rows)
	}
	for i, m := range upstreamValues() {
		if rows[0].Value[i].Name != m.Name {
			t.Errorf("the value %s is described as %s", rows[0].Value[i].Name, m.Name)
		}
	}
}
