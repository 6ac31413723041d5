package router

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Two routers tell each other, several times a second and over each link, that they are there, and whether they hear
// the other one. So a link that loses packets in one direction only is noticed at both ends, with or without a carrier
// (RFC 5880 does the same). A router that has never answered isn't watched: it may not know this protocol.

// helloPort is the UDP port of hellos, at both ends.
const helloPort = 3786

// A hello is one byte.
const (
	helloDeaf  byte = iota // nothing was heard from you lately
	helloHears             // you are heard
)

// watch sends hellos to next hops and listens to theirs.
type watch struct {
	dead    time.Duration
	changed func(hop netip.Addr, up bool)
	socket  *net.UDPConn
	done    chan struct{}
	wg      sync.WaitGroup

	mu   sync.Mutex
	hops map[netip.Addr]*neighbour
}

// neighbour is what is known about a next hop.
type neighbour struct {
	heard    time.Time // its last hello
	answered time.Time // its last hello that says that it hears us; zero: never
	down     bool
}

func startWatch(
	hops []netip.Addr, every, dead time.Duration, changed func(hop netip.Addr, up bool),
) (*watch, error) {
	socket, err := net.ListenUDP("udp", &net.UDPAddr{Port: helloPort})
	if err != nil {
		return nil, err
	}
	w := &watch{
		dead: dead, changed: changed, socket: socket, done: make(chan struct{}), hops: map[netip.Addr]*neighbour{},
	}
	for _, hop := range hops {
		w.hops[hop] = &neighbour{}
	}
	w.wg.Go(w.listen)
	w.wg.Go(func() { w.tick(every) })
	return w, nil
}

func (w *watch) close() error {
	close(w.done)
	err := w.socket.Close()
	w.wg.Wait()
	return err
}

func (w *watch) listen() {
	var hello [2]byte
	for {
		n, from, err := w.socket.ReadFromUDPAddrPort(hello[:])
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n != 1 {
			continue // an ICMP error, or something else than a hello
		}
		w.mu.Lock()
		if hop := w.hops[from.Addr().Unmap()]; hop != nil {
			hop.heard = time.Now()
			if hello[0] == helloHears {
				hop.answered = hop.heard
			}
		}
		w.mu.Unlock()
	}
}

func (w *watch) tick(every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		for addr, hello := range w.look() {
			// A hello that can't be sent (the link is down) is one that isn't answered.
			_, _ = w.socket.WriteToUDPAddrPort([]byte{hello}, netip.AddrPortFrom(addr, helloPort))
		}
		select {
		case <-w.done:
			return
		case <-ticker.C:
		}
	}
}

// look finds next hops whose state has changed, and returns the hello for each.
func (w *watch) look() map[netip.Addr]byte {
	changes, hellos := map[netip.Addr]bool{}, map[netip.Addr]byte{}
	w.mu.Lock()
	for addr, hop := range w.hops {
		if down := !hop.answered.IsZero() && time.Since(hop.answered) > w.dead; down != hop.down {
			hop.down = down
			changes[addr] = !down
		}
		if time.Since(hop.heard) <= w.dead {
			hellos[addr] = helloHears
		} else {
			hellos[addr] = helloDeaf
		}
	}
	w.mu.Unlock()
	for addr, up := range changes {
		w.changed(addr, up)
	}
	return hellos
}
