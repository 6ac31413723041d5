package cli

import "github.com/fastrelay/fastrelay-gen/internal/doctor"

// superPackets is the reason under which programs pass GSO packets to the stack.
const superPackets = "gso_packet"

// sayMerged says once, in the log, that packets come as GSO packets which the relay leaves to the stack, with what
// makes them and what to do about it, as far as this host shows it.
func (w *watcher) sayMerged(what string) {
	if w.merged {
		return
	}
	w.merged = true
	c := doctor.Merging()
	if c.Status != doctor.Warning {
		c.Found = "nothing on this host merges datagrams: the sender hands them over together"
		c.Do = "on the sender's host, if its packets come over veth or a local bridge: " +
			"ethtool -K DEV tx-udp-segmentation off"
	}
	w.log.Warn(what, "cause", c.Found, "do", c.Do)
}
