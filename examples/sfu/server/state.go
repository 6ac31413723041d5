package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime"
)

// With a file for its state, a server that ends is followed by one that goes on: with the same names, ports and SSRCs,
// and with the groups and receivers that are still in the kernel, which forwards meanwhile.

// state is what a server's successor has to know beyond what the kernel keeps.
type state struct {
	Publishers  []publisherState  `json:"publishers"`
	Subscribers []subscriberState `json:"subscribers"`
}

type publisherState struct {
	Name   string         `json:"name"`
	Server netip.AddrPort `json:"server"`
	Remote netip.AddrPort `json:"remote,omitzero"`
	SSRC   uint32         `json:"ssrc"`
	Live   bool           `json:"live"`
	Clock  uint32         `json:"clock"`
}

type subscriberState struct {
	Name        string         `json:"name"`
	Server      netip.AddrPort `json:"server"`
	Remote      netip.AddrPort `json:"remote"`
	SSRC        uint32         `json:"ssrc"`
	PayloadType uint8          `json:"payload_type"`
	Publisher   string         `json:"publisher"`
	Layer       uint8          `json:"layer"`
	Bandwidth   int            `json:"bandwidth"`
	Next        uint16         `json:"next"` // if user space sends: the kernel knows its own
	Timestamp   uint32         `json:"timestamp"`
	At          time.Time      `json:"at,omitzero"`
}

// save writes the state if it has changed. The lock for changes is held.
func (s *Server) save() error {
	if s.config.State == "" {
		return nil
	}
	var st state
	for _, p := range s.Publishers() {
		p.mu.Lock()
		st.Publishers = append(st.Publishers, publisherState{p.name, p.local, p.remote, p.ssrc, p.live, p.clock})
		p.mu.Unlock()
	}
	for _, u := range s.Subscribers() {
		next, c := u.next, u.clock
		if f := u.feed; f != nil && (f.kernel == nil || s.closing.Load()) {
			f.pub.mu.Lock()
			next, c = f.last()
			f.pub.mu.Unlock()
		}
		st.Subscribers = append(st.Subscribers, subscriberState{
			u.name, u.local, u.remote, u.ssrc, u.payloadType, u.publisher, u.layer, u.bandwidth, next, c.timestamp,
			c.at.Round(0),
		})
	}
	data, err := json.MarshalIndent(st, "", "\t")
	if err != nil || bytes.Equal(data, s.saved) {
		return err
	}
	if err := replace(s.config.State, data); err != nil {
		return fmt.Errorf("saving the state: %w", err)
	}
	s.saved = data
	return nil
}

// replace writes a file such that it is never there in part.
func replace(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// restore goes on from the state of a predecessor, if there was one.
func (s *Server) restore() error {
	if s.config.State == "" {
		return nil
	}
	data, err := os.ReadFile(s.config.State)
	var st state
	switch {
	case errors.Is(err, os.ErrNotExist):
		err = nil
	case err == nil:
		err = json.Unmarshal(data, &st)
	}
	if err != nil {
		return fmt.Errorf("the state of the server before this one, %s: %w", s.config.State, err)
	}
	for _, v := range st.Publishers {
		p := newPublisher(s, v.Name, v.Clock)
		p.local, p.remote, p.ssrc, p.live = v.Server, v.Remote, v.SSRC, v.Live
		if p.conn, err = s.listen(v.Server); err != nil {
			return fmt.Errorf("going on where the server before this one ended: %w", err)
		}
		s.publishers[p.name], s.ports[p.local] = p, p
	}
	for _, v := range st.Subscribers {
		u := &Subscriber{
			name: v.Name, s: s, local: v.Server, remote: v.Remote, ssrc: v.SSRC, payloadType: v.PayloadType,
			publisher: v.Publisher, layer: v.Layer, bandwidth: v.Bandwidth, next: v.Next,
			clock: clock{v.Timestamp, v.At},
		}
		u.stats.Bandwidth = v.Bandwidth
		if u.conn, err = s.listen(v.Server); err != nil {
			return fmt.Errorf("going on where the server before this one ended: %w", err)
		}
		s.subscribers[u.name] = u
	}
	for _, p := range s.Publishers() {
		if p.live {
			s.resume(p)
		}
	}
	return s.offload.prune(s.Publishers())
}

// resume takes over a stream that was there when the server before this one ended.
func (s *Server) resume(p *Publisher) {
	key := stream{p.remote, p.local, p.ssrc}
	group, receivers, highest, err := s.offload.adopt(key)
	if err != nil {
		if !errors.Is(err, runtime.ErrNotFound) {
			s.log.Warn("a stream is not taken over", "publisher", p.name, "error", err)
		}
		p.live = false // it begins with its next packet
		return
	}
	p.group, p.begun, p.cache.numbers = group, true, unwrapper{highest: int64(highest) + 1<<16, begun: true}
	p.firstCycle = 1 << 16
	for _, u := range s.Subscribers() {
		k := receivers[u.ssrc]
		if k == nil || u.publisher != p.name {
			continue
		}
		delete(receivers, u.ssrc)
		k.sub = u
		f := &feed{
			pub: p, sub: u, begun: time.Now(), lost: s.offload.lost(), row: k.row(), kernel: k,
			events: k.sent().InKernel, resumed: true,
		}
		s.offload.tag(k.v, f)
		p.feeds = append(p.feeds, f)
		u.feed = f
	}
	for _, k := range receivers { // of unknown subscribers
		if err := k.remove(); err != nil {
			s.log.Warn("removing a receiver", "publisher", p.name, "error", err)
		}
	}
	s.attachAll(p)
}
