// Package forwarding says whether interfaces forward packets. The kernel looks no routes up for packets that come in
// by one that doesn't: bpf_fib_lookup answers BPF_FIB_LKUP_RET_FWD_DISABLED, with all flags.
package forwarding

import (
	"fmt"
	"os"
	"strings"
)

// Versions are the IP versions.
var Versions = []int{4, 6}

// On reports whether an interface of the caller's network namespace forwards packets of an IP version. One that has no
// IPv6 doesn't forward it.
func On(iface string, version int) (bool, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/sys/net/ipv%d/conf/%s/forwarding", version, iface))
	if os.IsNotExist(err) {
		if _, err := os.Stat("/proc/sys/net"); err != nil {
			return false, err
		}
		return false, nil
	}
	return strings.TrimSpace(string(text)) != "0", err
}

// Mend is the command that turns it on.
func Mend(iface string, version int) string {
	// sysctl(8) has a dot in a name written as a slash
	return fmt.Sprintf("sysctl -w net.ipv%d.conf.%s.forwarding=1", version, strings.ReplaceAll(iface, ".", "/"))
}
