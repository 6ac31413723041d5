//go:build linux

package glue_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// twoAlone is a spec whose programs run at XDP alone, and one that runs at both hooks.
const twoAlone = `
name: "alone"
tables: peers: {key: port: "u16", value: {local: "endpoint", remote: "endpoint"}, size: 16}
programs: {
	filter: {
		hook: "xdp"
		stack: ["eth", "ipv4", "udp"]
		rules: [
			{match: "udp.dst_port": 9, do: [{drop: "discard"}]},
			{match: "udp.dst_port": 10, do: [{set: "udp.dst_port": 11}, "pass"]},
		]
	}
	relay: {
		hook: "xdp"
		stack: ["eth", "ipv4", "udp"]
		lookup: p: peers: ["udp.dst_port"]
		do: [{send: {from: "p.local", to: "p.remote"}}]
	}
	last: {
		hook: ["xdp", "tc/ingress"]
		stack: ["eth", "ipv4", "udp"]
		rules: [{match: "udp.dst_port": 12, do: [{drop: "twelve"}]}]
	}
}
`

// A program at XDP alone sends, drops, and passes packets on to the one behind it, each counted once. Who takes its
// relay over goes on with it; a foreign program keeps its place, and says so; a device that goes and comes back has it
// again.
func TestAlone(t *testing.T) {
	opt := runtime.Options{PinPath: pinsOf(t), Linger: time.Minute}
	c := cableTo(t, twoAlone, opt)
	if err := offloads.GRO(c.there, true); err != nil {
		t.Fatal(err)
	}
	open := func() {
		t.Helper()
		row := []any{netip.MustParseAddrPort("192.0.2.1:5000"), netip.MustParseAddrPort("192.0.2.254:6000")}
		if err := c.relay.Table("peers").Put([]any{uint64(7000)}, row); err != nil {
			t.Fatal(err)
		}
	}
	open()
	names := []string{"filter", "relay", "last"}
	want := map[string]map[string]uint64{"filter": {}, "relay": {}, "last": {}}
	check := func(what string) {
		t.Helper()
		capture, err := c.there.Capture()
		if err != nil {
			t.Fatal(err)
		}
		for _, port := range []uint16{7000, 9, 10, 12} {
			frame, err := turnlab.UDPFrame(c.there.MAC, c.in.MAC, netip.MustParseAddrPort("192.0.2.254:6001"),
				netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port), []byte("hello"))
			if err != nil {
				t.Fatal(err)
			}
			if err := c.there.Inject(frame); err != nil {
				t.Fatal(err)
			}
		}
		want["filter"]["discard"]++
		want["filter"]["pass"]++
		want["filter"]["no_rule"] += 2
		want["relay"]["sent"]++
		want["relay"]["no_peers"] += 2
		want["last"]["twelve"]++
		want["last"]["no_rule"]++
		all := func() bool {
			return counts(c.relay, "last")["twelve"] >= want["last"]["twelve"] &&
				slices.ContainsFunc(capture.Frames(), func(f testnet.Frame) bool {
					return !f.Outgoing && strings.HasSuffix(string(f.Data), "hello") && f.Data[36] == 6000>>8
				})
		}
		if err := testnet.Until(time.Minute, what, all); err != nil {
			t.Fatal(err, c.state(names))
		}
		if _, err := capture.Stop(); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			got := counts(c.relay, name)
			for reason, n := range want[name] {
				if got[reason] != n {
					t.Errorf("%s: %s counts %v, not %v", what, name, got, want[name])
				}
			}
		}
	}

	for _, name := range names {
		if a := c.attach(t, name, runtime.HookXDP); !a.XDP || (a.Mode == runtime.AttachXDP) != (name != "last") {
			t.Errorf("%s: %+v", name, a)
		}
	}
	check("attached")

	if err := c.relay.Close(); err != nil {
		t.Fatal(err)
	}
	c.load(t)
	for _, name := range names {
		if all := c.relay.Program(name).Attachments(); len(all) != 1 || !all[0].XDP || all[0].Interface != c.in.Name {
			t.Errorf("%s after another process has taken over: %+v", name, all)
		}
	}
	check("taken over")

	for _, name := range names {
		if err := c.relay.Program(name).Detach(c.in.Name); err != nil {
			t.Fatal(err)
		}
	}
	foreign := c.foreign(t)
	err := c.relay.Program("filter").AttachAt(c.in.Name, runtime.AttachOptions{})
	if err == nil || !strings.Contains(err.Error(), "somebodys") || len(c.relay.Program("filter").Attachments()) > 0 {
		t.Errorf("beside another program at XDP: %v; %+v", err, c.relay.Program("filter").Attachments())
	}
	if err := c.relay.Program("filter").AttachAt(c.in.Name, runtime.AttachOptions{First: true}); err == nil {
		t.Error("a program at XDP alone is attached first")
	}
	if err := foreign.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		c.attach(t, name, runtime.HookXDP)
	}
	check("attached again")

	if err := c.here.Run("ip", "link", "del", c.in.Name); err != nil {
		t.Fatal(err)
	}
	c.join(t)
	if err := offloads.GRO(c.there, true); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		back := func() bool {
			a := c.relay.Program(name).Attachments()[0]
			return a.Lost == nil && a.XDP
		}
		if err := testnet.Until(time.Minute, name+" is attached to the new device", back); err != nil {
			t.Fatal(err, c.state(names))
		}
	}
	hop := func() bool {
		for _, h := range c.relay.NextHops() {
			if h.State != runtime.HopDirect {
				return false
			}
		}
		return true
	}
	if err := testnet.Until(time.Minute, "the way out is known", hop); err != nil {
		t.Fatal(err)
	}
	check("a new device")

	if err := c.relay.Close(); err != nil {
		t.Fatal(err)
	}
	var removed []string
	err = c.here.Do(func() (err error) { removed, err = runtime.Remove(opt.PinPath); return err })
	if err != nil || !slices.Contains(removed, "what runs at XDP is detached from in0") {
		t.Errorf("removed: %q, %v", removed, err)
	}
	c.load(t)
}

// state says where programs are attached, and what they have counted.
func (c *cable) state(programs []string) (out []any) {
	for _, name := range programs {
		out = append(out, name, c.relay.Program(name).Attachments(), counts(c.relay, name))
	}
	return out
}

// foreign puts a program of somebody else at XDP of the cable.
func (c *cable) foreign(t *testing.T) (l link.Link) {
	t.Helper()
	err := c.here.Do(func() error {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: "somebodys", Type: ebpf.XDP, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
		})
		if err != nil {
			return err
		}
		defer p.Close()
		l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: c.in.Index})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}
