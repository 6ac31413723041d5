package fanout

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

//go:embed bpf/bench.c
var source string

// object is the bench's own programs, compiled once.
var object = sync.OnceValues(func() ([]byte, error) {
	object, _, err := clang.Compile(context.Background(), source, "", clang.Options{})
	var refused *clang.Error
	if errors.As(err, &refused) {
		return nil, fmt.Errorf("%w\n%s", err, refused.Log)
	}
	return object, err
})

// load loads one of the programs with its variables.
func load(program string, constants map[string]any) (*ebpf.Collection, error) {
	object, err := object()
	if err != nil {
		return nil, err
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, err
	}
	for name := range spec.Programs {
		if name != program {
			delete(spec.Programs, name)
		}
	}
	for name, value := range constants {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return ebpf.NewCollection(spec)
}

// attach attaches a program to what a device receives (ebpf.AttachTCXIngress) or sends (ebpf.AttachTCXEgress).
func attach(dev *testnet.Dev, program *ebpf.Program, attachType ebpf.AttachType) (detach func() error, err error) {
	err = dev.Host.Do(func() error {
		l, err := link.AttachTCX(link.TCXOptions{Interface: dev.Index, Program: program, Attach: attachType})
		if err == nil {
			detach = l.Close
			return nil
		}
		if !errors.Is(err, ebpf.ErrNotSupported) {
			return err
		}
		clsact := &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{ // before Linux 6.6
			LinkIndex: dev.Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xFFFF, 0),
		}}
		if err := netlink.QdiscAdd(clsact); err != nil {
			return err
		}
		detach = func() error { return dev.Host.Do(func() error { return netlink.QdiscDel(clsact) }) }
		parent := uint32(netlink.HANDLE_MIN_INGRESS)
		if attachType == ebpf.AttachTCXEgress {
			parent = netlink.HANDLE_MIN_EGRESS
		}
		return netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: dev.Index, Parent: parent, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL,
			},
			Fd: program.FD(), Name: "bench", DirectAction: true,
		})
	})
	return detach, err
}

// bare is the bare clone on a host of its own: from one device to another, n copies of each datagram to a port.
type bare struct {
	collection *ebpf.Collection
	detach     func() error
}

func loadBare(n int, port uint16, out *testnet.Dev, to net.HardwareAddr) (*bare, error) {
	var macs [12]byte
	copy(macs[:], to)
	copy(macs[6:], out.MAC)
	c, err := load("bare", map[string]any{
		"bare_copies": uint32(n), "bare_ifindex": uint32(out.Index), "bare_port": port, "bare_macs": macs,
	})
	if err != nil {
		return nil, err
	}
	return &bare{collection: c}, nil
}

func (b *bare) program() *ebpf.Program { return b.collection.Programs["bare"] }

func (b *bare) close() {
	if b.detach != nil {
		_ = b.detach()
	}
	b.collection.Close()
}

// sink drops and counts what a device receives.
type sink struct {
	collection *ebpf.Collection
	detach     func() error
}

// MaxReceivers is how many receivers a group of the SFU example has at most.
const MaxReceivers = 512

const (
	sinkPorts = 1024    // PORTS in bench.c
	maxDelays = 1 << 18 // DELAYS
)

// newSink attaches a sink.
func newSink(dev *testnet.Dev) (*sink, error) {
	c, err := load("sink", map[string]any{"sink_port": uint16(firstPort)})
	if err != nil {
		return nil, err
	}
	s := &sink{collection: c}
	if s.detach, err = attach(dev, c.Programs["sink"], ebpf.AttachTCXIngress); err != nil {
		c.Close()
		return nil, err
	}
	return s, nil
}

// counts returns the datagrams that came to each port, and to all other ports.
func (s *sink) counts() (*[sinkPorts + 1]uint64, error) {
	c := new([sinkPorts + 1]uint64)
	return c, s.collection.Variables["sink_counts"].Get(c)
}

// total returns all datagrams.
func (s *sink) total() (total uint64, err error) {
	c, err := s.counts()
	if err != nil {
		return 0, err
	}
	for _, n := range c {
		total += n
	}
	return total, nil
}

// drain waits until so many more datagrams than before have come, for at most a while, and returns how many have.
func (s *sink) drain(before, want uint64, patience time.Duration) (uint64, error) {
	deadline := time.Now().Add(patience)
	for {
		late := !time.Now().Before(deadline)
		now, err := s.total()
		if err != nil || late || now-before >= want {
			return now - before, err
		}
		time.Sleep(patience / 10)
	}
}

func (s *sink) close() {
	_ = s.detach()
	s.collection.Close()
}

// delays takes down how long each datagram that leaves through a device was on its way.
type delays struct {
	collection *ebpf.Collection
	detach     func() error
}

func newDelays(dev *testnet.Dev) (*delays, error) {
	c, err := load("delays", map[string]any{"delay_stamp": uint32(stampAt)})
	if err != nil {
		return nil, err
	}
	d := &delays{collection: c}
	if d.detach, err = attach(dev, c.Programs["delays"], ebpf.AttachTCXEgress); err != nil {
		c.Close()
		return nil, err
	}
	return d, nil
}

// values returns the delays in nanoseconds, in the order in which datagrams left.
func (d *delays) values() ([]uint32, error) {
	var count uint64
	if err := d.collection.Variables["delay_count"].Get(&count); err != nil {
		return nil, err
	}
	all := make([]uint32, maxDelays)
	if err := d.collection.Variables["delay_values"].Get(all); err != nil {
		return nil, err
	}
	return all[:min(count, maxDelays)], nil
}

func (d *delays) close() {
	_ = d.detach()
	d.collection.Close()
}

// A CallCounter counts the system calls of one process.
type CallCounter struct {
	collection *ebpf.Collection
	link       link.Link
}

// NewCallCounter begins to count; no process is watched yet.
func NewCallCounter() (*CallCounter, error) {
	c, err := load("system_calls", nil)
	if err != nil {
		return nil, err
	}
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{
		Name: "sys_enter", Program: c.Programs["system_calls"],
	})
	if err != nil {
		c.Close()
		return nil, err
	}
	return &CallCounter{c, l}, nil
}

// Watch chooses the process.
func (c *CallCounter) Watch(pid int) error {
	return c.collection.Variables["calls_process"].Set(uint32(pid))
}

// Count returns the process's system calls so far, those of processes watched before included.
func (c *CallCounter) Count() (n uint64, err error) {
	return n, c.collection.Variables["calls"].Get(&n)
}

// Close ends the counting.
func (c *CallCounter) Close() {
	_ = c.link.Close()
	c.collection.Close()
}
