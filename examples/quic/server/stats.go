package server

import (
	"maps"
	"slices"
	"strings"
)

// SubscriberStats say what a subscriber was sent. Each byte of data is counted once: as sent by the kernel, as given to
// the library by user space, or as dropped.
type SubscriberStats struct {
	KernelPackets      uint64 // copies of packets with a STREAM frame
	KernelBytes        uint64
	UserBytes          uint64
	SealedPackets      uint64 // of user space's, those that the library didn't make
	DroppedBytes       uint64
	RetransmittedBytes uint64         // of copies that were lost
	DroppedStreams     [levels]uint64 // by level of priority
	DroppedBefore      uint64         // of these, while something less urgent waited
	EndedStreams       uint64         // those that their publisher has left or reset
	KernelDatagrams    uint64         // copies of packets with a DATAGRAM frame
	UserDatagrams      uint64         // those that user space has sent
	DroppedDatagrams   uint64
	ACKs               uint64 // that the kernel took
	Waiting            int    // bytes that wait for credit
	InKernel           bool   // the kernel sends to it
}

func (s *SubscriberStats) add(t *SubscriberStats) {
	s.KernelPackets += t.KernelPackets
	s.KernelBytes += t.KernelBytes
	s.UserBytes += t.UserBytes
	s.SealedPackets += t.SealedPackets
	s.DroppedBytes += t.DroppedBytes
	s.RetransmittedBytes += t.RetransmittedBytes
	for level := range s.DroppedStreams {
		s.DroppedStreams[level] += t.DroppedStreams[level]
	}
	s.DroppedBefore += t.DroppedBefore
	s.EndedStreams += t.EndedStreams
	s.KernelDatagrams += t.KernelDatagrams
	s.UserDatagrams += t.UserDatagrams
	s.DroppedDatagrams += t.DroppedDatagrams
	s.ACKs += t.ACKs
	s.Waiting += t.Waiting
}

// FeedStats say what a feed's publisher has sent, and what its subscribers got.
type FeedStats struct {
	Name        string
	Publisher   bool   // there is one now
	Bytes       uint64 // of its streams
	Datagrams   uint64
	Subscribers []SubscriberStats
	Left        SubscriberStats // the sum of those that are gone
}

// Sum is the sum of all subscribers.
func (f *FeedStats) Sum() SubscriberStats {
	sum := f.Left
	for i := range f.Subscribers {
		sum.add(&f.Subscribers[i])
	}
	return sum
}

// Stats returns what the feeds did that are in use, by name.
func (s *Server) Stats() []FeedStats {
	all := []FeedStats{}
	for _, f := range s.list() {
		f.mu.Lock()
		st := FeedStats{
			Name: f.name, Publisher: f.publisher != nil, Bytes: f.received, Datagrams: f.loose, Left: f.left,
		}
		for _, u := range f.subscribers {
			one := u.stats
			one.Waiting, one.InKernel = u.queued, u.kernel != nil
			st.Subscribers = append(st.Subscribers, one)
		}
		f.mu.Unlock()
		all = append(all, st)
	}
	return all
}

// list returns the feeds, by name.
func (s *Server) list() []*feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	feeds := slices.Collect(maps.Values(s.feeds))
	slices.SortFunc(feeds, func(a, b *feed) int { return strings.Compare(a.name, b.name) })
	return feeds
}
