package wire

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Frames are relayed between two ports at both hooks, and come back as a relay has to send them.
func TestFrames(t *testing.T) {
	needs.Root(t)
	l, err := newLab(nil)
	check(t, err)
	defer l.close()
	for _, hook := range Hooks {
		for _, direction := range []string{toPeer, toClient} {
			for _, size := range []int{120, 1200} {
				frames, err := l.attach(direction, hook, size)
				if err != nil {
					t.Fatalf("%s, %s, %d bytes: %v", names[hook], direction, size, err)
				}
				o, _, err := frames.offer(2000, 20_000)
				check(t, err)
				if o.Made != 2000 || o.Arrived > o.Made || o.Arrived == 0 {
					t.Errorf("%s, %s, %d bytes: %d frames made, and %d came back", names[hook], direction, size,
						o.Made, o.Arrived)
				}
			}
		}
	}
}

// Ports that are given are taken from their host, and go back; one that is in use isn't taken.
func TestPorts(t *testing.T) {
	needs.Root(t)
	n := testnet.Start(t)
	machine, err := n.Host("machine")
	check(t, err)
	_, used, err := n.Join(machine, "portA", machine, "portB")
	check(t, err)
	check(t, machine.Do(func() error {
		l, err := newLab([]string{"portA", "portB"})
		check(t, err)
		_, err = l.attach(toPeer, Hooks[1], 120)
		check(t, err)
		l.close()
		for _, name := range []string{"portA", "portB"} {
			_, err := netlink.LinkByName(name)
			check(t, err)
		}
		return nil
	}))
	check(t, used.AddAddr("198.51.100.1/24"))
	check(t, machine.Do(func() error {
		if l, err := newLab([]string{"portA", "portB"}); err == nil {
			l.close()
			t.Error("a port with an address was taken")
		}
		_, err := netlink.LinkByName("portA")
		return err
	}))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Tests that can't be set up fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
