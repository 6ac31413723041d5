// Package tunnel measures one end of a VXLAN tunnel: the relay of examples/tunnel, beside the kernel's own device.
package tunnel

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/gateway"
	"github.com/fastrelay/fastrelay-gen/examples/tunnel/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Comparison is what relay and device did with one kind of packets.
type Comparison struct {
	Traffic string  `json:"traffic"`
	Unit    string  `json:"unit"` // one of the units below
	Relay   float64 `json:"relay"`
	Device  float64 `json:"device"`
	AtLeast bool    `json:"at_least,omitempty"` // the sender was the limit of one
}

// Units: packets that arrive at most, and where all but 0.5 % do; nanoseconds of the gateway's processor, for a packet;
// throughput of TCP.
const (
	delivered = "kpps delivered"
	lossFree  = "kpps loss-free"
	cost      = "ns"
	rate      = "Mbit/s"
)

// variant is a gateway: with the relay, beside which there is a device, too, or with the device alone.
type variant struct {
	*lab.Lab
	net     *testnet.Net
	gateway *gateway.Gateway // nil: the device
	client  int              // sockets
	peer    int
}

// figures measures one kind of packets.
type figures func(v *variant) (measure.Result, error)

// Measure compares relay and device: medians of rounds in which they alternate.
func Measure(rounds int, progress io.Writer) (list []Comparison, err error) {
	busy, err := measure.NewBusy(measure.RelayCPU)
	if err != nil {
		return nil, err
	}
	defer busy.Close()
	for _, outside := range versions {
		of, err := compareVersion(outside, rounds, busy, progress)
		if err != nil {
			return nil, err
		}
		list = append(list, of...)
	}
	fmt.Fprintf(progress, "\r%-50s\r", "")
	return list, nil
}

