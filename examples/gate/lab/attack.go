package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
)

// Attack is a kind of attack.
type Attack string

// The attacks.
const (
	Handshakes Attack = "handshakes from few sources" // real ClientHellos, beyond the quota
	Initials   Attack = "Initials from random sources"
	Garbage    Attack = "garbage"     // random bytes
	UnknownIDs Attack = "unknown IDs" // short headers
	Flood      Attack = "ten times"   // the clients' packet rate, of all kinds
)

// Attacks are all of them.
var Attacks = []Attack{Handshakes, Initials, Garbage, UnknownIDs, Flood}

const (
	etherIP  = 14
	etherUDP = etherIP + 20
	etherAll = etherUDP + 8
	// opening is how many different first packets there are. A server keeps what it begins for five seconds.
	opening = 1 << 14
)

// openings are datagrams that open connections.
var openings = sync.OnceValues(func() (all [][]byte, err error) {
	hello, err := clientHello()
	if err != nil {
		return nil, err
	}
	for range opening {
		p, err := initial(rand.Uint64(), hello)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
})

// prepared is how many frames an attacker has, which it sends again and again, from other ports: to make them costs
// more than to send them. Of a flood, a sixteenth open connections.
const (
	prepared      = opening
	preparedFlood = 4 * opening
)

// Attacker sends the packets of an attack at a rate, from the attackers' device.
type Attacker struct {
	Sent atomic.Uint64

	fd     int
	index  int
	head   [etherAll]byte
	random *rand.Rand
	open   [][]byte
	next   int
	frames [][]byte
}

// NewAttacker prepares an attack.
func (l *Lab) NewAttacker(kind Attack) (*Attacker, error) {
	a := &Attacker{random: rand.New(rand.NewPCG(1, 2)), index: l.AttackDev.Index}
	var err error
	if a.open, err = openings(); err != nil {
		return nil, err
	}
	// Packets go to the device at once, as from a program that does nothing else.
	a.fd, err = l.AttackDev.PacketSocket(0, namespace.Option(unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1))
	if err != nil {
		return nil, err
	}
	copy(a.head[0:], l.AttackedDev.MAC)
	copy(a.head[6:], l.AttackDev.MAC)
	a.head[12] = 0x08
	ip := a.head[etherIP:]
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, unix.IPPROTO_UDP
	copy(ip[16:], Addr.AsSlice())
	n := prepared
	if kind == Flood {
		n = preparedFlood
	}
	for range n {
		a.frames = append(a.frames, a.frame(kind))
	}
	return a, nil
}

// Close ends the attacker.
func (a *Attacker) Close() error { return unix.Close(a.fd) }

// anySource is a random address of another host.
func (a *Attacker) anySource() netip.Addr {
	r := a.random.Uint32()
	return netip.AddrFrom4([4]byte{byte(11 + r%80), byte(r >> 8), byte(r >> 16), byte(1 + r>>24%250)})
}

func (a *Attacker) bytes(n int) []byte {
	b := make([]byte, n, n+8)
	for i := 0; i < n; i += 8 {
		binary.NativeEndian.PutUint64(b[i:min(i+8, n+8)][:8:8], a.random.Uint64())
	}
	return b
}

// packet is the next one of an attack: where it comes from, and what is in it.
func (a *Attacker) packet(kind Attack) (netip.Addr, []byte) {
	switch kind {
	case Handshakes, Initials:
		p := a.open[a.next%len(a.open)]
		a.next++
		if kind == Handshakes {
			return attackerAddr(a.next % fewSources), p
		}
		return a.anySource(), p
	case UnknownIDs:
		p := a.bytes(40 + 8*a.random.IntN(20))
		p[0] = 0x40 | p[0]&0x3f
		return a.anySource(), p
	case Garbage:
		return a.anySource(), a.bytes(8 + 8*a.random.IntN(140))
	}
	if a.random.IntN(16) == 0 {
		return a.packet(Initials)
	}
	return a.packet([]Attack{UnknownIDs, Garbage}[a.random.IntN(2)])
}

// frame puts a frame together.
func (a *Attacker) frame(kind Attack) []byte {
	from, payload := a.packet(kind)
	f := append(slices.Clone(a.head[:]), payload...)
	ip := f[etherIP:]
	binary.BigEndian.PutUint16(ip[2:], uint16(len(f)-etherIP))
	copy(ip[12:], from.AsSlice())
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	udp := f[etherUDP:] // without a checksum
	binary.BigEndian.PutUint16(udp[2:], Port)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(f)-etherUDP))
	return f
}

// batch is how many packets a system call sends.
const batch = 32

// mmsghdr is struct mmsghdr.
type mmsghdr struct {
	header unix.Msghdr
	_      uint32
	_      uint32
}

// Run attacks at so many packets a second until ctx ends.
func (a *Attacker) Run(ctx context.Context, rate float64) error {
	var vectors [batch]unix.Iovec
	var messages [batch]mmsghdr
	begin := time.Now()
	for sent := 0; ctx.Err() == nil; {
		due := int(time.Since(begin).Seconds() * rate)
		if due-sent < batch {
			time.Sleep(time.Duration(batch / rate * float64(time.Second)))
			continue
		}
		if due-sent > 64*batch { // it was held up: what is late isn't sent
			sent = due - batch
		}
		for i := range messages {
			f := a.frames[(sent+i)%len(a.frames)]
			binary.BigEndian.PutUint16(f[etherUDP:], uint16(1024+a.random.IntN(60000)))
			vectors[i].Base = &f[0]
			vectors[i].SetLen(len(f))
			messages[i].header.Iov = &vectors[i]
			messages[i].header.SetIovlen(1)
		}
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(a.fd), uintptr(unsafe.Pointer(&messages[0])), batch,
			0, 0, 0)
		if errno != 0 && errno != unix.ENOBUFS && errno != unix.EINTR && errno != unix.EAGAIN {
			return fmt.Errorf("attack: %w", errno)
		}
		if errno == 0 {
			a.Sent.Add(uint64(n))
		}
		sent += batch
	}
	return nil
}

// Rates are packets a second, by attack.
type Rates map[Attack]float64

// Attack runs attacks at the same time until stop is called, which returns the number of packets that were sent.
func (l *Lab) Attack(rates Rates) (stop func() (uint64, error), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	var all []*Attacker
	errs := make([]error, 0, len(rates))
	var mu sync.Mutex
	for kind, rate := range rates {
		a, err := l.NewAttacker(kind)
		if err != nil {
			cancel()
			wait.Wait()
			return nil, err
		}
		all = append(all, a)
		wait.Go(func() {
			err := a.Run(ctx, rate)
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
		})
	}
	return func() (sent uint64, err error) {
		cancel()
		wait.Wait()
		for _, a := range all {
			sent += a.Sent.Load()
			errs = append(errs, a.Close())
		}
		return sent, errors.Join(slices.Clone(errs)...)
	}, nil
}
