package coturn

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const (
	clients = 10       // at a time; coturn has as many relayed addresses: one that is given back is given again
	turns   = 3        // of clients that come and go before coturn is killed
	steps   = 7        // moments of a client's life at which coturn may be killed
	former  = "former" // what a client sends whose relayed address is another one's by now
)

// TestServerKilledAtRandom has clients that come and go, while coturn is killed at any moment, now and then with the
// helper, and started again. The same relayed addresses are given to one client after the other. What a peer sends to a
// client reaches no other one, and nothing leaves from an address for a client that doesn't have it any more. The
// sessions are those of coturn's sockets.
func TestServerKilledAtRandom(t *testing.T) {
	ports := []string{"--min-port", "50000", "--max-port", strconv.Itoa(50000 + clients - 1)}
	c := &churn{bed: newBed(t, usual, ports, longHold), ended: map[int]bool{}}
	var readers sync.WaitGroup
	for range 2 {
		peer := c.peer()
		c.peers = append(c.peers, peer)
		readers.Go(func() { c.hear(peer) })
	}
	defer func() {
		for _, peer := range c.peers {
			peer.Close()
		}
		readers.Wait()
	}()
	r := rand.New(rand.NewPCG(needs.Seed(t), 0))
	for range needs.Of(2, 50) {
		c.work(r, 0)
		c.agrees()
		c.work(r, 1+r.IntN(2*clients*steps))
		for _, l := range c.current {
			if l != nil {
				c.ends(l)
			}
		}
		if r.IntN(4) == 0 {
			c.helper.kill()
			c.startHelper()
		} else if r.IntN(2) == 0 {
			c.until("all channels have ended", func() bool { return len(c.sessions()) == 0 })
		}
		c.startCoturn()
	}
}

// churn is clients and peers.
type churn struct {
	*bed
	peers  []*net.UDPConn
	left   atomic.Int64 // steps until coturn is killed
	killed atomic.Bool

	mu      sync.Mutex
	current [clients]*life
	ended   map[int]bool // whether a client is one to which nobody sends any more
	formers []*life      // clients that have ended, but may not know it
}

// life is one client, while it has an allocation and after.
type life struct {
	*turnlab.Client
	serial, place int
}

// step is a moment at which coturn may be killed.
func (c *churn) step() {
	if c.left.Add(-1) == 0 {
		c.killed.Store(true)
		c.coturn.kill()
	}
}

// work lets clients come and go: until coturn is killed, after so many steps, or, with 0, some times.
func (c *churn) work(r *rand.Rand, kill int) {
	c.Helper()
	c.left.Store(int64(kill))
	c.killed.Store(false)
	check := func(err error) {
		if err != nil && !c.killed.Load() {
			c.Error(err)
		}
	}
	for n := 0; (n < turns || kill > 0) && !c.killed.Load() && !c.Failed(); n++ {
		for _, l := range c.current {
			if l != nil && r.IntN(2) == 0 {
				check(c.leave(l))
			}
		}
		c.until("coturn has closed the sockets of clients that have left", func() bool {
			return c.killed.Load() || slices.Equal(c.sockets(), c.relayed())
		})
		var all sync.WaitGroup
		for i, l := range c.current {
			peer := c.peers[r.IntN(len(c.peers))]
			if l == nil {
				all.Go(func() { check(c.live(i, peer)) })
			}
		}
		all.Wait()
	}
	if c.Failed() {
		c.FailNow()
	}
}

