package doctor

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// xfrm looks whether the IPsec policies of this network namespace can be read: what they are for mustn't be relayed in
// the clear.
func xfrm() Check {
	c := Check{Name: "xfrm policies", Status: OK}
	all, err := netlink.XfrmPolicyList(netlink.FAMILY_ALL)
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT):
		c.Found = "the kernel has no xfrm (IPsec)"
		return c
	case errors.Is(err, unix.EPERM):
		c.Status = Warning
		c.Found = "can't be read without CAP_NET_ADMIN: packets are relayed as if there were none"
		c.Do = "run as root, or with CAP_NET_ADMIN"
		return c
	case err != nil && !errors.Is(err, netlink.ErrDumpInterrupted):
		c.Status, c.Found = Info, "unknown: "+reasonOf(err)
		return c
	}
	out := 0
	for i := range all {
		if all[i].Dir == netlink.XFRM_DIR_OUT {
			out++
		}
	}
	c.Found = "none for packets that leave"
	if out > 0 {
		c.Found = fmt.Sprintf("%d for packets that leave: those under one pass to the stack", out)
	}
	return c
}
