package doctor

import (
	"net"

	"github.com/safchain/ethtool"
)

// device is a device that merges datagrams for other reasons than a socket that asks for it.
type device struct {
	name     string
	features []string
}

// mergingFeatures have a device merge the datagrams of all flows, so that a router forwards them together.
var mergingFeatures = []string{"rx-udp-gro-forwarding", "rx-gro-list"}

// mergingDevices returns the devices of this network namespace with such a feature, as far as the kernel says.
func mergingDevices() (out []device) {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return nil
	}
	defer tool.Close()
	for _, dev := range all {
		has, err := tool.Features(dev.Name)
		if err != nil {
			continue
		}
		d := device{name: dev.Name}
		for _, feature := range mergingFeatures {
			if has[feature] {
				d.features = append(d.features, feature)
			}
		}
		if len(d.features) > 0 {
			out = append(out, d)
		}
	}
	return out
}
