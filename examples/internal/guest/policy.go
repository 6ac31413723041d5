package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// policies has routing rules and IPsec policies come and go while a flow is relayed. The error is ENOSYS if the
// kernel lacks IPsec's cipher.
func (w *deviceRoute) policies() error {
	for _, check := range []func(*flow) error{w.ruled, w.protected} {
		for _, family := range []int{4, 6} {
			f, err := w.flow(20000, family, family)
			if err != nil {
				return err
			}
			if err := errors.Join(check(f), f.close()); err != nil {
				return fmt.Errorf("IPv%d: %w", family, err)
			}
		}
	}
	return nil
}

// ruled has a rule for the flow choose a table that leads to the peer by the other link. An earlier rule, for other
// packets, drops them.
func (w *deviceRoute) ruled(f *flow) error {
	const table = 77
	l := w.line
	gateway, family := l.PeerAddr.V4, netlink.FAMILY_V4
	if f.peerAddr.Addr().Is6() {
		gateway, family = l.PeerAddr.V6, netlink.FAMILY_V6
	}
	route := &netlink.Route{
		LinkIndex: l.RelayOut.Index, Table: table, Gw: gateway.AsSlice(),
		Dst: netlink.NewIPNet(f.peerAddr.Addr().AsSlice()),
	}
	if err := l.Relay.Do(func() error { return netlink.RouteAdd(route) }); err != nil {
		return fmt.Errorf("a route: %w", err)
	}
	for _, c := range []struct {
		asks         string
		other, flows netlink.Rule // selectors: of the rule for others, and of the flow's
	}{
		{"a protocol", netlink.Rule{IPProto: unix.IPPROTO_TCP}, netlink.Rule{IPProto: unix.IPPROTO_UDP}},
		{"a source port", netlink.Rule{Sport: port(f.clientAddr)}, netlink.Rule{Sport: port(f.peerSide)}},
		{"a destination port", netlink.Rule{Dport: port(f.clientSide)}, netlink.Rule{Dport: port(f.peerAddr)}},
	} {
		drop, lead := netlink.NewRule(), netlink.NewRule()
		drop.Priority, drop.Type = 100, unix.FR_ACT_BLACKHOLE
		lead.Priority, lead.Table = 101, table
		for rule, selector := range map[*netlink.Rule]netlink.Rule{drop: c.other, lead: c.flows} {
			rule.Family = family
			rule.IPProto, rule.Sport, rule.Dport = selector.IPProto, selector.Sport, selector.Dport
		}
		err := l.Relay.Do(func() error { return errors.Join(netlink.RuleAdd(drop), netlink.RuleAdd(lead)) })
		if err == nil {
			err = w.leaves(f, l.RelayOut, l.PeerDev)
		}
		if err == nil {
			err = l.Relay.Do(func() error { return errors.Join(netlink.RuleDel(lead), netlink.RuleDel(drop)) })
		}
		if err == nil {
			err = w.leaves(f, w.out, w.far)
		}
		if err != nil {
			return fmt.Errorf("rules that ask for %s: %w", c.asks, err)
		}
	}
	return nil
}

func port(a netip.AddrPort) *netlink.RulePortRange {
	return netlink.NewRulePortRange(a.Port(), a.Port())
}

// leaves waits until the flow's next hop is on a link, and sends to the peer by it.
func (w *deviceRoute) leaves(f *flow, ours, theirs *testnet.Dev) error {
	if err := testnet.Until(patience, "the next hop is on "+ours.Name, func() (there bool) {
		for _, h := range w.relay.NextHops() {
			if h.To != f.peerAddr.Addr() || h.FromPort != 0 && h.FromPort != f.peerSide.Port() {
				continue // of other flows; if no rule asks for ports, all have one
			}
			if there = h.Hop.State == runtime.HopDirect && h.Hop.Ifindex == ours.Index; !there {
				return false
			}
		}
		return there
	}); err != nil {
		return err
	}
	const packets = 20 // many more than hosts send by themselves
	before, err := theirs.Received()
	message := []byte("by one of two links")
	for i := 0; i < packets && err == nil; i++ {
		err = pass(f.client, f.clientSide, message, f.peer, f.peerSide, message)
	}
	if err != nil {
		return err
	}
	if now, err := theirs.Received(); err != nil || now < before+packets {
		return errors.Join(err, fmt.Errorf("%d packets, not %d, came by %s", now-before, packets, theirs.Name))
	}
	return nil
}

// protected has IPsec protect what is sent to the peer and back, for a while.
func (w *deviceRoute) protected(f *flow) error {
	hosts := []*testnet.Host{w.line.Relay, w.line.Peer}
	message := []byte("to be encrypted")
	var err error
	for i, h := range hosts {
		if err == nil {
			err = h.Do(func() error { return protect(f.peerSide.Addr(), f.peerAddr.Addr(), i == 0) })
		}
	}
	if err == nil {
		err = w.await(f, "xfrm", message)
	}
	if err == nil {
		err = w.encrypted(f, message)
	}
	for _, h := range hosts {
		err = errors.Join(err, h.Do(func() error {
			return errors.Join(netlink.XfrmPolicyFlush(), netlink.XfrmStateFlush(0))
		}))
	}
	if err == nil {
		err = w.await(f, "sent", message)
	}
	if err == nil {
		err = receive(f.peer, f.peerSide, message)
	}
	if err != nil {
		err = fmt.Errorf("IPsec: %w", err)
	}
	return err
}

