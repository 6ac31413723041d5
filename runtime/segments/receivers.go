package segments

import (
	"net"
	"net/netip"
	"time"
)

// idle is how long a receiver is kept that isn't asked for, at least.
const idle = 30 * time.Second

// Receivers are a sender's receivers by their addresses, for who knows no other name of them: each is added when it is
// asked for, and removed when it wasn't for a while. Its methods aren't called at once.
type Receivers struct {
	sender *Sender
	local  map[bool]netip.AddrPort // by whether it is IPv4
	known  map[netip.AddrPort]*known
	swept  time.Time
}

type known struct {
	*Receiver
	used bool // since the last sweep
}

// NewReceivers begins with none. The local addresses are those that packets come from where the sender's socket has
// none of its own: one, or one of each IP version.
func NewReceivers(s *Sender, local ...netip.Addr) *Receivers {
	r := &Receivers{
		sender: s, local: map[bool]netip.AddrPort{}, known: map[netip.AddrPort]*known{}, swept: time.Now(),
	}
	at := s.single.conn.LocalAddr().(*net.UDPAddr).AddrPort()
	for _, a := range append(local, at.Addr()) {
		if a = a.Unmap(); !a.IsUnspecified() {
			r.local[a.Is4()] = netip.AddrPortFrom(a, at.Port())
		}
	}
	return r
}

// Of returns the receiver at an address; nil if it can't be one: it is no host's, there is no local address of its IP
// version, or there are too many receivers.
func (r *Receivers) Of(to netip.AddrPort) *Receiver {
	k := r.known[to]
	if k == nil {
		local, ok := r.local[to.Addr().Unmap().Is4()]
		if !ok {
			return nil
		}
		receiver, err := r.sender.Add(local, to)
		if err != nil {
			return nil
		}
		k = &known{Receiver: receiver}
		r.known[to] = k
	}
	k.used = true
	return k.Receiver
}

// Sweep removes those who weren't asked for lately. Packets to those who were may wait meanwhile.
func (r *Receivers) Sweep(now time.Time) {
	if now.Sub(r.swept) < idle {
		return
	}
	r.swept = now
	for at, k := range r.known {
		if !k.used {
			k.Close() // its row can only be gone already
			delete(r.known, at)
		}
		k.used = false
	}
}
