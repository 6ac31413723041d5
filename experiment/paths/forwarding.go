package paths

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/paths/router"
	"github.com/fastrelay/fastrelay-gen/experiment/trial"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// The variants of forwarding: the kernel's own routing, and the relay, on the same host with the same traffic.
const (
	routing = "plain routing"
	relay   = "relay"
)

const attempts = 5

var forwarders = []string{routing, relay}

// measureForwarding measures what a packet costs the router's processor.
func measureForwarding(ctx context.Context, b *trial.Book) error {
	asked := func(name string) bool { return slices.Contains(b.Only, name) }
	if b.Only != nil && !slices.ContainsFunc(forwarders, asked) {
		return nil
	}
	if err := measure.Prefer(os.Getpid(), measure.LoadCPU); err != nil {
		return err
	}
	busy, err := measure.NewBusy(measure.RelayCPU)
	if err != nil {
		return err
	}
	defer busy.Close()
	return b.Alternate(ctx, forwarders, func(_ context.Context, name string, _ int) (trial.Result, error) {
		ns, err := forward(name, busy)
		return trial.Result{Figures: map[string]float64{"processor": ns}}, err
	})
}

// forward sends video packets of 1,200 bytes through one router, and returns the nanoseconds of its processor that one
// takes.
func forward(name string, busy *measure.Busy) (_ float64, err error) {
	n, err := testnet.New()
	if err != nil {
		return 0, err
	}
	defer n.Close()
	l, err := n.Line()
	if err != nil {
		return 0, err
	}
	err = errors.Join(
		l.RelayIn.SetReceiveCPU(measure.RelayCPU), l.PeerDev.SetReceiveCPU(measure.LoadCPU),
		offloads.Segmentation(l.ClientDev, false), offloads.TxChecksum(l.ClientDev, false),
		// The receiver drops all packets, so it doesn't answer neighbour solicitations.
		l.RelayOut.AddNeighbour(l.PeerAddr.V4, l.PeerDev.MAC),
		l.ClientDev.AddNeighbour(l.RelayInAddr.V4, l.RelayIn.MAC))
	if err != nil {
		return 0, err
	}
	if name == routing {
		err = l.Relay.SetForwarding(true)
	} else {
		var r *router.Router
		err = l.Relay.Do(func() (err error) {
			r, err = router.Start(router.Config{
				Interfaces: []string{"eth0"}, Logger: slog.New(slog.DiscardHandler),
				Routes: []router.Route{
					{Dst: netip.PrefixFrom(l.PeerAddr.V4, 32), Fast: l.PeerAddr.V4, Slow: l.PeerAddr.V4},
				},
			})
			return err
		})
		if err == nil {
			defer func() { _ = r.Close() }()
		}
	}
	if err != nil {
		return 0, err
	}
	fd, _, err := measure.BlockingSocket(l.Client, netip.AddrPortFrom(l.ClientAddr.V4, 0))
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	sender := measure.NewSender(fd, netip.AddrPortFrom(l.PeerAddr.V4, 443), turnlab.Payload(1200))
	for range attempts { // it fails if the machine does something else
		var ns float64
		if ns, err = measure.Cost(l.PeerDev, sender, busy); err == nil {
			return ns, nil
		}
	}
	return 0, err
}
