//go:build linux

package bpf_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

var isolationPackets = flag.Int("isolation-packets", 3_000_000,
	"packets that TestIsolation looks at, over all kinds of rows")

// Each row holds its owner's number wherever it can, and packets carry all of it away: one that has two
// numbers was made of two rows.
const isolation = `
name: "isolation"
headers: tag: fields: [
	{name: "owner", bits: 64},
	{name: "a", bits: 64}, {name: "b", bits: 64}, {name: "c", bits: 64}, {name: "d", bits: 64},
]
sessions: pair: {
	fields: {owner: "u64", a: "u64", b: "u64", from: "endpoint", to: "endpoint", c: "u64", d: "u64"}
	rows: by_owner: {key: ["owner"], value: ["a", "b", "from", "to", "c", "d"]}
	size: 4
}
tables: {
	plain: {key: owner: "u64", value: {a: "u64", b: "u64", c: "u64", d: "u64"}, size: 4}
	numbered: {kind: "array", key: n: "u32", value: {a: "u64", b: "u64", c: "u64", d: "u64"}, size: 1}
	learned: {key: owner: "u64", value: {a: "u64", b: "u64", c: "u64", d: "u64"}, size: 4}
}
programs: {
	session: {
		hook: "tc/ingress"
		stack: ["eth", "ipv4", "udp", "tag"]
		lookup: r: by_owner: ["tag.owner"]
		do: [
			{set: {"tag.a": "r.a", "tag.b": "r.b", "tag.c": "r.c", "tag.d": "r.d"}},
			{send: {from: "r.from", to: "r.to"}},
		]
	}
	table: {
		hook: "tc/ingress"
		stack: ["eth", "ipv4", "udp", "tag"]
		lookup: r: plain: ["tag.owner"]
		do: [{set: {"tag.a": "r.a", "tag.b": "r.b", "tag.c": "r.c", "tag.d": "r.d"}}, "pass"]
	}
	array: {
		hook: "tc/ingress"
		stack: ["eth", "ipv4", "udp", "tag"]
		lookup: r: numbered: ["0"]
		do: [{set: {"tag.owner": "r.a", "tag.a": "r.a", "tag.b": "r.b", "tag.c": "r.c", "tag.d": "r.d"}}, "pass"]
	}
	taught: {
		hook: "tc/ingress"
		stack: ["eth", "ipv4", "udp", "tag"]
		lookup: r: learned: ["tag.owner"]
		do: [{set: {"tag.a": "r.a", "tag.b": "r.b", "tag.c": "r.c", "tag.d": "r.d"}}, "pass"]
	}
	teach: {
		hook: "tc/ingress"
		stack: ["eth", "ipv4", "udp", "tag"]
		do: [
			{learn: learned: {key: ["tag.owner"], value: ["tag.owner", "tag.owner", "tag.owner", "tag.owner"]}},
			"pass",
		]
	}
}
`

// owner is one of two who own a row in turn.
type owner uint64

const owners = 2

// addr is where packets are sent to for the owner: its own address, or one that it has in common with others.
func (o owner) addr(hosts int) netip.Addr { return host(1 + (int(o)-1)%hosts).addr() }

// host is a neighbour that packets are sent to, by a device of its own. Its addresses end with its number, and so does
// the link-layer address of the device.
type host byte

func (h host) addr() netip.Addr { return netip.AddrFrom4([4]byte{203, 0, 113, byte(h)}) }

func (h host) mac(version byte) net.HardwareAddr {
	return net.HardwareAddr{2, 0, 0, 0, version, byte(h)}
}

func (h host) connect(net *testnet.Net, near, far *testnet.Host) (*testnet.Dev, error) {
	dev, _, err := net.Join(near, fmt.Sprint("out", h), far, fmt.Sprint("in", h))
	if err != nil {
		return nil, err
	}
	return dev, errors.Join(near.Run("ip", "link", "set", dev.Name, "address", h.mac(0).String()),
		near.Run("ip", "route", "add", h.addr().String(), "dev", dev.Name), h.move(dev, 0))
}

// move gives the host another link-layer address.
func (h host) move(dev *testnet.Dev, version byte) error {
	return dev.AddNeighbour(h.addr(), h.mac(version))
}

// value is a row's value.
func (o owner) value() []any { return []any{uint64(o), uint64(o), uint64(o), uint64(o)} }