// live opens a channel of a new client to a peer, and uses it.
func (c *churn) live(place int, peer *net.UDPConn) error {
	client, err := c.dial()
	if err != nil {
		return err
	}
	c.mu.Lock()
	l := &life{client, len(c.ended), place}
	c.ended[l.serial], c.current[place] = false, l
	c.mu.Unlock()
	c.step()
	if err := l.Allocate(4); err != nil {
		return err
	}
	c.step()
	if err := l.Bind(number, address(peer)); err != nil {
		return err
	}
	c.step()
	var open map[netip.AddrPort]netip.AddrPort
	err = testnet.Until(wait, fmt.Sprintf("the channel of %v is in the kernel", l.Addr()), func() bool {
		open = c.sessions()
		return open[l.Addr()] == l.Relayed || c.killed.Load()
	})
	if err != nil || open[l.Addr()] != l.Relayed {
		return err
	}
	// So the helper has heard who has the address now.
	for client, relayed := range open {
		if relayed == l.Relayed && client != l.Addr() {
			c.Errorf("%v and %v have %v", client, l.Addr(), relayed)
		}
	}
	c.mu.Lock()
	formers := slices.Clone(c.formers)
	c.mu.Unlock()
	for _, f := range formers {
		if f.Relayed == l.Relayed {
			_ = f.Send(number, []byte(former)) // if it was refused before, it isn't sent
		}
	}
	for range 3 {
		c.step()
		for _, peer := range c.peers {
			if _, err := peer.WriteToUDPAddrPort([]byte(strconv.Itoa(l.serial)), l.Relayed); err != nil {
				return err
			}
		}
		if err := l.Send(number, []byte(strconv.Itoa(l.serial))); err != nil {
			return err
		}
		for got := -1; got != l.serial; {
			_, payload, err := l.Receive(wait)
			if err != nil {
				return fmt.Errorf("what a peer has sent to %v: %w", l.Addr(), err)
			}
			got = c.meant(l, payload)
		}
	}
	return nil
}

// leave gives an allocation back.
func (c *churn) leave(l *life) error {
	c.ends(l)
	c.step()
	return l.Refresh(0)
}

// ends makes a client a former one.
func (c *churn) ends(l *life) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended[l.serial], c.current[l.place] = true, nil
	c.formers = append(c.formers, l)
}

// meant returns the client to which a payload was sent that one has received. That may be another one only if it ended
// before this one got its address: then the packet was late.
func (c *churn) meant(l *life, payload []byte) int {
	serial, err := strconv.Atoi(string(payload))
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || serial > l.serial || serial < l.serial && !c.ended[serial] {
		c.Errorf("client %d got what was sent to client %q", l.serial, payload)
	}
	return serial
}

// hear reads what a peer gets.
func (c *churn) hear(peer *net.UDPConn) {
	buf := make([]byte, 100)
	for {
		n, from, err := peer.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || string(buf[:n]) == former {
			c.Errorf("a peer got %q from %v, whose client is another one: %v", buf[:n], from, err)
		}
	}
}

// agrees waits until sessions and coturn's sockets are those of the clients that have an allocation. What former ones
// have got was sent to them, and their allocations are gone.
func (c *churn) agrees() {
	c.Helper()
	c.until("sessions and sockets are those of clients", func() bool {
		sessions := c.sessions()
		for _, l := range c.current {
			if sessions[l.Addr()] != l.Relayed {
				return false
			}
		}
		return len(sessions) == len(c.current) && slices.Equal(c.sockets(), c.relayed())
	})
	for _, f := range c.formers {
		err := f.Refresh(usual)
		for errors.Is(err, unix.ECONNREFUSED) { // when coturn was killed
			err = f.Refresh(usual)
		}
		var refused *turnlab.RequestError
		if !errors.As(err, &refused) || refused.Code != 437 {
			c.Fatalf("client %d has ended, but it can refresh its allocation: %v", f.serial, err)
		}
		for { // all that came before that answer
			_, payload, err := f.Receive(0)
			if err != nil {
				break
			}
			c.meant(f, payload)
		}
		c.check(f.Close())
	}
	c.formers = nil
}

// sessions returns the relayed address of each client in the kernel.
func (c *churn) sessions() map[netip.AddrPort]netip.AddrPort {
	out := map[netip.AddrPort]netip.AddrPort{}
	for s := range c.relay.Channel.All() {
		f := s.Fields()
		out[f.Client] = f.Relayed
	}
	return out
}

// relayed returns the addresses of all clients, in order.
func (c *churn) relayed() (out []netip.AddrPort) {
	for _, l := range c.current {
		if l != nil {
			out = append(out, l.Relayed)
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}
