package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/sfu/sfurelay"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// offload is the kernel's part of a server.
type offload struct {
	relay  *sfurelay.Relay // nil if there is none
	why    string          // why there is none
	log    *slog.Logger
	packet func(*sfurelay.PacketEvent) // takes what was relayed
	ctx    context.Context             // of the reader of events
	cancel context.CancelFunc

	// tags guards the receivers' tags. That a tag is set before an event names its receiver, the kernel sees to.
	tags sync.Mutex
}

// startOffload loads the relay and attaches it. Without the kernel the server works as before, unless interfaces were
// named.
func startOffload(config Config, packet func(*sfurelay.PacketEvent)) (*offload, error) {
	o := &offload{log: config.Logger, packet: packet}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	if config.NoOffload {
		o.why = "it was turned off"
		return o, nil
	}
	relay, err := load(config)
	switch {
	case err == nil:
		o.relay = relay
	case len(config.Interfaces) > 0:
		return nil, err
	default:
		config.Logger.Warn("all streams stay in user space", "error", err)
		o.why = err.Error()
	}
	return o, nil
}

// Linger is how long the kernel goes on forwarding for a server that has ended and is followed by another one.
const Linger = 10 * time.Second

// load loads the relay and attaches its programs to each interface.
func load(config Config) (*sfurelay.Relay, error) {
	interfaces, named := config.Interfaces, len(config.Interfaces) > 0
	if !named {
		var err error
		if interfaces, err = ethernets(); err != nil {
			return nil, err
		}
	}
	options := sfurelay.Options{
		Settings: sfurelay.Settings{Vp8: new(uint8(VP8)), Extension: &config.Extension}, Logger: config.Logger,
		Lease: config.Lease, Control: config.Control.Control(),
	}
	if config.State != "" {
		options.PinPath, options.Linger = config.Pins, Linger
	}
	relay, err := sfurelay.Load(options)
	if err != nil {
		return nil, err
	}
	attached := 0
	for _, name := range interfaces {
		err := errors.Join(relay.Video.Attach(name), relay.Audio.Attach(name))
		switch {
		case err == nil:
			attached++
			config.Logger.Info("streams are forwarded in the kernel", "interface", name)
		case named:
			return nil, errors.Join(err, relay.Close())
		default:
			config.Logger.Warn("what comes in here stays in user space", "interface", name, "error", err)
			_, _ = relay.Video.Detach(name), relay.Audio.Detach(name) // the one that was attached, if any
		}
	}
	if attached == 0 {
		return nil, errors.Join(fmt.Errorf("none of the interfaces %v can be used", interfaces), relay.Close())
	}
	return relay, nil
}

// ethernets returns the names of the interfaces with a link-layer address that are up.
func ethernets() ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, i := range all {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 && len(i.HardwareAddr) == 6 {
			names = append(names, i.Name)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("no Ethernet interface is up")
	}
	return names, nil
}

// await sleeps until the kernel reports something, and returns false if it reports nothing any more.
func (o *offload) await() bool { return o.relay != nil && o.relay.Runtime().AwaitEvents(o.ctx) == nil }

// nearlyFull reports whether what the kernel reports doesn't wait for long.
func (o *offload) nearlyFull() bool {
	waiting, size := o.relay.Runtime().EventsWaiting()
	return waiting > size/4
}

// read reads what the kernel reports: packets, and then the copies of each.
func (o *offload) read() {
	if o.relay == nil {
		return
	}
	for event, err := range o.relay.Pending(o.ctx) {
		if err != nil {
			if o.ctx.Err() == nil && !errors.Is(err, runtime.ErrClosed) {
				o.log.Error("the kernel's events can't be read any more", "error", err)
			}
			return
		}
		switch e := event.(type) {
		case sfurelay.PacketEvent:
			o.packet(&e)
		case sfurelay.SentEvent:
			o.sent(&e)
		}
	}
}

func (o *offload) sent(e *sfurelay.SentEvent) {
	for _, c := range e.Copies {
		if c.Receiver == nil {
			continue
		}
		if f := o.feed(c.Receiver); f != nil {
			f.pub.mu.Lock()
			f.reported(e.Original, c.Number, o.lost)
			f.pub.mu.Unlock()
		}
	}
}

