// Package offloads says which work on packets is left to a device of testnet, by the features that ethtool names.
package offloads

import (
	"errors"
	"fmt"

	"github.com/safchain/ethtool"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// TxChecksum sets whether the device completes the checksums of what it sends (a veth doesn't: its packets go on
// with CHECKSUM_PARTIAL), or software does before.
func TxChecksum(d *testnet.Dev, on bool) error {
	return setFeature(d, "tx-checksum-ip-generic", on)
}

// Segmentation sets whether the device takes GSO packets of UDP (UDP_SEGMENT) and TCP, or the kernel segments them
// before.
func Segmentation(d *testnet.Dev, on bool) error {
	var errs []error
	for _, name := range []string{
		"tx-udp-segmentation", "tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-ecn-segmentation",
		"tx-tcp-mangleid-segmentation",
	} {
		errs = append(errs, setFeature(d, name, on))
	}
	return errors.Join(errs...)
}

// GRO sets whether what the device receives is merged, and verified before. A veth's packets come so far only if the
// other end sends no TCP segments to cut up ([Segmentation]).
func GRO(d *testnet.Dev, on bool) error { return setFeature(d, "rx-gro", on) }

// MergeUDP sets whether GRO merges datagrams that aren't for this host: into one packet, or a list of packets.
func MergeUDP(d *testnet.Dev, one, list bool) error {
	return errors.Join(setFeature(d, "rx-gro-list", list), setFeature(d, "rx-udp-gro-forwarding", one))
}

// Driver names the device's driver.
func Driver(d *testnet.Dev) (name string, err error) {
	err = d.Host.Do(func() (err error) {
		name, err = ethtool.DriverName(d.Name)
		return err
	})
	return name, err
}

// setFeature switches one feature. It is no error if the kernel leaves it as it is because other features require that.
func setFeature(d *testnet.Dev, name string, on bool) error {
	return d.Host.Do(func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer tool.Close()
		if err := tool.Change(d.Name, map[string]bool{name: on}); err != nil {
			return fmt.Errorf("%s of %s: %s: %w", d.Name, d.Host.Name, name, err)
		}
		return nil
	})
}
