package server

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/fastrelay/fastrelay-gen/examples/turn/turnrelay"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// offload is the kernel's part of a server.
type offload struct {
	relay *turnrelay.Relay // nil if there is none
	why   string           // why there is none
	log   *slog.Logger
}

// startOffload loads the relay and attaches it. It can't fail: without the kernel the server works as before.
func startOffload(config Config, log *slog.Logger) *offload {
	if config.NoOffload {
		return &offload{why: "it was turned off", log: log}
	}
	relay, err := load(config, log)
	if err != nil {
		log.Warn("channel data stays in user space", "error", err)
		return &offload{why: err.Error(), log: log}
	}
	return &offload{relay: relay, log: log}
}

// load loads the relay and attaches both programs to each interface: which one a client or a peer is behind is not
// known before it sends, and may be the same.
func load(config Config, log *slog.Logger) (*turnrelay.Relay, error) {
	interfaces := config.Interfaces
	named := len(interfaces) > 0
	if !named {
		var err error
		if interfaces, err = ethernets(); err != nil {
			return nil, err
		}
	}
	relay, err := turnrelay.Load(turnrelay.Options{Logger: log, Control: config.Control.Control()})
	if err != nil {
		return nil, err
	}
	how := runtime.AttachOptions{First: config.First, Hook: config.Hook}
	attached := 0
	for _, name := range interfaces {
		err := errors.Join(relay.ToPeer.AttachAt(name, how), relay.ToClient.AttachAt(name, how))
		switch {
		case err == nil:
			attached++
			log.Info("channel data is forwarded in the kernel", "interface", name)
		case named:
			return nil, errors.Join(err, relay.Close())
		default:
			log.Warn("what comes in here stays in user space", "interface", name, "error", err)
			_, _ = relay.ToPeer.Detach(name), relay.ToClient.Detach(name) // the one that was attached, if any
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

// open opens a channel's session. It returns nothing at all if there is no relay.
func (o *offload) open(ch channel) (io.Closer, error) {
	if o.relay == nil {
		return nil, nil
	}
	session, err := o.relay.Channel.Open(turnrelay.Channel{
		Client: ch.client, Server: ch.server, Number: ch.number, Relayed: ch.relayed, Peer: ch.peer,
	})
	if err != nil {
		return nil, err // not the nil session: that would be a Closer
	}
	return session, nil
}

func (o *offload) close() error {
	if o.relay == nil {
		return nil
	}
	return o.relay.Close()
}

// state says whether there is a relay, and if not, why.
func (o *offload) state() (bool, string) { return o.relay != nil, o.why }

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
				list = append(list, Outcome{Program: p.Name(), Reason: p.Desc().Reason(i).Name, Packets: n.Packets})
			}
		}
	}
	return list
}
