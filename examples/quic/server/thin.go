package server

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// ParseACKs returns what a text asks for, "PACKETS,MILLISECONDS": Config's ACKPackets and ACKDelay. With "0", none is
// asked.
func ParseACKs(text string) (packets int, delay time.Duration, err error) {
	if text == "0" {
		return -1, 0, nil
	}
	first, second, _ := strings.Cut(text, ",")
	packets, err = strconv.Atoi(first)
	ms, bad := strconv.Atoi(second)
	if err != nil || bad != nil || packets < 1 || ms < 1 {
		return 0, 0, fmt.Errorf("%q is neither PACKETS,MILLISECONDS, as 10,20, nor 0", text)
	}
	return packets, time.Duration(ms) * time.Millisecond, nil
}

// leastACKs is how many packets a peer waits for by itself (RFC 9000, section 13.2.2).
const leastACKs = 2

// ackEvery returns after how many packets an ACK is wanted: at most a quarter of the congestion window, so that what is
// acknowledged makes room before the window is used up.
func ackEvery(most, window, size int) int {
	return min(most, max(leastACKs, window/(4*max(size, 1200))))
}

// thin asks the subscriber for fewer ACKs, if it offers that, when what is wanted has changed: at once if it is less,
// and when it has doubled if it is more, so that few requests are sent while the window grows.
func (u *subscriber) thin(p quic.PathState) {
	config := &u.feed.server.config
	if config.ACKPackets < 0 || u.askedNot || p.CongestionWindow == 0 {
		return
	}
	window := p.CongestionWindow
	if u.steering != nil {
		window = min(window, u.steering.bytes())
	}
	every := ackEvery(config.ACKPackets, window, p.MaxPacketSize)
	if every == u.ackEvery || every > u.ackEvery && every < config.ACKPackets && every < 2*u.ackEvery {
		return
	}
	if u.askedNot = !u.library.RequestACKs(every, config.ACKDelay); !u.askedNot {
		u.ackEvery = every
	}
}
