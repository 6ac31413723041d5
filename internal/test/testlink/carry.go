package testlink

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// lateness is from how long after its time on a frame counts as late.
const lateness = 500 * time.Microsecond

// frame is one frame on its way, with its struct virtio_net_hdr.
type frame struct {
	data       []byte
	due        time.Duration // when it leaves
	overtakers int           // how many packets leave before it, from now on
}

// carrier carries the frames of one direction. Everything leaves in the order of its due times, so a queue is enough:
// packets that are held back enter it later.
type carrier struct {
	in, out  *socket
	delay    time.Duration
	hold     time.Duration // how long what is held back waits for packets to overtake it
	now      func() time.Duration
	fates    *Fates
	queue    []*frame // ordered by due
	held     []*frame // ordered by arrival, which is the order in which they leave
	spare    []*frame
	counters Counters
}

// arrive takes n frames that were just read.
func (c *carrier) arrive(n int) error {
	read, clock := time.Now(), c.now()
	for i := range n {
		f := c.take()
		at, err := c.in.frame(i, f)
		if err != nil {
			return err
		}
		// The delay begins when the kernel had the frame; a clock that was set meanwhile does no harm.
		f.due = clock - min(max(read.Sub(at), 0), time.Second) + c.delay
		c.counters.Received++
		if f.data[1] != 0 {
			c.counters.GSO++
		}
		if !impaired(f.data[vnetSize:]) {
			c.counters.Other++
			c.push(f)
			continue
		}
		c.meet(f, c.fates.Next())
	}
	return nil
}

func (c *carrier) meet(f *frame, fate Fate) {
	due := f.due
	before := len(c.held)
	switch {
	case fate.InBurst:
		c.counters.LostInBursts++
		c.spare = append(c.spare, f)
	case fate.Lost:
		c.counters.Lost++
		c.spare = append(c.spare, f)
	default:
		if fate.Overtaken > 0 {
			c.counters.Reordered++
		}
		c.pass(f, fate.Overtaken)
		if fate.Twice {
			c.counters.Duplicated++
			again := c.take()
			again.data, again.due = append(again.data[:0], f.data...), due
			c.pass(again, fate.Overtaken)
		}
	}
	free := 0
	for i, h := range c.held[:before] {
		if h.overtakers--; h.overtakers == 0 {
			h.due = due
			c.push(h)
			free = i + 1
		}
	}
	c.held = append(c.held[:0], c.held[free:]...)
}

// pass has a frame leave once so many other packets have overtaken it.
func (c *carrier) pass(f *frame, overtakers int) {
	f.overtakers = overtakers
	if overtakers > 0 {
		c.held = append(c.held, f)
	} else {
		c.push(f)
	}
}

// push appends a frame to the queue. Time stamps of several processors may differ a little: none overtakes another.
func (c *carrier) push(f *frame) {
	if n := len(c.queue); n > 0 {
		f.due = max(f.due, c.queue[n-1].due)
	}
	c.queue = append(c.queue, f)
}

// release lets go of what was held back for too long. Whoever calls it has read all frames that came: they may be those
// that overtake.
func (c *carrier) release() {
	for len(c.held) > 0 && c.held[0].due+c.hold <= c.now() {
		c.counters.Alone++
		c.push(c.held[0])
		c.held = append(c.held[:0], c.held[1:]...)
	}
}

func (c *carrier) take() *frame {
	n := len(c.spare)
	if n == 0 {
		return &frame{data: make([]byte, 0, 2048)}
	}
	f := c.spare[n-1]
	c.spare = c.spare[:n-1]
	return f
}

// started is what frames' times count from. Unlike the kernel's time stamps, they don't change with the clock.
var started = time.Now()

func now() time.Duration { return time.Since(started) }

// leave sends the frames whose time has come, and returns when the next one's comes, or never.
func (c *carrier) leave() (next time.Duration) {
	done := 0
	for done < len(c.queue) {
		at, n := c.now(), done
		for ; n < len(c.queue) && n-done < batch && c.queue[n].due <= at; n++ {
			if at-c.queue[n].due > lateness {
				c.counters.Late++
			}
		}
		if n == done {
			break
		}
		refused := uint64(c.out.send(c.queue[done:n]))
		c.counters.Refused += refused
		c.counters.Sent += uint64(n-done) - refused
		done = n
	}
	c.spare = append(c.spare, c.queue[:done]...)
	c.queue = append(c.queue[:0], c.queue[done:]...)
	next = never
	if len(c.queue) > 0 {
		next = c.queue[0].due
	}
	if len(c.held) > 0 {
		next = min(next, c.held[0].due+c.hold)
	}
	return next
}

