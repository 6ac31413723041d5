package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

const (
	// How many events wait for a client that doesn't read. What comes after them it misses, and is told how many.
	waitingEvents = 4096
	// How often a client without events gets a sign that the relay is there.
	heartbeat = 15 * time.Second
)

// events sends events as they come, as server-sent events.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	var names []string
	for _, e := range s.relay.Desc().Events {
		names = append(names, e.Name)
	}
	only := r.URL.Query()["event"]
	for _, name := range only {
		if !slices.Contains(names, name) {
			p := notFound("event", name, names)
			p.Field = "event"
			answer(w, nil, p)
			return
		}
	}
	if len(names) == 0 {
		answer(w, nil, &api.Problem{Status: http.StatusNotFound, Code: api.CodeNotFound,
			Detail: "this relay has no events", Fix: "declare some in its spec"})
		return
	}
	copies, err := s.relay.CopyEvents(waitingEvents)
	if err != nil {
		answer(w, nil, err)
		return
	}
	defer copies.Close()
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Time{}) // a unix socket has deadlines
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(text []byte) error {
		_ = c.SetWriteDeadline(time.Now().Add(s.Patience))
		if _, err := w.Write(text); err != nil {
			return err
		}
		return c.Flush()
	}
	for err := send([]byte(": " + s.relay.Desc().Name + "\n\n")); err == nil; {
		ctx, cancel := context.WithTimeout(r.Context(), heartbeat)
		events, missed, next := copies.Next(ctx)
		cancel()
		switch {
		case r.Context().Err() != nil:
			return
		case errors.Is(next, context.DeadlineExceeded):
			err = send([]byte(": still here\n\n"))
			continue
		case next != nil:
			return
		}
		err = send(eventText(events, missed, only))
	}
}

func eventText(events []runtime.Event, missed uint64, only []string) []byte {
	var b bytes.Buffer
	for i := range events {
		e := &events[i]
		if name := e.Desc().Name; len(only) == 0 || slices.Contains(only, name) {
			writeEvent(&b, name, Event(e))
		}
	}
	if missed > 0 {
		writeEvent(&b, "missed", api.Missed{Missed: missed})
	}
	return b.Bytes()
}

func writeEvent(b *bytes.Buffer, name string, data any) {
	text, err := json.Marshal(data)
	if err != nil { // values are numbers and texts
		return
	}
	fmt.Fprintf(b, "event: %s\ndata: %s\n\n", name, text)
}

// Event returns an event as the stream of the control socket has it.
func Event(e *runtime.Event) api.Event {
	out := api.Event{Event: e.Desc().Name, Time: e.Time, Fields: object(e.Desc().Fields, e.Values())}
	out.Receiver = eventReceiver(e)
	for _, c := range e.Copies() {
		out.Copies = append(out.Copies, api.EventCopy{
			Receiver: eventReceiver(c), Values: object(e.Desc().Copies.Values, c.Values()),
		})
	}
	return out
}

func eventReceiver(e *runtime.Event) *api.EventReceiver {
	v := e.Receiver
	if v == nil {
		return nil
	}
	return &api.EventReceiver{Group: v.Group().Kind().Desc().Name, Key: groupID(v.Group()), ID: v.ID()}
}
