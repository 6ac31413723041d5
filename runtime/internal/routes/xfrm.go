package routes

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/internal/nldump"
)

// What a relay sends doesn't pass by xfrm (IPsec), which is part of the stack. So the resolver keeps a copy of the
// kernel's policies for packets that leave, and matches their selectors itself: a route lookup by netlink doesn't show
// them. Policies of sockets are none of the relay's. Neither are those for a mark, since what a relay sends has none,
// and those for an xfrm interface, which looks them up itself when packets are sent by it.

// From linux/xfrm.h, as far as the library lacks it.
const (
	msgGetDefault = 0x28 // XFRM_MSG_GETDEFAULT, since Linux 5.15
	blockDefault  = 1    // XFRM_USERPOLICY_BLOCK
	defaultOut    = 2    // the offset of xfrm_userpolicy_default.out
	subPolicy     = 1    // XFRM_POLICY_TYPE_SUB

	// Offsets in struct xfrm_selector, and in struct xfrm_userpolicy_info, which begins with one.
	selTo, selFrom           = 0, 16
	selToPort, selToMask     = 32, 34
	selFromPort, selFromMask = 36, 38
	selFamily                = 40
	selToBits, selFromBits   = 42, 43
	selProto, selIfindex     = 44, 48
	infoPriority             = 152
	infoDir, infoAction      = 160, 161
)

// openXfrm opens the sockets for policies, in the network namespace of the calling thread. A kernel without xfrm needs
// none.
func (rt *Resolver) openXfrm() error {
	events, err := nl.Subscribe(unix.NETLINK_XFRM) // to nothing
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil
	}
	if err != nil {
		return err
	}
	// Without CAP_NET_ADMIN this fails. In Subscribe it would leave a file whose descriptor is closed twice.
	for _, group := range []int{nl.XFRMNLGRP_POLICY, nl.XFRMNLGRP_EXPIRE} {
		err := unix.SetsockoptInt(events.GetFd(), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
		if err != nil {
			events.Close()
			return err
		}
	}
	_ = events.SetReceiveBufferSize(1<<20, true)
	ask, err := ownSocket(unix.NETLINK_XFRM)
	if err != nil {
		events.Close()
		return err
	}
	rt.xfrm, rt.sockets[unix.NETLINK_XFRM] = events, ask
	return nil
}

// protects reports whether packets that would leave by a device are under a policy that protects them.
func (rt *Resolver) protects(t Traffic, ifindex int) bool {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return rt.policies.protect(t, ifindex)
}

// readPolicies replaces the copy of the policies.
func (rt *Resolver) readPolicies() error {
	if rt.xfrm == nil {
		return nil
	}
	var now policies
	err := rt.with(func(*netlink.Handle) error {
		list, err := nldump.List(func() ([][]byte, error) {
			req := nl.NewNetlinkRequest(nl.XFRM_MSG_GETPOLICY, unix.NLM_F_DUMP)
			return rt.execute(req, unix.NETLINK_XFRM, nl.XFRM_MSG_NEWPOLICY)
		})
		if err != nil {
			return err
		}
		for _, msg := range list {
			p, sub, ok := parsePolicy(msg)
			switch {
			case ok && sub:
				now.sub = append(now.sub, p)
			case ok:
				now.main = append(now.main, p)
			}
		}
		req := nl.NewNetlinkRequest(msgGetDefault, 0)
		req.AddRawData(make([]byte, 4))
		answer, err := rt.execute(req, unix.NETLINK_XFRM, msgGetDefault)
		now.block = err == nil && len(answer) > 0 && len(answer[0]) > defaultOut &&
			answer[0][defaultOut] == blockDefault
		if err != nil && !errors.Is(err, unix.EINVAL) { // so says a kernel that has no defaults
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	now.sort()
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.policies = now
	return nil
}

// parsePolicy reads a policy's message; false if it isn't for what a relay sends.
func parsePolicy(b []byte) (p policy, sub, ok bool) {
	if len(b) < nl.SizeofXfrmUserpolicyInfo || b[infoDir] != uint8(netlink.XFRM_DIR_OUT) {
		return policy{}, false, false
	}
	var addr func(at int) netip.Addr
	switch binary.NativeEndian.Uint16(b[selFamily:]) {
	case unix.AF_INET:
		p.v4 = true
		addr = func(at int) netip.Addr { return netip.AddrFrom4([4]byte(b[at:])) }
	case unix.AF_INET6:
		addr = func(at int) netip.Addr { return netip.AddrFrom16([16]byte(b[at:])) }
	default:
		return policy{}, false, false
	}
	p.from, p.to = prefix(addr(selFrom), int(b[selFromBits])), prefix(addr(selTo), int(b[selToBits]))
	be := binary.BigEndian
	p.fromPort = port{be.Uint16(b[selFromPort:]), be.Uint16(b[selFromMask:])}
	p.toPort = port{be.Uint16(b[selToPort:]), be.Uint16(b[selToMask:])}
	p.proto, p.ifindex = b[selProto], int(int32(uint32At(b[selIfindex:])))
	p.priority = uint32At(b[infoPriority:])
	templates := 0
	for kind, v := range attributes(b[nl.SizeofXfrmUserpolicyInfo:]) {
		switch kind {
		case nl.XFRMA_TMPL:
			templates = len(v) / nl.SizeofXfrmUserTmpl
		case nl.XFRMA_POLICY_TYPE:
			sub = len(v) > 0 && v[0] == subPolicy
		case nl.XFRMA_MARK:
			if uint32At(v) != 0 {
				return policy{}, false, false
			}
		case nl.XFRMA_IF_ID:
			if uint32At(v) != 0 {
				return policy{}, false, false
			}
		}
	}
	p.clear = b[infoAction] == uint8(netlink.XFRM_POLICY_ALLOW) && templates == 0
	return p, sub, true
}

// listenXfrm reads announcements of policies until Close.
func (rt *Resolver) listenXfrm() {
	for {
		msgs, _, err := rt.xfrm.Receive()
		switch {
		case err == nil:
			for _, m := range msgs {
				// Policies expire, and security associations, which don't matter, as well.
				if m.Header.Type != nl.XFRM_MSG_EXPIRE {
					rt.stale(false, true)
				}
			}
		case rt.closed() || errors.Is(err, unix.EBADF):
			return
		case errors.Is(err, unix.ENOBUFS):
			rt.stale(false, true)
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		default:
			rt.log.Error("changes of xfrm policies can't be followed any more", "error", err)
			return
		}
	}
}