// protect adds the states and policies of one host. Packets between the two that aren't encrypted are refused.
func protect(relay, peer netip.Addr, here bool) error {
	for i, ends := range [][2]netip.Addr{{relay, peer}, {peer, relay}} {
		src, dst := ends[0], ends[1]
		const reqid = 1
		state := &netlink.XfrmState{
			Src: src.AsSlice(), Dst: dst.AsSlice(), Proto: netlink.XFRM_PROTO_ESP, Mode: netlink.XFRM_MODE_TUNNEL,
			Spi: 0x1000 + i, Reqid: reqid,
			Aead: &netlink.XfrmStateAlgo{Name: "rfc4106(gcm(aes))", Key: make([]byte, 20), ICVLen: 128},
		}
		policy := &netlink.XfrmPolicy{
			Src: netlink.NewIPNet(state.Src), Dst: netlink.NewIPNet(state.Dst), Dir: netlink.XFRM_DIR_IN,
			Tmpls: []netlink.XfrmPolicyTmpl{{
				Src: state.Src, Dst: state.Dst, Proto: state.Proto, Mode: state.Mode, Reqid: reqid,
			}},
		}
		if (i == 0) == here {
			policy.Dir = netlink.XFRM_DIR_OUT
		}
		if err := netlink.XfrmStateAdd(state); err != nil {
			return fmt.Errorf("a state with %s: %w", state.Aead.Name, err)
		}
		if err := netlink.XfrmPolicyAdd(policy); err != nil {
			return fmt.Errorf("a policy: %w", err)
		}
	}
	return nil
}

// await has the client send until a packet is counted under a reason.
func (w *deviceRoute) await(f *flow, reason string, message []byte) error {
	p := w.relay.Program("frames")
	before, err := p.Count(reason)
	if err != nil {
		return err
	}
	var failed error
	err = testnet.Until(patience, "packets count as "+reason, func() bool {
		_, err1 := f.client.WriteToUDPAddrPort(message, f.clientSide)
		now, err2 := p.Count(reason)
		failed = errors.Join(err1, err2)
		return failed != nil || now.Packets > before.Packets
	})
	if err != nil {
		err = fmt.Errorf("%w; counted: %s; next hops: %+v", err, w.counted(), w.relay.NextHops())
	}
	return errors.Join(err, failed)
}

// counted shows all reasons of the program.
func (w *deviceRoute) counted() string {
	p, text := w.relay.Program("frames"), ""
	counts, err := p.Counts()
	if err != nil {
		return err.Error()
	}
	for i, c := range counts {
		if c.Packets > 0 {
			text += fmt.Sprintf("%s %d, ", p.Desc().Reasons[i].Name, c.Packets)
		}
	}
	return strings.TrimSuffix(text, ", ")
}

// encrypted sends there and back while the policies are there. The server's sockets get what the relay doesn't send,
// and send it on.
func (w *deviceRoute) encrypted(f *flow, message []byte) (err error) {
	in, err := listen(w.line.Relay, f.clientSide)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := listen(w.line.Relay, f.peerSide)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	p := w.relay.Program("frames")
	sent, err := p.Count("sent")
	if err != nil {
		return err
	}
	capture, err := w.cable.Capture()
	if err != nil {
		return err
	}
	defer func() {
		_, failed := capture.Stop()
		err = errors.Join(err, failed)
	}()
	const packets = 3
	for range packets {
		if err := pass(f.client, f.clientSide, message, in, f.clientAddr, message); err != nil {
			return fmt.Errorf("to the server: %w", err)
		}
		if err := pass(out, f.peerAddr, message, f.peer, f.peerSide, message); err != nil {
			return fmt.Errorf("from the server to the peer: %w", err)
		}
		// What arrives encrypted meets the program again when it is decrypted, and is relayed then.
		if err := pass(f.peer, f.peerSide, message, f.client, f.clientSide, message); err != nil {
			return fmt.Errorf("to the client: %w", err)
		}
	}
	if err := testnet.Until(patience, "packets leave encrypted", func() bool {
		return left(capture, unix.IPPROTO_ESP) >= packets
	}); err != nil {
		return err
	}
	now, err := p.Count("sent")
	if clear, n := left(capture, unix.IPPROTO_UDP), now.Packets-sent.Packets; clear > 0 || n != packets {
		err = errors.Join(err, fmt.Errorf("%d packets left in the clear; the relay sent %d, and should send %d",
			clear, n, packets))
	}
	return err
}

// left counts the packets of a protocol that a device has sent.
func left(c *testnet.Capture, protocol byte) (n int) {
	for _, f := range c.Frames() {
		const eth = 14
		at := eth + 9
		if len(f.Data) > eth && f.Data[eth]>>4 == 6 {
			at = eth + 6
		}
		if f.Outgoing && len(f.Data) > at && f.Data[at] == protocol {
			n++
		}
	}
	return n
}
