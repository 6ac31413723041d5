package cli

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime"
)

const (
	// A line is written at most so long after its record came, together with all that came since.
	writeAfter = 20 * time.Millisecond
	// How long records that are still in the ring are waited for when the relay is about to be closed.
	drainFor = time.Second
)

// eventPrinter prints the events of a relay as they come, one a line.
type eventPrinter struct {
	relay   *runtime.Relay
	names   map[*runtime.AnyReceiver]string
	machine bool // JSON
	failed  func(error)

	stop context.CancelFunc
	done chan struct{}

	mu    sync.Mutex
	out   *bufio.Writer
	armed bool // a write is due
}

// printEvents begins to print. If writing fails, it calls failed and stops.
func (a *app) printEvents(relay *runtime.Relay, receivers []*receiver, failed func(error)) *eventPrinter {
	ctx, stop := context.WithCancel(context.Background())
	p := &eventPrinter{
		relay: relay, names: map[*runtime.AnyReceiver]string{}, machine: a.machine, failed: failed,
		stop: stop, done: make(chan struct{}), out: bufio.NewWriter(a.out),
	}
	for _, v := range receivers {
		p.names[v.handle] = v.name
	}
	go func() {
		defer close(p.done)
		for e, err := range relay.Events(ctx) {
			if err != nil {
				if ctx.Err() == nil {
					failed(err)
				}
				return
			}
			p.line(p.text(e))
		}
	}()
	return p
}

// close prints what programs that are detached have left in the ring, and ends.
func (p *eventPrinter) close() {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(drainFor); time.Now().Before(deadline); <-tick.C {
		if waiting, _ := p.relay.EventsWaiting(); waiting == 0 {
			break
		}
	}
	p.stop()
	<-p.done
	p.write()
}

func (p *eventPrinter) line(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.out.WriteString(text) // a failure comes back from Flush
	if !p.armed {
		p.armed = true
		time.AfterFunc(writeAfter, p.write)
	}
}

func (p *eventPrinter) write() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = false
	if err := p.out.Flush(); err != nil {
		p.failed(err)
		p.out.Reset(io.Discard)
	}
}

// text is a record as a line: "14:05:07.123456 sent to subscribers 1: original=17 sequence=4", or the same in JSON.
func (p *eventPrinter) text(e *runtime.Event) string {
	name, known := p.names[e.Receiver]
	if p.machine {
		fields := map[string]any{}
		for i, v := range e.Values() {
			fields[e.Desc().Fields[i].Name] = plain(v)
		}
		// Names, numbers and booleans always are JSON.
		text, _ := json.Marshal(struct {
			Event    string         `json:"event"`
			Time     time.Time      `json:"time"`
			Receiver string         `json:"receiver,omitempty"`
			Fields   map[string]any `json:"fields"`
		}{e.Desc().Name, e.Time, name, fields})
		return string(text) + "\n"
	}
	var b strings.Builder
	b.WriteString(e.Time.Format("15:04:05.000000 ") + e.Desc().Name)
	if known {
		b.WriteString(" to " + name)
	}
	b.WriteByte(':')
	for i, v := range e.Values() {
		fmt.Fprintf(&b, " %s=%v", e.Desc().Fields[i].Name, plain(v))
	}
	return b.String() + "\n"
}

// plain makes a value what JSON and people take: numbers and booleans stay, bytes are hexadecimal, all else is text.
func plain(v any) any {
	switch v := v.(type) {
	case uint64, bool:
		return v
	case []byte:
		return hex.EncodeToString(v)
	}
	return fmt.Sprint(v)
}