// compareVersion compares relay and device with tunnels over one IP version.
func compareVersion(outside, rounds int, busy *measure.Busy, progress io.Writer) (list []Comparison, err error) {
	var variants [2]*variant
	for i := range variants {
		if variants[i], err = newVariant(outside, i == 0); err != nil {
			return nil, err
		}
		defer variants[i].close()
	}
	compare := func(traffic string, f figures) (relay, device measure.Result, _ error) {
		return alternate(variants, rounds, f, func() { fmt.Fprintf(progress, "\r%-50s", traffic) })
	}
	for _, size := range []int{120, 1200} {
		for _, d := range []struct {
			name    string
			packets figures
		}{
			{"into", func(v *variant) (measure.Result, error) { return v.into(size, busy) }},
			{"out of", func(v *variant) (measure.Result, error) { return v.outOf(size, busy) }},
		} {
			name := fmt.Sprintf("%s a tunnel over IPv%d, %d bytes", d.name, outside, size)
			relay, device, err := compare(name, d.packets)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			list = append(list,
				Comparison{name, delivered, relay.Peak / 1e3, device.Peak / 1e3, relay.AtLeast || device.AtLeast},
				Comparison{name, lossFree, relay.LossFree / 1e3, device.LossFree / 1e3, false},
				Comparison{name, cost, relay.CPU, device.CPU, false})
		}
	}
	for _, cut := range []bool{false, true} {
		name := fmt.Sprintf("TCP through a tunnel over IPv%d", outside)
		if cut {
			name += ", no GSO packets"
		}
		relay, device, err := compare(name, func(v *variant) (measure.Result, error) {
			peak, err := v.tcp(cut)
			return measure.Result{Peak: peak}, err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		list = append(list, Comparison{name, rate, relay.Peak, device.Peak, false})
	}
	return list, nil
}

// alternate measures relay and device in turn, for so many rounds, and returns the medians. It calls begins before each
// measurement.
func alternate(variants [2]*variant, rounds int, f figures, begins func()) (relay, device measure.Result, _ error) {
	var results [2][]measure.Result
	for range rounds {
		for i, v := range variants {
			begins()
			r, err := f(v)
			if err != nil {
				return relay, device, err
			}
			results[i] = append(results[i], r)
		}
	}
	return measure.Medians(results[0]), measure.Medians(results[1]), nil
}

// versions are the IP versions outside.
var versions = []int{4}

func newVariant(outside int, relay bool) (_ *variant, err error) {
	v := &variant{client: -1, peer: -1}
	defer func() {
		if err != nil {
			v.close()
		}
	}()
	if v.net, err = testnet.New(); err != nil {
		return nil, err
	}
	if v.Lab, err = lab.New(v.net, lab.Options{Kind: gateway.VXLAN, Outside: outside}); err != nil {
		return nil, err
	}
	if relay {
		if v.gateway, err = v.Start(); err != nil {
			return nil, err
		}
	}
	// While a sink is attached, no host answers neighbour solicitations.
	for _, family := range []int{4, 6} {
		err = errors.Join(err,
			v.RelayIn.AddNeighbour(v.ClientAddr.Of(family), v.ClientDev.MAC),
			v.RelayOut.AddNeighbour(v.PeerAddr.Of(family), v.PeerDev.MAC),
			v.ClientDev.AddNeighbour(v.RelayInAddr.Of(family), v.RelayIn.MAC),
			v.PeerDev.AddNeighbour(v.RelayOutAddr.Of(family), v.RelayOut.MAC))
	}
	err = errors.Join(err,
		v.RelayIn.SetReceiveCPU(measure.RelayCPU), v.RelayOut.SetReceiveCPU(measure.RelayCPU),
		v.ClientDev.SetReceiveCPU(measure.LoadCPU), v.PeerDev.SetReceiveCPU(measure.LoadCPU))
	if err != nil {
		return nil, err
	}
	if v.client, _, err = measure.BlockingSocket(v.Client, netip.AddrPortFrom(v.ClientAddr.V4, 0)); err != nil {
		return nil, err
	}
	v.peer, _, err = measure.BlockingSocket(v.Peer, netip.AddrPortFrom(v.Inner.V4, 0))
	return v, err
}

// split has the hosts cut up what they send, as if it came from a network, or not.
func (v *variant) split(on bool) error {
	return errors.Join(offloads.Segmentation(v.ClientDev, !on), offloads.TxChecksum(v.ClientDev, !on),
		offloads.Segmentation(v.PeerDev, !on), offloads.TxChecksum(v.PeerDev, !on),
		offloads.Segmentation(v.device(), !on))
}

func (v *variant) device() *testnet.Dev { return &testnet.Dev{Host: v.Peer, Name: lab.Device} }

// into measures packets from the client.
func (v *variant) into(size int, busy *measure.Busy) (measure.Result, error) {
	to := netip.AddrPortFrom(v.Inner.V4, 7000)
	return v.packets(v.PeerDev, measure.NewSender(v.client, to, turnlab.Payload(size)), busy)
}

// outOf measures packets from the peer, whose own device puts them into the tunnel.
func (v *variant) outOf(size int, busy *measure.Busy) (measure.Result, error) {
	to := netip.AddrPortFrom(v.ClientAddr.V4, 7000)
	return v.packets(v.ClientDev, measure.NewSender(v.peer, to, turnlab.Payload(size)), busy)
}

// packets measures those to a device. All of them take the way that is measured: through the relay, or not.
func (v *variant) packets(
	to *testnet.Dev, sender *measure.Sender, busy *measure.Busy,
) (r measure.Result, err error) {
	if err := v.split(true); err != nil {
		return r, err
	}
	before, err := v.sent()
	if err != nil {
		return r, err
	}
	if r, err = measure.Throughput(to, sender, busy, nil); err != nil {
		return r, err
	}
	after, err := v.sent()
	if v.gateway != nil && after-before < leastSent {
		err = errors.Join(err, fmt.Errorf("the relay has sent only %d packets", after-before))
	}
	return r, err
}

// leastSent is less than what Throughput sends.
const leastSent = 10_000

// sent is the number of packets that the relay has sent.
func (v *variant) sent() (uint64, error) {
	if v.gateway == nil {
		return 0, nil
	}
	in, err1 := v.gateway.In(gateway.VXLAN).Count("sent")
	out, err2 := v.gateway.Out(gateway.VXLAN).Count("sent")
	return in.Packets + out.Packets, errors.Join(err1, err2)
}

// tcp is the throughput from the client to the peer, in Mbit/s.
func (v *variant) tcp(cut bool) (float64, error) {
	if err := v.split(cut); err != nil {
		return 0, err
	}
	return measure.TCP(v.Client, v.Peer, v.Inner.V4)
}

func (v *variant) close() {
	if v.gateway != nil {
		_ = v.gateway.Close() // with the network
	}
	for _, fd := range []int{v.client, v.peer} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	if v.net != nil {
		_ = v.net.Close() // what remains is removed by the next network
	}
}

// Print prints a table.
func Print(w io.Writer, list []Comparison) {
	fmt.Fprintf(w, "\nVXLAN tunnels\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tunit\trelay\tdevice\trelay / device\t")
	for _, c := range list {
		unit := c.Unit
		if c.AtLeast {
			unit += " (at least)"
		}
		figure := func(x float64) string {
			if c.Unit == lossFree {
				return measure.LossFreeKpps(1e3 * x)
			}
			return fmt.Sprintf("%.0f", x)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t\n", c.Traffic, unit, figure(c.Relay), figure(c.Device),
			measure.Ratio(c.Relay, c.Device))
	}
	t.Flush()
}
