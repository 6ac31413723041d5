package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

const (
	// A line is written at most so long after its record came, together with all that came since.
	writeAfter = 20 * time.Millisecond
	// How long records that are still in the ring are waited for when the relay is about to be closed.
	drainFor = time.Second
)

// eventPrinter prints the events of a relay as they come, one a line. It is no client of the control socket, whose
// stream is of copies, of which some are missed if they aren't taken in time: `run` is the relay's server, and reads
// the ring itself.
type eventPrinter struct {
	*relayRun
	failed func(error)

	stop context.CancelFunc
	done chan struct{}

	mu    sync.Mutex
	lines *bufio.Writer
	armed bool // a write is due
}

// printEvents begins to print. If writing fails, it calls failed and stops.
func (r *relayRun) printEvents(failed func(error)) *eventPrinter {
	ctx, stop := context.WithCancel(context.Background())
	p := &eventPrinter{
		relayRun: r, failed: failed, stop: stop, done: make(chan struct{}), lines: bufio.NewWriter(r.out),
	}
	names := map[api.EventReceiver]string{}
	for _, g := range r.all("group") {
		for i, id := range g.group.Added {
			names[api.EventReceiver{Group: g.Name, Key: g.group.ID, ID: id}] = g.names[i]
		}
	}
	go func() {
		defer close(p.done)
		for e, err := range r.relay.Events(ctx) {
			if err != nil {
				if ctx.Err() == nil {
					failed(err)
				}
				return
			}
			view := control.Event(e)
			p.line(p.text(&view, func(v api.EventReceiver) string { return names[v] }))
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
	_, _ = p.lines.WriteString(text) // a failure comes back from Flush
	if !p.armed {
		p.armed = true
		time.AfterFunc(writeAfter, p.write)
	}
}

func (p *eventPrinter) write() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = false
	if err := p.lines.Flush(); err != nil {
		p.failed(err)
		p.lines.Reset(io.Discard)
	}
}

// text is a record as a line, or the same in JSON.
func (p *eventPrinter) text(e *api.Event, name func(api.EventReceiver) string) string {
	if !p.machine {
		return eventLine(e, name)
	}
	to := func(v *api.EventReceiver) string {
		if v == nil {
			return ""
		}
		return name(*v)
	}
	type copied struct {
		Receiver string     `json:"receiver,omitempty"`
		Values   api.Object `json:"values"`
	}
	line := struct {
		Event    string     `json:"event"`
		Time     time.Time  `json:"time"`
		Receiver string     `json:"receiver,omitempty"`
		Fields   api.Object `json:"fields"`
		Copies   []copied   `json:"copies,omitempty"`
	}{Event: e.Event, Time: e.Time, Receiver: to(e.Receiver), Fields: e.Fields}
	for _, c := range e.Copies {
		line.Copies = append(line.Copies, copied{to(c.Receiver), c.Values})
	}
	text, _ := json.Marshal(line) // names, numbers and booleans always are JSON
	return string(text) + "\n"
}
