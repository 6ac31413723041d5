package live

import (
	"encoding/binary"
	"testing"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// Every variant relays every frame, and what arrives is what a relay has to send.
func TestFrames(t *testing.T) {
	needs.Root(t)
	l := start(t, 4, 4, 6)
	for _, family := range []int{4, 6} {
		for _, size := range []int{120, 1200} {
			for _, direction := range []string{toPeer, toClient} {
				frames, err := l.traffic(direction, family, size)
				check(t, err)
				if err := l.check(frames); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// More sessions than examples/turn has room for take turns; a run goes on where the last one ended.
func TestRoom(t *testing.T) {
	needs.Root(t)
	l := start(t, 2*roomBuilt, 4)
	for _, direction := range []string{toPeer, toClient} {
		frames, err := l.traffic(direction, 4, 120)
		check(t, err)
		check(t, l.check(frames))
		r, err := l.run(XDP, frames, 3*roomBuilt, 0)
		check(t, err)
		if r.first == 0 {
			t.Error("the run begins with the first frame again")
		}
		check(t, l.check(frames))
	}
}

// Equal work: what the generated program leaves to tc/ingress, those by hand leave, too, that check as much.
func TestLeft(t *testing.T) {
	needs.Root(t)
	l := start(t, 1, 4, 6)
	const ip, sum4 = 14, 14 + 10
	set := func(at int, bytes ...byte) func([]byte) { return func(f []byte) { copy(f[at:], bytes) } }
	// A new address, with the header's checksum brought up to date.
	addr4 := func(at int, a ...byte) func([]byte) {
		return func(f []byte) {
			copy(f[at:], a)
			clear(f[sum4 : sum4+2])
			binary.BigEndian.PutUint16(f[sum4:], ^folded(f[ip:ip+20]))
		}
	}
	group := []byte{0xff, 2, 15: 1}
	for _, c := range []struct {
		what   string
		family int
		change func([]byte)
		sent   bool
	}{
		{"as sent", 4, func([]byte) {}, true},
		{"as sent", 6, func([]byte) {}, true},
		{"a wrong checksum of IP", 4, set(sum4, 1, 2), false},
		{"another host's frame", 4, set(0, 2, 2, 2, 2, 2, 2), false},
		{"another host's frame", 6, set(0, 2, 2, 2, 2, 2, 2), false},
		{"from 127.0.0.1", 4, addr4(26, 127, 0, 0, 1), false},
		{"to 224.0.0.1", 4, addr4(30, 224, 0, 0, 1), false},
		{"to a group", 6, set(38, group...), false},
		{"to ::1", 6, set(38, []byte{15: 1}...), false},
		{"a fragment", 4, addr4(20, 0x20, 0), false},
		{"a length that is too large", 4, set(38, 7, 7), false},
		{"a length that is too large", 6, set(58, 7, 7), false},
		{"a partial checksum", 4, partial(4), false},
		{"a partial checksum", 6, partial(6), false},
		{"no checksum", 4, set(40, 0, 0), false}, // what it carries may be a tunnel with a partial one
		{"no checksum", 6, set(60, 0, 0), false},
		{"a stranger's", 4, set(34, 1, 1), false},
		{"a stranger's", 6, set(54, 1, 1), false},
	} {
		for _, direction := range []string{toPeer, toClient} {
			frames, err := l.traffic(direction, c.family, 120)
			check(t, err)
			c.change(frames.in[0])
			subjects, err := l.subjects(frames)
			check(t, err)
			for _, v := range []Variant{XDP, All, Checks} {
				var verdict uint32
				check(t, l.line.Relay.Do(func() (err error) {
					verdict, err = subjects[v].run(frames.in[0], make([]byte, largest))
					return err
				}))
				if want := map[bool]uint32{true: xdpRedirect, false: xdpPass}[c.sent]; verdict != want {
					t.Errorf("%s, %s, %s: verdict %d, want %d", v, frames, c.what, verdict, want)
				}
			}
			subjects[nothingTC].program.Close()
			subjects[nothingXDP].program.Close()
		}
	}
}

// partial leaves the rest of a checksum to a device: the field has the sum of the pseudo-header.
func partial(family int) func([]byte) {
	return func(f []byte) {
		addrs, udp := f[26:34], f[34:]
		if family == 6 {
			addrs, udp = f[22:54], f[54:]
		}
		pseudo := append(append([]byte{0, 17}, addrs...), udp[4:6]...)
		binary.BigEndian.PutUint16(udp[6:], folded(pseudo))
	}
}

// folded is the sum of 16-bit words in one's complement.
func folded(b []byte) uint16 {
	sum := uint32(0)
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

func start(t *testing.T, sessions int, families ...int) *lab {
	t.Helper()
	l, err := newLab("../..", sessions, families...)
	check(t, err)
	t.Cleanup(l.close)
	return l
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Tests that can't be set up fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