const never = time.Duration(math.MaxInt64)

// impaired reports whether a frame has a fate: unicast IP, and not ICMPv6 for neighbours and multicast listeners
// (types 130 to 137 and 143), which hosts send at moments of their own.
func impaired(data []byte) bool {
	const group = 1
	if data[0]&group != 0 {
		return false
	}
	protocol, rest := binary.BigEndian.Uint16(data[12:]), data[14:]
	for (protocol == unix.ETH_P_8021Q || protocol == unix.ETH_P_8021AD) && len(rest) >= 4 {
		protocol, rest = binary.BigEndian.Uint16(rest[2:]), rest[4:]
	}
	switch protocol {
	case unix.ETH_P_IP:
		return true
	case unix.ETH_P_IPV6:
		const header, next = 40, 6
		if len(rest) <= header || rest[next] != unix.IPPROTO_ICMPV6 {
			return true
		}
		kind := rest[header]
		return !(kind >= 130 && kind <= 137 || kind == 143)
	}
	return false
}

// role is the environment variable that makes a copy of the running program a link: it has the Config as JSON.
const role = "FASTRELAY_TESTLINK"

// Main lets the program that calls it first of all be started again as a link. In that case it doesn't return.
func Main() {
	config := os.Getenv(role)
	if config == "" {
		return
	}
	if err := carry(config); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// The link's process has its two sockets at these descriptors. It answers each byte on its input with its counters, and
// ends with its input.
const firstSocket = 3

func carry(config string) error {
	var c Config
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	if err := stay(); err != nil {
		return err
	}
	debug.SetGCPercent(-1) // frames are used again and again, so there is little garbage
	a, b := newSocket(firstSocket), newSocket(firstSocket+1)
	fromA, fromB := c.Fates()
	carriers := []*carrier{
		{in: a, out: b, delay: c.FromA.Delay, hold: c.FromA.Reordering.hold(), now: now, fates: fromA},
		{in: b, out: a, delay: c.FromB.Delay, hold: c.FromB.Reordering.hold(), now: now, fates: fromB},
	}
	out := bufio.NewWriter(os.Stdout)
	report := func() error {
		for _, d := range carriers {
			var err error
			if d.counters.Overrun, err = d.in.overruns(); err != nil {
				return err
			}
			d.counters.Waiting = uint64(len(d.queue) + len(d.held))
		}
		if err := json.NewEncoder(out).Encode(Stats{carriers[0].counters, carriers[1].counters}); err != nil {
			return err
		}
		return out.Flush()
	}
	files := []unix.PollFd{{Fd: firstSocket, Events: unix.POLLIN}, {Fd: firstSocket + 1, Events: unix.POLLIN},
		{Fd: 0, Events: unix.POLLIN}}
	var wait unix.Timespec
	for {
		timeout := &wait
		if next := min(carriers[0].leave(), carriers[1].leave()); next == never {
			timeout = nil
		} else {
			wait = unix.NsecToTimespec(int64(max(next-now(), 0)))
		}
		if _, err := unix.Ppoll(files, timeout, nil); err != nil && err != unix.EINTR {
			return fmt.Errorf("poll: %w", err)
		}
		for i, d := range carriers {
			if files[i].Revents == 0 {
				d.release()
				continue
			}
			n, err := d.in.read()
			if err != nil {
				return fmt.Errorf("read: %w", err)
			}
			if err := d.arrive(n); err != nil {
				return err
			}
		}
		if files[2].Revents != 0 {
			var request [1]byte
			n, _ := unix.Read(0, request[:])
			if err := report(); err != nil || n <= 0 {
				return err
			}
		}
	}
}

// stay gives this thread real-time priority and keeps it on one processor, other links' on others: each processor has a
// queue for what a veth receives, so frames that are sent from several may overtake each other.
func stay() error {
	runtime.LockOSThread()
	var allowed, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return err
	}
	for cpu, left := 0, os.Getpid()%allowed.Count(); ; cpu++ {
		if !allowed.IsSet(cpu) {
			continue
		}
		if left == 0 {
			one.Set(cpu)
			break
		}
		left--
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
		return fmt.Errorf("real-time priority: %w", err)
	}
	return nil
}