// frame is a packet for the owner's row.
func (o owner) frame() []byte {
	b := append(make([]byte, 12), 8, 0)
	b = append(b, 0x45, 0, 0, 68, 0, 0, 0, 0, 64, 17, 0, 0, 198, 51, 100, 7, 192, 0, 2, 1)
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	binary.BigEndian.PutUint16(b[24:], ^uint16(sum+sum>>16))
	b = append(b, 0x9c, 0x40, 0, 7, 0, 48, 0, 0)
	b = binary.BigEndian.AppendUint64(b, uint64(o))
	return append(b, make([]byte, 32)...)
}

const tagAt = 42

// mixed reports whether what left holds another number than the owner's; hosts says how many it is sent to, 0: none.
func mixed(frame []byte, hosts int) bool {
	want := binary.BigEndian.Uint64(frame[tagAt:])
	for at := tagAt + 8; at < tagAt+40; at += 8 {
		if binary.BigEndian.Uint64(frame[at:]) != want {
			return true
		}
	}
	if hosts == 0 {
		return false
	}
	to := owner(want).addr(hosts).As4()[3]
	return frame[5] != to || frame[11] != to || frame[29] != to || frame[33] != to ||
		uint64(frame[35]) != want || uint64(frame[37]) != want
}

// disturbance is what goes on while packets are looked at.
type disturbance struct {
	name, program string
	hosts         int                        // that owners send to; 0: they don't
	turn          func(r relay, n int) error // once, the nth time
}

type relay struct {
	*runtime.Relay
	devs [owners]*testnet.Dev // to hosts
}

func disturbances() []disturbance {
	open := func(r relay, key uint64, o owner, hosts int) (*runtime.AnySession, error) {
		at := netip.AddrPortFrom(o.addr(hosts), uint16(o))
		return r.Open("pair", key, uint64(o), uint64(o), at, at, uint64(o), uint64(o))
	}
	var last *runtime.AnySession
	return []disturbance{
		{"sessions closed and opened", "session", owners, func(r relay, n int) (err error) {
			if n < owners { // so that next hops are known, and opening one takes no longer than it has to
				_, err := open(r, uint64(100+n), owner(1+n), owners)
				return err
			}
			if n > owners {
				if err := last.Close(); err != nil {
					return err
				}
			}
			o := owner(1 + n%owners)
			if last, err = open(r, uint64(o), o, owners); err != nil {
				return err
			}
			for range n % 8 { // it is open for a few system calls
				last.Counters()
			}
			return nil
		}},
		// One next hop, so that all rows are stored anew at once.
		{"routes that change", "session", 1, func(r relay, n int) error {
			if n < owners {
				o := owner(1 + n)
				_, err := open(r, uint64(o), o, 1)
				return err
			}
			if err := host(1).move(r.devs[0], byte(n)); err != nil {
				return err
			}
			return r.RefreshRoutes(context.Background())
		}},
		{"rows put and deleted", "table", 0, func(r relay, n int) error {
			if n > 0 {
				if err := r.Table("plain").Delete(uint64(1 + (n-1)%owners)); err != nil {
					return err
				}
			}
			o := owner(1 + n%owners)
			return r.Table("plain").Put([]any{uint64(o)}, o.value())
		}},
		{"rows replaced", "table", 0, func(r relay, n int) error {
			o := owner(1 + n%owners)
			return r.Table("plain").Put([]any{uint64(o)}, o.value())
		}},
		{"entries of an array stored", "array", 0, func(r relay, n int) error {
			return r.Table("numbered").Put([]any{uint64(0)}, owner(1+n%owners).value())
		}},
		{"rows learned", "taught", 0, func(r relay, n int) error {
			_, err := r.Program("teach").Kernel().Run(&ebpf.RunOptions{Data: owner(1 + n%owners).frame()})
			return err
		}},
	}
}

