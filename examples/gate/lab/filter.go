package lab

import (
	"crypto/rand"
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/fastrelay/fastrelay-gen/examples/gate/gate"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// Filter has the rules of the gate in user space, in the server: what it refuses has come through the network stack and
// a system call. It wraps the server's socket where quic-go reads from it.
type Filter struct {
	*net.UDPConn
	batches *ipv4.PacketConn
	quotas  gate.Quotas

	Dropped atomic.Uint64

	mu       sync.Mutex
	known    map[uint64]uint64
	attempts map[attempt]uint8
	sources  map[netip.Addr]*userSource
	networks map[netip.Prefix]*bucket
	else4    bucket // networks without one of their own
	regulars bucket
	fresh    bucket
	strays   bucket
	retired  []retired
}

type attempt struct {
	id   uint64
	peer netip.AddrPort
}

type userSource struct {
	bucket  bucket
	regular bool
}

type retired struct {
	at  time.Time
	ids []uint64
}

// bucket is a token bucket, as the kernel's is: the time up to which it is spent.
type bucket struct {
	rate  runtime.Rate
	spent time.Time
}

func (b *bucket) admit(now time.Time) bool {
	takes := time.Second / time.Duration(b.rate.PerSecond)
	from := b.spent
	if from.Before(now) {
		from = now
	}
	if from.Sub(now) > takes*time.Duration(b.rate.Burst)-takes {
		return false
	}
	b.spent = from.Add(takes)
	return true
}

func (b *bucket) refund() { b.spent = b.spent.Add(-time.Second / time.Duration(b.rate.PerSecond)) }

// maxAttempts bounds the table; the kernel's forgets the least recently used.
const maxAttempts = 65536

// NewFilter puts the rules in front of a socket.
func NewFilter(c *net.UDPConn, q gate.Quotas) *Filter {
	return &Filter{
		UDPConn: c, batches: ipv4.NewPacketConn(c), quotas: q,
		known: map[uint64]uint64{}, attempts: map[attempt]uint8{}, sources: map[netip.Addr]*userSource{},
		networks: map[netip.Prefix]*bucket{},
		else4:    bucket{rate: q.Elsewhere}, regulars: bucket{rate: q.Regulars}, fresh: bucket{rate: q.Newcomers},
		strays: bucket{rate: q.Strays},
	}
}

// ReadBatch implements what quic-go reads by: it reads until something passes.
func (f *Filter) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	for {
		n, err := f.batches.ReadBatch(ms, flags)
		if err != nil || n <= 0 {
			return n, err
		}
		now := time.Now()
		kept := 0
		f.mu.Lock()
		for i := range n {
			from, ok := ms[i].Addr.(*net.UDPAddr)
			if ok && f.pass(ms[i].Buffers[0][:ms[i].N], from.AddrPort(), now) {
				move(&ms[kept], &ms[i])
				kept++
			}
		}
		f.mu.Unlock()
		f.Dropped.Add(uint64(n - kept))
		if kept > 0 {
			return kept, nil
		}
	}
}

// move moves what was read. The caller knows which buffer is where, so they stay.
func move(to, from *ipv4.Message) {
	if to != from {
		to.N, to.NN = copy(to.Buffers[0], from.Buffers[0][:from.N]), copy(to.OOB, from.OOB[:from.NN])
		to.Flags, to.Addr = from.Flags, from.Addr
	}
}

// pass has the rules of spec.cue, in their order.
func (f *Filter) pass(p []byte, from netip.AddrPort, now time.Time) bool {
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	switch {
	case len(p) < 21:
		return false
	case p[0]&0x80 == 0:
		id := binary.BigEndian.Uint64(p[1:])
		if n, ok := f.known[id]; ok {
			f.known[id] = n + 1
			return true
		}
		return f.strays.admit(now)
	}
	id := binary.BigEndian.Uint64(p[6:])
	if n, ok := f.known[id]; ok {
		f.known[id] = n + 1
		return true
	}
	try := attempt{id, from}
	if n := f.attempts[try]; n > 0 && n < 32 {
		f.attempts[try] = n + 1
		return true
	}
	version, kind := binary.BigEndian.Uint32(p[1:]), p[0]>>4&3
	if len(p) < 1200 && (version != 1 || kind != 1) && (version != 0x6b3343cf || kind != 2) {
		return false
	}
	net24, _ := from.Addr().Prefix(24)
	network := f.networks[net24]
	if network == nil {
		network = &f.else4
	}
	s := f.sources[from.Addr()]
	if s != nil && !s.bucket.admit(now) || !network.admit(now) {
		return false
	}
	total := &f.fresh
	if s != nil && s.regular {
		total = &f.regulars
	}
	if !total.admit(now) {
		return false
	}
	if len(f.attempts) >= maxAttempts {
		clear(f.attempts)
	}
	f.attempts[try] = 1
	if s == nil {
		f.source(from.Addr())
	}
	return true
}

func (f *Filter) source(a netip.Addr) *userSource {
	s := f.sources[a]
	if s == nil {
		net24, _ := a.Prefix(24)
		if f.networks[net24] == nil {
			f.networks[net24] = &bucket{rate: f.quotas.Network}
		}
		s = &userSource{bucket: bucket{rate: f.quotas.Source}}
		f.sources[a] = s
	}
	return s
}

// NewID implements quicgo.Gate.
func (f *Filter) NewID() (uint64, error) {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	id := binary.BigEndian.Uint64(b[:])
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known[id] = 0
	for len(f.retired) > 0 && now.After(f.retired[0].at) {
		for _, id := range f.retired[0].ids {
			delete(f.known, id)
		}
		f.retired = f.retired[1:]
	}
	return id, nil
}

// Retire implements quicgo.Gate.
func (f *Filter) Retire(after time.Duration, ids ...uint64) {
	f.mu.Lock()
	f.retired = append(f.retired, retired{time.Now().Add(after), ids})
	f.mu.Unlock()
}

// Done implements quicgo.Gate.
func (f *Filter) Done(a netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.source(a)
	s.bucket.refund()
	if s.regular {
		f.regulars.refund()
	} else {
		f.fresh.refund()
	}
	s.regular, s.bucket.rate = true, f.quotas.Best
	return nil
}

// Failed implements quicgo.Gate. Quotas of sources that never finish a handshake aren't lowered here.
func (f *Filter) Failed(netip.Addr) {}