// feed returns whose receiver this is, or nil.
func (o *offload) feed(v *sfurelay.SubscribersReceiver) *feed {
	o.tags.Lock()
	defer o.tags.Unlock()
	f, _ := v.Tag.(*feed)
	return f
}

func (o *offload) tag(v *sfurelay.SubscribersReceiver, f *feed) {
	o.tags.Lock()
	defer o.tags.Unlock()
	v.Tag = f
}

// lost returns how many events were lost so far.
func (o *offload) lost() uint64 {
	if o.relay == nil {
		return 0
	}
	return o.relay.Lost().Sent
}

func (o *offload) close() error {
	o.cancel()
	if o.relay == nil {
		return nil
	}
	return o.relay.Close()
}

// stream is what packets of one stream have in common.
type stream struct {
	publisher, server netip.AddrPort
	ssrc              uint32
}

// open opens a stream's group. It returns nothing at all if there is no relay.
func (o *offload) open(s stream, highest uint16) (kernelGroup, error) {
	if o.relay == nil {
		return nil, nil
	}
	k := &relayGroup{
		offload: o,
		row:     sfurelay.StreamsKey{Publisher: s.publisher, Server: s.server, SSRC: s.ssrc},
	}
	if err := k.begin(highest); err != nil {
		return nil, err
	}
	group, err := o.relay.Subscribers.Open(o.ctx, sfurelay.SubscribersKey{
		Publisher: s.publisher, Server: s.server, SSRC: s.ssrc,
	})
	if err != nil {
		return nil, errors.Join(err, o.relay.Streams.Delete(k.row))
	}
	k.group = group
	return k, nil
}

// adopt finds a stream's group that a former server opened, its receivers by SSRC, and the highest number. The error
// wraps runtime.ErrNotFound if there is none.
func (o *offload) adopt(s stream) (kernelGroup, map[uint32]*kernelReceiver, uint16, error) {
	if o.relay == nil {
		return nil, nil, 0, runtime.ErrNotFound
	}
	key := sfurelay.StreamsKey{Publisher: s.publisher, Server: s.server, SSRC: s.ssrc}
	group, err := o.relay.Subscribers.Get(sfurelay.SubscribersKey(key))
	if err != nil {
		return nil, nil, 0, err
	}
	last, err := o.relay.Streams.Get(key)
	if err != nil { // the server ended while it closed the group
		return nil, nil, 0, errors.Join(group.Close(o.ctx), err)
	}
	receivers := map[uint32]*kernelReceiver{}
	for _, v := range group.Receivers() {
		receivers[v.Row().SSRC] = &kernelReceiver{offload: o, v: v}
	}
	return &relayGroup{offload: o, row: key, group: group}, receivers, last.Highest, nil
}

// prune removes the streams of a former server that were not taken over.
func (o *offload) prune(publishers []*Publisher) error {
	if o.relay == nil {
		return nil
	}
	known := map[sfurelay.StreamsKey]bool{}
	for _, p := range publishers {
		if k, ok := p.group.(*relayGroup); ok {
			known[k.row] = true
		}
	}
	var errs []error
	for g := range o.relay.Subscribers.All() {
		if !known[sfurelay.StreamsKey(g.Key())] {
			errs = append(errs, g.Close(o.ctx))
		}
	}
	for stream, err := range o.relay.Streams.All() {
		if err != nil {
			errs = append(errs, err)
		} else if !known[stream.Key] {
			errs = append(errs, o.relay.Streams.Delete(stream.Key))
		}
	}
	return errors.Join(errs...)
}

// waiting returns how many bytes of events are still to be read.
func (o *offload) waiting() uint64 {
	if o.relay == nil {
		return 0
	}
	n, _ := o.relay.Runtime().EventsWaiting()
	return n
}

type relayGroup struct {
	offload *offload
	row     sfurelay.StreamsKey
	group   *sfurelay.SubscribersGroup
}

func (k *relayGroup) begin(highest uint16) error {
	return k.offload.relay.Streams.Put(k.row, sfurelay.StreamsRow{Highest: highest})
}

func (k *relayGroup) close() error {
	return errors.Join(k.offload.relay.Streams.Delete(k.row), k.group.Close(context.Background()))
}

