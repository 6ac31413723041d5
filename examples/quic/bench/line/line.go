// Package line makes the hosts of benches of relays in user space.
package line

import (
	"errors"

	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// New makes a line of hosts: publisher, relay and subscribers. What the relay's host receives is handled on the
// relay's processor, all else on the other one. Packets come as from a network card, with complete checksums, and leave
// as to one that doesn't segment.
func New() (*testnet.Net, *testnet.Line, error) {
	hosts, err := testnet.New()
	if err != nil {
		return nil, nil, err
	}
	l, err := hosts.Line()
	if err == nil {
		err = errors.Join(
			l.RelayIn.SetReceiveCPU(measure.RelayCPU), l.RelayOut.SetReceiveCPU(measure.RelayCPU),
			l.ClientDev.SetReceiveCPU(measure.LoadCPU), l.PeerDev.SetReceiveCPU(measure.LoadCPU),
			offloads.Segmentation(l.ClientDev, false), offloads.Segmentation(l.RelayOut, false),
			offloads.Segmentation(l.PeerDev, false),
			offloads.TxChecksum(l.ClientDev, false), offloads.TxChecksum(l.PeerDev, false),
			l.RelayIn.AddNeighbour(l.ClientAddr.V4, l.ClientDev.MAC),
			l.RelayOut.AddNeighbour(l.PeerAddr.V4, l.PeerDev.MAC),
			l.ClientDev.AddNeighbour(l.RelayInAddr.V4, l.RelayIn.MAC),
			l.PeerDev.AddNeighbour(l.RelayOutAddr.V4, l.RelayOut.MAC),
		)
	}
	if err != nil {
		return nil, nil, errors.Join(err, hosts.Close())
	}
	return hosts, l, nil
}
