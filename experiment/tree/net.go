package tree

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// shape is how large a tree is: below the root, so many relays in the middle, each with so many at the edge, each with
// so many receivers.
type shape struct{ middle, edges, receivers int }

func (s shape) all() int { return s.middle * s.edges * s.receivers }

// copies is how many copies all relays together make of a packet.
func (s shape) copies() int { return s.middle + s.middle*s.edges + s.all() }

const port = 5004

// network is a tree of relays, each a host of its own. The receivers of a relay at the edge share a host and a socket,
// and have an SSRC each.
//
//	publisher ——— up root d0 ——— up middle0 d0 ——— up edge0 d0 ——— eth0 receivers0
//	                                        d1 ——— up edge1 d0 ——— eth0 receivers1
//	                     d1 ——— up middle1 …
type network struct {
	shape
	net       *testnet.Net
	dir       string
	root      *node
	middle    []*node
	edges     []*node // those of middle 0 first
	sinks     []*sink // of edges
	publisher *publisher
}

// build builds the tree, starts all relays, and gives them their receivers. If pin is set, relays are pinned.
func build(ctx context.Context, s shape, pin bool) (_ *network, err error) {
	t := &network{shape: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	if t.dir, err = os.MkdirTemp("", "tree"); err != nil {
		return nil, err
	}
	if t.net, err = testnet.New(); err != nil {
		return nil, err
	}
	source, err := t.net.Host("publisher")
	if err != nil {
		return nil, err
	}
	if t.root, err = t.relay("root", pin); err != nil {
		return nil, err
	}
	if t.root.server, _, err = t.join(source, "eth0", t.root.host, "up", 0, 0, -1); err != nil {
		return nil, err
	}
	for i := range s.middle {
		// A subtree's packets are handled on one processor, so that all processors have work.
		cpu := []int{measure.LoadCPU, measure.RelayCPU}[i%2]
		m, err := t.below(t.root, fmt.Sprintf("middle%d", i), i, 1, i, cpu, pin)
		if err != nil {
			return nil, err
		}
		t.middle = append(t.middle, m)
		for j := range s.edges {
			n := len(t.edges)
			e, err := t.below(m, fmt.Sprintf("edge%d", n), j, 2, n, -1, pin)
			if err != nil {
				return nil, err
			}
			t.edges = append(t.edges, e)
			if err := t.receivers(e, n); err != nil {
				return nil, err
			}
		}
	}
	for some := range slices.Chunk(t.nodes(), 4) {
		if err := together(len(some), func(i int) error {
			err := some[i].start()
			if err == nil {
				_, err = some[i].install(ctx)
			}
			return err
		}); err != nil {
			return nil, err
		}
	}
	t.publisher, err = newPublisher(source, t.root.server)
	return t, err
}

// together calls f so many times at once.
func together(n int, f func(i int) error) error {
	var all sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		all.Go(func() { errs[i] = f(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (t *network) nodes() (all []*node) {
	if t.root != nil {
		all = append(all, t.root)
	}
	return append(append(all, t.middle...), t.edges...)
}

// relay makes a relay's host.
func (t *network) relay(name string, pin bool) (*node, error) {
	host, err := t.net.Host(name)
	n := &node{host: host, job: job{Control: filepath.Join(t.dir, name+".sock")}}
	n.client = api.NewClient(n.job.Control)
	if pin {
		n.job.Pin = fmt.Sprintf("/sys/fs/bpf/tree-%d-%s", os.Getpid(), name)
	}
	return n, err
}

// join joins two hosts by a cable, whose number is (level, i), and returns the address where the lower one is sent to,
// and the upper one's.
func (t *network) join(upper *testnet.Host, upperDev string, lower *testnet.Host, lowerDev string, level, i, cpu int) (
	to, from netip.AddrPort, err error) {
	up, down, err := t.net.Join(upper, upperDev, lower, lowerDev)
	if err != nil {
		return to, from, err
	}
	a := netip.AddrFrom4([4]byte{10, byte(level), byte(i), 1})
	b := a.Next()
	err = errors.Join(up.AddAddr(a.String()+"/30"), down.AddAddr(b.String()+"/30"))
	if cpu >= 0 {
		err = errors.Join(err, down.SetReceiveCPU(cpu))
	}
	return netip.AddrPortFrom(b, port), netip.AddrPortFrom(a, port), err
}

// below makes a relay that is a receiver of another one.
func (t *network) below(parent *node, name string, place, level, i, cpu int, pin bool) (*node, error) {
	n, err := t.relay(name, pin)
	if err != nil {
		return nil, err
	}
	to, from, err := t.join(parent.host, fmt.Sprintf("d%d", place), n.host, "up", level, i, cpu)
	if err != nil {
		return nil, err
	}
	n.server = to
	parent.want = append(parent.want, receiver(from, to, 1))
	return n, nil
}

// receivers makes the receivers of a relay at the edge.
func (t *network) receivers(edge *node, i int) error {
	host, err := t.net.Host(fmt.Sprintf("receivers%d", i))
	if err != nil {
		return err
	}
	to, from, err := t.join(edge.host, "d0", host, "eth0", 3, i, -1)
	if err != nil {
		return err
	}
	s, err := newSink(host, to, t.shape.receivers)
	if err != nil {
		return err
	}
	t.sinks = append(t.sinks, s)
	for ssrc := range t.shape.receivers {
		edge.want = append(edge.want, receiver(from, to, uint32(ssrc)))
	}
	return nil
}

// close ends all relays, and removes the network.
func (t *network) close() error {
	var errs []error
	if t.publisher != nil {
		errs = append(errs, t.publisher.conn.Close())
	}
	for _, n := range t.nodes() {
		if n.cmd != nil && n.cmd.Process != nil {
			errs = append(errs, n.stop())
		}
	}
	for _, s := range t.sinks {
		errs = append(errs, s.close())
	}
	if t.net != nil {
		errs = append(errs, t.net.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(t.dir))...)
}

func udp(host *testnet.Host, open func() (*net.UDPConn, error)) (conn *net.UDPConn, err error) {
	err = host.Do(func() (err error) {
		conn, err = open()
		return err
	})
	return conn, err
}
