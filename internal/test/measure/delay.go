package measure

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Delays are one-way delays, sorted.
type Delays []time.Duration

// Quantile returns the delay that the share q (0 to 1) of packets doesn't exceed.
func (d Delays) Quantile(q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	return d[min(int(q*float64(len(d))), len(d)-1)]
}

// warmUp is the share of datagrams in front that don't count: they find cold caches, and the kernel turns its time
// stamps on some time after it was asked to.
const warmUp = 0.1

// Delay sends stamped datagrams one by one at a steady rate and measures how long each takes: to the
// receiver's network device (toDevice), and until the receiving process has it (toProcess), which on a busy machine
// is much later, whatever was on the path. send sends one datagram with the payload; the receiver's socket must be
// blocking, and has the sender's time stamp at the offset stamp. Both ends run on the given processor.
func Delay(
	cpu, count int, rate float64, size int, send func(payload []byte) error, receiver, stamp int,
) (toDevice, toProcess Delays, err error) {
	limit := &unix.Timeval{Sec: 1}
	if err := unix.SetsockoptTimeval(receiver, unix.SOL_SOCKET, unix.SO_RCVTIMEO, limit); err != nil {
		return nil, nil, err
	}
	if err := unix.SetsockoptInt(receiver, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, unix.SetsockoptInt(receiver, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 0)) }()
	skip := int(warmUp * float64(count))
	received := make(chan error, 1)
	var allSent atomic.Bool
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its pinning
		err := pinThread(cpu)
		offset := clockOffset()
		for n := 0; n < skip+count && err == nil; {
			all := allSent.Load()
			var p datagram
			switch p, err = receive(receiver, stamp); {
			case errors.Is(err, unix.EAGAIN) && !all:
				err = nil // the sender is held up
			case err == nil:
				if n++; n > skip {
					toDevice = append(toDevice, p.arrived-p.sent-offset)
					toProcess = append(toProcess, p.read-p.sent)
				}
			}
		}
		if errors.Is(err, unix.EAGAIN) {
			err = nil // nothing more comes
		}
		received <- err
	}()
	sendErr := SendStamped(cpu, skip+count, rate, make([]byte, size), 0, send)
	allSent.Store(true)
	if err := errors.Join(sendErr, <-received); err != nil {
		return nil, nil, err
	}
	if len(toDevice) < count*9/10 {
		return nil, nil, fmt.Errorf("only %d of %d datagrams arrived", skip+len(toDevice), skip+count)
	}
	slices.Sort(toDevice)
	slices.Sort(toProcess)
	return toDevice, toProcess, nil
}

// datagram has the times of one datagram.
type datagram struct {
	sent    time.Duration // CLOCK_MONOTONIC, by the sender
	arrived time.Duration // CLOCK_REALTIME: when a device handed it to the receiver's host
	read    time.Duration // CLOCK_MONOTONIC
}

// receive reads one datagram with a sender's time stamp at an offset, and the kernel's (SO_TIMESTAMPNS) beside it.
func receive(fd, stamp int) (datagram, error) {
	buf, control := make([]byte, 2048), make([]byte, unix.CmsgSpace(int(unsafe.Sizeof(unix.Timespec{}))))
	for {
		n, oob, _, _, err := unix.Recvmsg(fd, buf, control, 0)
		read := time.Duration(now())
		if err == unix.EINTR || err == nil && n < stamp+8 {
			continue
		}
		if err != nil {
			return datagram{}, err
		}
		messages, err := unix.ParseSocketControlMessage(control[:oob])
		if err != nil {
			return datagram{}, err
		}
		for _, m := range messages {
			if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_TIMESTAMPNS {
				continue
			}
			at := (*unix.Timespec)(unsafe.Pointer(&m.Data[0]))
			return datagram{time.Duration(binary.LittleEndian.Uint64(buf[stamp:])), time.Duration(at.Nano()), read}, nil
		}
		return datagram{}, errors.New("a datagram has no time stamp of the kernel's")
	}
}

// clockOffset returns what CLOCK_REALTIME is ahead of CLOCK_MONOTONIC: of several readings, the one that was
// interrupted least.
func clockOffset() (offset time.Duration) {
	shortest := int64(math.MaxInt64)
	for range 100 {
		before := now()
		var real unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_REALTIME, &real) // can't fail for this clock
		after := now()
		if took := after - before; took < shortest {
			shortest, offset = took, time.Duration(real.Nano()-before-took/2)
		}
	}
	return offset
}

// SendStamped sends so many datagrams one by one at a steady rate from one processor, each with the time
// (CLOCK_MONOTONIC, nanoseconds, little endian) in 8 bytes of the payload from stamp on.
func SendStamped(cpu, count int, rate float64, payload []byte, stamp int, send func(payload []byte) error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its pinning
		err := pinThread(cpu)
		next := now()
		for i := 0; i < count && err == nil; i++ {
			next += int64(1e9 / rate)
			at := unix.NsecToTimespec(next)
			for unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &at, nil) == unix.EINTR {
			}
			binary.LittleEndian.PutUint64(payload[stamp:], uint64(now()))
			err = send(payload)
		}
		done <- err
	}()
	return <-done
}
