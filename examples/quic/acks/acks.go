// Package acks asks peers for fewer ACKs (ACK_FREQUENCY, draft-ietf-quic-ack-frequency): much of what a delivery costs
// is its ACKs.
package acks

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Policy says how many ACKs are wanted of peers that offer to send fewer: one every Packets packets (0: 10), or Delay
// after the first of them (0: 20 ms). It is at most a quarter of the congestion window, so that what is acknowledged
// makes room before the window is used up. If Packets is negative, none is asked.
type Policy struct {
	Packets int
	Delay   time.Duration
}

// Parse returns what a text asks for, "PACKETS,MILLISECONDS". With "0", none is asked.
func Parse(text string) (Policy, error) {
	if text == "0" {
		return Policy{Packets: -1}, nil
	}
	first, second, _ := strings.Cut(text, ",")
	packets, err := strconv.Atoi(first)
	ms, bad := strconv.Atoi(second)
	if err != nil || bad != nil || packets < 1 || ms < 1 {
		return Policy{}, fmt.Errorf("%q is neither PACKETS,MILLISECONDS, as 10,20, nor 0", text)
	}
	return Policy{packets, time.Duration(ms) * time.Millisecond}, nil
}

func (p Policy) most() int            { return cmp.Or(p.Packets, 10) }
func (p Policy) delay() time.Duration { return cmp.Or(p.Delay, 20*time.Millisecond) }

// A Peer is asked (quic.Outside). It reports whether the peer offers that.
type Peer interface {
	RequestACKs(packets int, delay time.Duration) bool
}

// Requests are those to one peer.
type Requests struct {
	every   int  // how many packets it was asked to acknowledge at once; 0: it wasn't
	refused bool // it doesn't offer that
}

// least is how many packets a peer waits for by itself (RFC 9000, section 13.2.2).
const least = 2

// every returns after how many packets an ACK is wanted.
func every(most, window, size int) int { return min(most, max(least, window/(4*max(size, 1200)))) }

// Update asks the peer if what is wanted has changed: at once if it is less, and when it has doubled if it is more, so
// that few requests are sent while the window grows. The window is that of congestion, in bytes, the size the largest
// that packets may have.
func (r *Requests) Update(peer Peer, p Policy, window, size int) {
	if p.Packets < 0 || r.refused || window == 0 {
		return
	}
	n := every(p.most(), window, size)
	if n == r.every || n > r.every && n < p.most() && n < 2*r.every {
		return
	}
	if r.refused = !peer.RequestACKs(n, p.delay()); !r.refused {
		r.every = n
	}
}