// isolated loads the relay, with delays where it reads rows, and lets packets through while rows change hands. It
// returns how many packets were looked at, of how many rows were found, and how many were mixed: it ends at the
// first one if stop says so.
func isolated(t *testing.T, d disturbance, packets int, stop bool, plant func(*bpf.Source)) (looked, found,
	mixtures int) {
	t.Helper()
	u := compileText(t, "isolation.cue", []byte(isolation), func(s *bpf.Source) {
		const none = "#define FR_INJECT_DELAY()\n"
		if !strings.Contains(s.Header, none) {
			t.Fatal("fastrelay.h has no place for a delay")
		}
		s.Header = strings.Replace(s.Header, none,
			"#define FR_INJECT_DELAY() do { int d; for (d = 0; d < 200; d++) asm volatile(\"\" ::: \"memory\"); } "+
				"while (0)\n", 1)
		if plant != nil {
			plant(s)
		}
	})
	net := testnet.Start(t)
	near, err := net.Host("relay")
	must(t, err)
	far, err := net.Host("far")
	must(t, err)
	var r relay
	for i := range r.devs {
		r.devs[i], err = host(1+i).connect(net, near, far)
		must(t, err)
	}
	desc := glue.Desc(u.plan)
	must(t, near.Do(func() (err error) {
		r.Relay, err = runtime.Load(&desc, u.object, runtime.Options{Lease: time.Minute})
		return err
	}))
	defer r.Close()

	var over atomic.Bool
	var wg sync.WaitGroup
	failed := make(chan error, 1)
	wg.Add(1)
	go func() {
		defer wg.Done()
		stay(goruntime.NumCPU() - 1)
		for n := 0; !over.Load(); n++ {
			if err := d.turn(r, n); err != nil {
				failed <- err
				return
			}
		}
	}()
	defer func() {
		over.Store(true)
		wg.Wait()
		select {
		case err := <-failed:
			t.Fatal(err)
		default:
		}
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		stay(0)
		prog := r.Program(d.program).Kernel()
		frames := [owners][]byte{owner(1).frame(), owner(2).frame()}
		out := make([]byte, 256)
		for ; looked < packets && !(stop && mixtures > 0) && len(failed) == 0; looked++ {
			in := frames[looked%owners]
			opts := ebpf.RunOptions{Data: in, DataOut: out}
			if _, err := prog.Run(&opts); err != nil {
				failed <- err
				return
			}
			if slices.Equal(opts.DataOut, in) {
				continue // there was no row
			}
			found++
			if mixed(opts.DataOut, d.hosts) {
				mixtures++
				if mixtures == 1 {
					t.Logf("packet %d: %x", looked, opts.DataOut)
				}
			}
		}
	}()
	<-done
	return looked, found, mixtures
}

// stay keeps the calling goroutine on one processor until it ends.
func stay(cpu int) {
	goruntime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	_ = unix.SchedSetaffinity(0, &set) // elsewhere it finds less
}

// No packet is ever made of two rows, nor of a row that isn't its own, however fast rows change hands.
func TestIsolation(t *testing.T) {
	needs.All(t)
	needs.Root(t)
	for _, d := range disturbances() {
		t.Run(strings.ReplaceAll(d.name, " ", "_"), func(t *testing.T) {
			share := *isolationPackets / len(disturbances())
			looked, found, mixtures := isolated(t, d, share, false, nil)
			t.Logf("%d packets, %d of them found a row", looked, found)
			if mixtures > 0 {
				t.Errorf("%d of %d packets were made of two rows", mixtures, found)
			}
			if found < looked/100 {
				t.Errorf("only %d of %d packets found a row: nothing was seen", found, looked)
			}
		})
	}
}

// What TestIsolation looks at finds a mixture if a program doesn't look whether rows have changed.
func TestIsolationFinds(t *testing.T) {
	needs.All(t)
	needs.Root(t)
	const check = "if (likely(before == after) && !(word == FR_STORING && before & 1))"
	for _, d := range disturbances() {
		t.Run(strings.ReplaceAll(d.name, " ", "_"), func(t *testing.T) {
			began := time.Now()
			looked, found, mixtures := isolated(t, d, *isolationPackets, true, func(s *bpf.Source) {
				if !strings.Contains(s.Header, check) {
					t.Fatal("fastrelay.h has no check to leave out")
				}
				s.Header = strings.Replace(s.Header, check, "if (likely(before != after + 1))", 1)
			})
			if mixtures == 0 {
				t.Errorf("no mixture in %d packets, of which %d found a row", looked, found)
			}
			t.Logf("found after %s, %d packets", fmt.Sprint(time.Since(began).Round(time.Millisecond)), looked)
		})
	}
}
