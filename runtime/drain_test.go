package runtime

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A relay that is drained takes no session, and the drain ends with the last one.
func TestDrain(t *testing.T) {
	r := load(t, Options{})
	s, err := r.Open("flow", flow(1)...)
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Drain(over); !errors.Is(err, context.Canceled) || !r.Draining() {
		t.Errorf("with a session open: %v", err)
	}
	if _, err := r.Open("flow", flow(2)...); !errors.Is(err, ErrDraining) {
		t.Errorf("a session while it is drained: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Drain(t.Context()) }()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := r.Drain(over); err != nil {
		t.Errorf("with nothing open: %v", err)
	}
	r.EndDrain()
	if _, err := r.Open("flow", flow(2)...); err != nil {
		t.Error(err)
	}
}

// Who waits for a drain goes on waiting for it when it has ended and another one has begun.
func TestDrainAgain(t *testing.T) {
	r := load(t, Options{})
	s := open(t, r, 1)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Drain(over); !errors.Is(err, context.Canceled) {
		t.Errorf("with a session open: %v", err)
	}
	waits := r.draining.done // for what a goroutine in Drain waits
	r.EndDrain()
	if err := r.Drain(over); !errors.Is(err, context.Canceled) {
		t.Errorf("with a session open: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-waits:
	default:
		t.Error("the first one waits for ever")
	}
	r.EndDrain()
	open(t, r, 1)
	if err := r.Drain(over); !errors.Is(err, context.Canceled) {
		t.Errorf("a drain after one that was done: %v", err)
	}
}

// Receivers are waited for as well; so is a relay that is closed.
func TestDrainGroups(t *testing.T) {
	r := loadGroups(t, Options{})
	g := openGroup(t, r, 7)
	v := add(t, g, 1, 1)
	done := make(chan error, 1)
	go func() { done <- r.Drain(t.Context()) }()
	until(t, 5*time.Second, "the relay is being drained", r.Draining)
	if err := g.Change(t.Context(), func(c *AnyChange) error {
		_, err := c.Add(v.Values()...)
		return err
	}); !errors.Is(err, ErrDraining) {
		t.Errorf("a receiver while it is drained: %v", err)
	}
	if _, err := g.Kind().Open(t.Context(), g.Key()...); !errors.Is(err, ErrDraining) && !errors.Is(err, ErrExists) {
		t.Errorf("a group while it is drained: %v", err)
	}
	if err := v.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	r.EndDrain()
	add(t, g, 2, 2)
	go func() { done <- r.Drain(t.Context()) }()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Errorf("a relay that is closed: %v", err)
	}
}
