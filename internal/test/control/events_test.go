package control_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// emit has the program calls process packets, each of which emits a record.
func (l *lab) emit(n int) {
	l.Helper()
	frame := make([]byte, 14, 64)
	frame[12] = 8
	frame = append(frame, 0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 198, 51, 100, 7, 192, 0, 2, 1)
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(frame[i])<<8 | uint32(frame[i+1])
	}
	sum = ^(sum + sum>>16)
	frame[24], frame[25] = byte(sum>>8), byte(sum)
	frame = append(frame, 0x9c, 0x41, 0x1b, 0x58, 0, 10, 0, 0, 0, 7) // 40001 to 7000, number 7
	frame = append(frame, make([]byte, 16)...)
	for range n {
		if _, err := bpftest.Run(l.relay.Program("calls").Kernel(), ebpf.RunOptions{Data: frame}); err != nil {
			l.Fatal(err)
		}
	}
}

// until waits for a condition.
func (l *lab) until(what string, holds func() bool) {
	l.Helper()
	if err := testnet.Until(10*time.Second, what, holds); err != nil {
		l.Fatal(err)
	}
}

// stream reads events of the control socket.
func (l *lab) stream(ctx context.Context, names ...string) (<-chan api.Event, <-chan error) {
	events, end := make(chan api.Event, 10000), make(chan error, 1)
	go func() {
		end <- l.Events(ctx, names, func(name string, data json.RawMessage) error {
			var e api.Event
			if err := json.Unmarshal(data, &e); err != nil || e.Event != name {
				l.Errorf("event %s: %s: %v", name, data, err)
			}
			events <- e
			return nil
		})
	}()
	return events, end
}

// A client gets events while the server reads them as well, and none is taken from the server.
func TestEventsTwice(t *testing.T) {
	l := start(t)
	do[api.Session](l, "POST", "/v1/sessions/call", call(7))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	l.emit(3) // the server hasn't begun to read, and nobody looks on
	events, end := l.stream(ctx)
	first := func() api.Event {
		t.Helper()
		select {
		case e := <-events:
			return e
		case err := <-end:
			t.Fatal(err)
		case <-time.After(10 * time.Second):
			t.Fatal("no event")
		}
		return api.Event{}
	}
	// Until it is there, the client has no part in them.
	l.until("the client gets events", func() bool { l.emit(1); return len(events) > 0 })
	if e := first(); e.Event != "seen" || words(e.Fields.Get("number"), e.Fields.Get("who")) != "7 198.51.100.7" {
		t.Errorf("the event is %+v", e)
	}
	waiting, _ := l.relay.EventsWaiting()
	if waiting == 0 {
		t.Error("the client took the events out of the ring")
	}
	read := 0
	for _, err := range l.relay.Pending(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		read++
	}
	if read < 4 {
		t.Errorf("the server reads %d events", read)
	}
	// Now the server reads them as they come.
	for len(events) > 0 {
		<-events
	}
	got := make(chan int, 1)
	go func() {
		n := 0
		for _, err := range l.relay.Events(ctx) {
			if err != nil {
				break
			}
			if n++; n == 100 {
				break
			}
		}
		got <- n
	}()
	l.emit(100)
	if n := <-got; n != 100 {
		t.Errorf("the server has read %d events", n)
	}
	for range 100 {
		first()
	}
	stop()
	if err := <-end; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Only some events, and an event that isn't there.
func TestEventNames(t *testing.T) {
	l := start(t)
	err := l.Events(t.Context(), []string{"sene"}, nil)
	var p *api.Problem
	if !errors.As(err, &p) || p.Code != api.CodeNotFound || p.Field != "event" {
		t.Errorf("an unknown event: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	do[api.Session](l, "POST", "/v1/sessions/call", call(7))
	copied, _ := l.stream(ctx, "copied")
	seen, _ := l.stream(ctx, "seen")
	l.until("events come", func() bool { l.emit(1); return len(seen) > 3 })
	if len(copied) != 0 {
		t.Error("an event that wasn't asked for")
	}
}

// If the server never reads, a client sees more events than the ring holds.
func TestUnreadRing(t *testing.T) {
	l := start(t)
	do[api.Session](l, "POST", "/v1/sessions/call", call(7))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	events, _ := l.stream(ctx)
	l.until("the client gets events", func() bool { l.emit(1); return len(events) > 0 })
	_, size := l.relay.EventsWaiting()
	for sent := uint64(0); sent < 2*size; sent += 1000 * 40 {
		for len(events) > 0 {
			<-events
		}
		l.emit(1000)
		l.until("the client gets what came", func() bool { return len(events) >= 1000 })
	}
	if lost := l.relay.Lost(1); lost != 0 {
		t.Errorf("%d records were lost", lost)
	}
	if waiting, _ := l.relay.EventsWaiting(); waiting < size/4 {
		t.Errorf("only %d of %d bytes are left for the server", waiting, size)
	}
}

// A client that takes nothing is left after a while: its connection ends, and nothing is copied for it any more.
func TestStuckClient(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lab.sock")
	server := control.Socket(path)
	server.Patience = 300 * time.Millisecond
	relay, err := load(t, server, runtime.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	l := &lab{TB: t, relay: relay, server: server, path: path}
	for i := range 1000 {
		l.open(i)
	}
	for _, request := range []string{"/v1/events", "/v1/sessions/call?limit=1000"} {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("GET " + request + " HTTP/1.1\r\nHost: relay\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		l.until("a client that doesn't read "+request+" is left", func() bool {
			if request == "/v1/events" {
				l.emit(1000) // what its socket holds is full some time
			}
			_, err := c.Write([]byte("\r\n")) // fails once the other end is closed
			return errors.Is(err, unix.EPIPE)
		})
	}
}

// A client that doesn't read delays nobody, and is told how many events it missed.
func TestSlowClient(t *testing.T) {
	l := start(t)
	do[api.Session](l, "POST", "/v1/sessions/call", call(7))
	c, err := net.Dial("unix", l.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("GET /v1/events HTTP/1.1\r\nHost: relay\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(c)
	for lines.Scan() && lines.Text() != ": lab" { // it is there, and reads no more
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	events, _ := l.stream(ctx)
	l.until("the other client gets events", func() bool { l.emit(1); return len(events) > 0 })
	for range 20 {
		for len(events) > 0 {
			<-events
		}
		l.emit(1000)
		l.until("the other client gets what came", func() bool { return len(events) >= 1000 })
		get[api.Relay](l, "/v1")
	}
	if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for missed := ""; missed == ""; {
		if !lines.Scan() {
			t.Fatalf("the slow client was left before it was told what it missed: %v", lines.Err())
		}
		if lines.Text() == "event: missed" && lines.Scan() {
			missed = lines.Text()
			t.Log(missed)
		}
	}
}
