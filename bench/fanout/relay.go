package fanout

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/bench/fanout/rewrite/rewriterelay"
)

// A receiver is where copies go, and how they differ from the packet that came: numbers and timestamps are added.
type receiver struct {
	addr        netip.AddrPort
	ssrc        uint32
	payloadType uint8
	sequence    uint16
	timestamp   uint32
}

// receiversAt makes so many receivers, at ports from the first one's on.
func receiversAt(first netip.AddrPort, n int) (list []receiver) {
	for i := range n {
		list = append(list, receiver{
			addr: netip.AddrPortFrom(first.Addr(), first.Port()+uint16(i)),
			ssrc: 1000 + uint32(i), payloadType: 97, sequence: uint16(i), timestamp: uint32(i),
		})
	}
	return list
}

// generated is a relay made from a spec, with one group of receivers.
type generated interface {
	attach(device string) error
	program() *ebpf.Program       // the one that makes the copies
	reported(copies uint64) error // waits until user space knows of so many copies in all, if it gets events
	serve(packets *reader) error  // does what the kernel leaves to user space, until it fails
	close()
}

// loadGenerated loads one for the host that it is called on (testnet.Host.Do): what comes from a publisher to a server
// goes to the receivers.
func loadGenerated(v Variant, publisher, server netip.AddrPort, receivers []receiver) (generated, error) {
	if v == SFU {
		return loadSFU(publisher, server, receivers)
	}
	return loadRewrite(server, receivers)
}

// rewriter is the relay of the bench's own spec, which does what the user-space relay does.
type rewriter struct{ kernel *rewriterelay.Relay }

func loadRewrite(server netip.AddrPort, receivers []receiver) (_ *rewriter, err error) {
	kernel, err := rewriterelay.Load(rewriterelay.Options{})
	if err != nil {
		return nil, err
	}
	r := &rewriter{kernel}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	group, err := kernel.Receivers.Open(context.Background(), server)
	if err != nil {
		return nil, err
	}
	return r, group.Change(context.Background(), func(c *rewriterelay.ReceiversChange) error {
		for _, to := range receivers {
			_, err := c.Add(rewriterelay.ReceiversRow{
				Local: server, Remote: to.addr, SSRC: to.ssrc, PayloadType: to.payloadType, Sequence: to.sequence,
				Timestamp: to.timestamp,
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (r *rewriter) attach(device string) error { return r.kernel.Deliver.Attach(device) }
func (r *rewriter) program() *ebpf.Program     { return r.kernel.Deliver.Kernel() }
func (r *rewriter) reported(uint64) error      { return nil }
func (r *rewriter) close()                     { _ = r.kernel.Close() }

// serve waits for packets that the kernel doesn't relay.
func (r *rewriter) serve(packets *reader) error {
	for {
		if _, err := packets.read(unix.MSG_WAITFORONE); err != nil {
			return err
		}
	}
}

// generatedMain is the process of a generated relay. It says "ready", and relays until it is killed.
func generatedMain(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("generated", flag.ContinueOnError)
	variant := flags.String("variant", "", "")
	listen := flags.String("listen", "", "")
	to := flags.String("to", "", "")
	from := flags.String("publisher", "", "")
	device := flags.String("device", "", "")
	n := flags.Int("receivers", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var addrs [3]netip.AddrPort
	for i, text := range []string{*from, *listen, *to} {
		var err error
		if addrs[i], err = netip.ParseAddrPort(text); err != nil {
			return err
		}
	}
	publisher, server, first := addrs[0], addrs[1], addrs[2]
	fd, err := listenUDP(server, fetchBuffer)
	if err != nil {
		return err
	}
	r, err := loadGenerated(Variant(*variant), publisher, server, receiversAt(first, *n))
	if err != nil {
		return err
	}
	defer r.close()
	if err := r.attach(*device); err != nil {
		return err
	}
	fmt.Fprintln(stdout, ready)
	return r.serve(newReader(fd))
}

// fetchBuffer is how many bytes of packets may wait for user space.
const fetchBuffer = 8 << 20
