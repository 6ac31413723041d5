package testnet

import (
	"errors"

	"github.com/safchain/ethtool"
)

// Features of a device, as ethtool names them: which work on packets is offloaded to it.

// SetTxChecksum sets whether the device completes the checksums of what it sends (a veth doesn't: its packets go on
// with CHECKSUM_PARTIAL), or software does before.
func (d *Dev) SetTxChecksum(on bool) error {
	return d.wrap("tx checksum", d.setFeature("tx-checksum-ip-generic", on))
}

// SetSegmentation sets whether the device takes GSO packets of UDP (UDP_SEGMENT) and TCP, or the kernel segments them
// before.
func (d *Dev) SetSegmentation(on bool) error {
	var errs []error
	for _, name := range []string{
		"tx-udp-segmentation", "tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-ecn-segmentation",
		"tx-tcp-mangleid-segmentation",
	} {
		errs = append(errs, d.setFeature(name, on))
	}
	return d.wrap("segmentation", errors.Join(errs...))
}

// SetGRO sets whether what the device receives is merged, and verified before. A veth's packets come so far only if the
// other end sends no TCP segments to cut up (SetSegmentation).
func (d *Dev) SetGRO(on bool) error { return d.wrap("GRO", d.setFeature("rx-gro", on)) }

// SetMergeUDP sets whether GRO merges datagrams that aren't for this host: into one packet, or a list of packets.
func (d *Dev) SetMergeUDP(one, list bool) error {
	return d.wrap("UDP GRO", errors.Join(d.setFeature("rx-gro-list", list), d.setFeature("rx-udp-gro-forwarding", one)))
}

// setFeature switches one feature. It is no error if the kernel leaves it as it is because other features require that.
func (d *Dev) setFeature(name string, on bool) error {
	return d.Host.Do(func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer tool.Close()
		return tool.Change(d.Name, map[string]bool{name: on})
	})
}
