//go:build linux

package glue_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// twoPrograms sends what has a row, and drops what is left.
const twoPrograms = `
name: "two"
tables: peers: {key: port: "u16", value: {local: "endpoint", remote: "endpoint"}, size: 16}
programs: {
	sends: {
		hook: ["xdp", "tc/ingress"]
		stack: ["eth", "ipv4", "udp"]
		lookup: p: peers: ["udp.dst_port"]
		do: [{send: {from: "p.local", to: "p.remote"}}]
	}
	drops: {
		hook: ["xdp", "tc/ingress"]
		stack: ["eth", "ipv4", "udp"]
		do: [{drop: "other"}]
	}
}
`

// cable is a relay at the end of a cable to another host, 192.0.2.254, whose next hop is known.
type cable struct {
	net       *testnet.Net
	here, far *testnet.Host
	in, there *testnet.Dev
	relay     *runtime.Relay
	load      func(t *testing.T)
}

func cableTo(t *testing.T, spec string, opt runtime.Options) *cable {
	t.Helper()
	needs.Root(t)
	file := filepath.Join(t.TempDir(), "spec.cue")
	if err := os.WriteFile(file, []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	built, list, err := build.Spec(t.Context(), file, build.Options{})
	if err != nil || list.Len() > 0 {
		t.Fatal(err, list)
	}
	network := testnet.Start(t)
	c := &cable{net: network, here: must(network.Host("relay")), far: must(network.Host("far"))}
	c.join(t)
	desc := glue.Desc(built.Plan)
	c.load = func(t *testing.T) {
		t.Helper()
		err := c.here.Do(func() (err error) {
			c.relay, err = runtime.Load(&desc, built.Object(), opt)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	c.load(t)
	t.Cleanup(func() {
		if err := c.relay.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// join lays the cable.
func (c *cable) join(t *testing.T) {
	t.Helper()
	var err error
	if c.in, c.there, err = c.net.Join(c.here, "in0", c.far, "out0"); err != nil {
		t.Fatal(err)
	}
	far := netip.MustParseAddr("192.0.2.254")
	if err := errors.Join(c.in.AddAddr("192.0.2.1/24"), c.there.AddAddr("192.0.2.254/24"),
		c.in.AddNeighbour(far, c.there.MAC)); err != nil {
		t.Fatal(err)
	}
}

// attach attaches a program to the cable, and returns how it is attached.
func (c *cable) attach(t *testing.T, program string, hook runtime.Hook) runtime.Attachment {
	t.Helper()
	p := c.relay.Program(program)
	if err := p.AttachAt(c.in.Name, runtime.AttachOptions{Hook: hook}); err != nil {
		t.Fatal(err)
	}
	return p.Attachments()[0]
}

// Packets come to programs in their order, at whatever hook: one that the first would send, but not from XDP, the
// second doesn't drop there, and none is dropped before a program has had it that runs at tc/ingress alone.
func TestOrderAtXDP(t *testing.T) {
	c := cableTo(t, twoPrograms, runtime.Options{})
	row := []any{netip.MustParseAddrPort("192.0.2.1:5000"), netip.MustParseAddrPort("192.0.2.254:6000")}
	if err := c.relay.Table("peers").Put([]any{uint64(7000)}, row); err != nil {
		t.Fatal(err)
	}
	var server, client *net.UDPConn
	err := c.far.Do(func() (err error) {
		if server, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 254), Port: 6000}); err != nil {
			return err
		}
		client, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 254), Port: 6001})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	defer client.Close()
	send := func(port int) { // a device's checksum, which XDP isn't told of
		if _, err := client.WriteTo([]byte("hello"), &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: port}); err != nil {
			t.Fatal(err)
		}
	}
	sent, dropped := uint64(0), uint64(0)
	check := func(what string) {
		t.Helper()
		send(7000)
		if err := server.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := server.ReadFrom(make([]byte, 64)); err != nil {
			t.Fatalf("%s: %v; %v, %v", what, err, counts(c.relay, "sends"), counts(c.relay, "drops"))
		}
		send(7001)
		sent, dropped = sent+1, dropped+1
		all := func() bool { return counts(c.relay, "drops")["other"] >= dropped }
		if err := testnet.Until(time.Minute, what+": the other packet is dropped", all); err != nil {
			t.Fatal(err)
		}
		if s, d := counts(c.relay, "sends"), counts(c.relay, "drops"); s["sent"] != sent || d["other"] != dropped {
			t.Errorf("%s: %v, %v", what, s, d)
		}
	}
	dropsAtXDP := func() (n uint64) {
		p := c.relay.Program("drops")
		for i, x := range must(p.XDPCounts()) {
			if p.Desc().Reasons[i].Name == "other" {
				n = x.Packets
			}
		}
		return n
	}

	c.attach(t, "sends", runtime.HookXDP)
	c.attach(t, "drops", runtime.HookXDP)
	check("both at XDP")
	if n := dropsAtXDP(); n != 1 {
		t.Errorf("%d packets are dropped at XDP, not 1", n)
	}
	c.attach(t, "sends", runtime.HookTC)
	check("the first at tc/ingress")
	if a := c.relay.Program("drops").Attachments()[0]; a.XDP || a.NoXDP == nil ||
		!strings.Contains(a.NoXDP.Error(), "sends comes first there") {
		t.Errorf("%+v", a)
	}
	if n := dropsAtXDP(); n != 1 {
		t.Errorf("%d packets are dropped at XDP, though another program comes first", n)
	}
	if err := c.relay.Program("sends").Detach(c.in.Name); err != nil {
		t.Fatal(err)
	}
	if a := c.relay.Program("drops").Attachments()[0]; !a.XDP {
		t.Errorf("it is alone: %+v", a)
	}
	if err := c.relay.Program("sends").AttachAt(c.in.Name, runtime.AttachOptions{First: true}); err != nil {
		t.Fatal(err)
	}
	check("another one attached in front")
}