func (k *relayGroup) add(f *feed, r row, bandwidth int) (receiver, error) {
	out := &kernelReceiver{offload: k.offload, sub: f.sub}
	err := k.group.Change(k.offload.ctx, func(c *sfurelay.SubscribersChange) (err error) {
		if out.v, err = c.Add(out.values(r)); err != nil {
			return err
		}
		k.offload.tag(out.v, f)
		out.limit(bandwidth)
		return nil
	})
	if err != nil {
		return nil, err
	}
	out.awaitNeighbour()
	return out, nil
}

// awaitNeighbour waits until the next hop's link-layer address is known, which the runtime asks for: until then the
// kernel declines, and the first key frame would be lost. Who can't be reached isn't waited for long.
func (k *kernelReceiver) awaitNeighbour() {
	direct := func(h runtime.Hop) bool { return h.State == runtime.HopDirect }
	await(100*time.Millisecond, func() bool { return slices.ContainsFunc(k.v.Hops(), direct) })
}

type kernelReceiver struct {
	offload *offload
	sub     *Subscriber
	v       *sfurelay.SubscribersReceiver

	mu    sync.Mutex
	gone  bool
	last  Sent // what its counters were before they went
	usage runtime.Usage
}

func (k *kernelReceiver) values(r row) sfurelay.SubscribersRow {
	return sfurelay.SubscribersRow{
		Local: k.sub.local, Remote: k.sub.remote, SSRC: k.sub.ssrc, PayloadType: k.sub.payloadType,
		First: r.first, Timestamp: r.timestamp, Layer: r.layer, Before: r.before, Since: r.since,
	}
}

func (k *kernelReceiver) row() row {
	v := k.v.Row()
	return row{first: v.First, timestamp: v.Timestamp, layer: v.Layer, before: v.Before, since: v.Since}
}

func (k *kernelReceiver) set(r row) error { return k.v.Set(k.offload.ctx, k.values(r)) }

// unlimited is a rate in bytes a second that no stream reaches, and its burst.
const unlimited, unlimitedBurst = 1 << 40, 1 << 32

func (k *kernelReceiver) limit(bandwidth int) {
	if bandwidth == 0 {
		k.v.State.Rate.SetRate(runtime.Rate{PerSecond: unlimited, Burst: unlimitedBurst})
		return
	}
	rate, burst := allowance(bandwidth)
	k.v.State.Rate.SetRate(runtime.Rate{PerSecond: uint64(rate), Burst: uint64(burst)})
}

func (k *kernelReceiver) spend(bytes int) bool { return k.v.State.Rate.Spend(uint64(bytes)) == nil }

func (k *kernelReceiver) sent() Sent {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.gone {
		k.last = Sent{Octets: k.v.State.Octets.Load()}
		for level := range Layers {
			k.last.Refused += k.v.State.Rate.Refused(level)
		}
	}
	usage, err := k.v.Usage() // it outlives the receiver
	if err != nil {
		k.offload.log.Warn("the kernel's counters of a receiver can't be read", "error", err)
	} else {
		k.usage = usage
	}
	n := k.last
	n.Packets, n.InKernel = k.usage.Packets, k.usage.Packets
	if k.usage.Declined > n.Refused {
		n.LeftOut = k.usage.Declined - n.Refused
	}
	return n
}

func (k *kernelReceiver) remove() error {
	k.sent()
	k.mu.Lock()
	k.gone = true
	k.mu.Unlock()
	return k.v.Remove(context.Background())
}

// Outcome counts the packets of a program, or the copies, by reason.
type Outcome struct {
	Program string `json:"program"`
	Reason  string `json:"reason"`
	Packets uint64 `json:"packets"`
}

// outcomes returns the reasons that applied at least once.
func (o *offload) outcomes() []Outcome {
	if o.relay == nil {
		return nil
	}
	var list []Outcome
	for _, p := range o.relay.Runtime().Programs() {
		counts, err := p.Counts()
		if err != nil {
			o.log.Warn("the kernel's counters can't be read", "error", err)
			return nil
		}
		for i, n := range counts {
			if n.Packets > 0 {
				list = append(list, Outcome{p.Name(), p.Desc().Reason(i).Name, n.Packets})
			}
		}
	}
	return list
}

// state says whether there is a relay, and if not, why.
func (o *offload) state() (ok bool, why string) { return o.relay != nil, o.why }
