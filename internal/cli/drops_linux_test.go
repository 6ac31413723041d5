package cli_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Frames that a device has dropped after XDP are shown wherever the relay is. The far end's MTU is smaller.
func TestDroppedAfterXDP(t *testing.T) {
	needs.Root(t)
	l, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	at := netip.AddrPortFrom
	client, server := at(l.ClientAddr.V4, 40001), at(l.RelayInAddr.V4, 3478)
	frame, err := turnlab.UDPFrame(l.ClientDev.MAC, l.RelayIn.MAC, client, server,
		turnlab.ChannelData(0x4001, turnlab.Payload(1200)))
	if err := errors.Join(err, offloads.GRO(l.PeerDev, true), l.PeerDev.SetMTU(1000),
		l.RelayOut.AddNeighbour(l.PeerAddr.V4, l.PeerDev.MAC)); err != nil {
		t.Fatal(err)
	}
	r := detach(t, l.Relay, nil, "../../examples/turn/spec.cue", "--attach", "to_peer=eth0", "--hook", "xdp",
		"--session", "channel=client="+client.String()+" server="+server.String()+" number=0x4001 relayed="+
			at(l.RelayOutAddr.V4, 50000).String()+" peer="+at(l.PeerAddr.V4, 7000).String())
	if shown := r.must(t, nil, "show", "programs", "--socket", r.socket); strings.Contains(shown, "dropped") {
		t.Errorf("nothing was sent:\n%s", shown)
	}
	for range 3 {
		if err := l.ClientDev.Inject(frame); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the drops", func() bool {
		shown := r.must(t, nil, "show", "programs", "--socket", r.socket)
		return strings.Contains(shown, "\ndropped after XDP: eth1 full 3\n")
	})
	for _, c := range []struct{ command, says string }{
		{"ps", "DROPPED AFTER XDP"},
		{"ps --format json", `"xdp_drops": 3`},
		{"show", "dropped after XDP: eth1 full 3"},
		{"show --format json", `"reason": "full"`},
	} {
		r.must(t, []string{c.says}, append(strings.Fields(c.command), "--socket", r.socket)...)
	}
}
