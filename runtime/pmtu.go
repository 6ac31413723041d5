package runtime

import (
	"iter"
	"maps"

	"github.com/fastrelay/fastrelay-gen/runtime/internal/icmp"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/pathmtu"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/routes"
)

// PathMTUs says how the MTUs of paths are followed. A path's is that of its smallest link, which routers report by ICMP
// errors.
type PathMTUs struct {
	Followed bool   // the relay has next hops, and follows them
	Receives bool   // the relay receives these errors, which takes CAP_NET_RAW; else the kernel alone does
	Kept     int    // MTUs that the relay keeps itself, if the kernel has no socket that an error could be about
	Taken    uint64 // errors about packets that the relay sends
	Ignored  uint64 // other errors: about packets of other programs, forged, or damaged
}

// PathMTUs returns how the MTUs of paths are followed; the zero value if the relay has no next hops to follow.
func (r *Relay) PathMTUs() PathMTUs {
	if r.hops == nil {
		return PathMTUs{}
	}
	p := r.hops.paths
	kept, taken, ignored := p.Counts()
	return PathMTUs{Followed: true, Receives: p.Receives(), Kept: kept, Taken: taken, Ignored: ignored}
}

// The hops as package pathmtu uses them: their lock is relay.mu.

func (h *hops) Lock()                       { h.relay.mu.Lock() }
func (h *hops) Unlock()                     { h.relay.mu.Unlock() }
func (h *hops) Len() int                    { return len(h.byKey) }
func (h *hops) Keys() iter.Seq[pathmtu.Key] { return maps.Keys(h.byKey) }

func (h *hops) Find(key pathmtu.Key) pathmtu.Hop {
	if e := h.byKey[key]; e != nil {
		return e
	}
	return nil
}

func (e *hop) Now() (routes.Hop, routes.Neighbour) { return routes.Hop(e.now), e.via }

func (e *hop) Ports() iter.Seq[icmp.Ports] {
	return func(yield func(icmp.Ports) bool) {
		for row := range e.rows {
			for _, rh := range row.hops {
				// packets that are sent through a router aren't this host's
				if rh.hop == e && !rh.traffic.Router && !yield(ports(rh.traffic.Flow)) {
					return
				}
			}
		}
	}
}

// ports are the ports of a flow, as errors are compared with them.
func ports(f routes.Flow) icmp.Ports {
	known := func(port uint16) int32 {
		if port == 0 {
			return icmp.AnyPort
		}
		return int32(port)
	}
	return icmp.Ports{From: known(f.FromPort), To: known(f.ToPort)}
}
