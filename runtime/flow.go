package runtime

import (
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/routes"
)

// Most hosts route by addresses, so rows with the same addresses share a hop. If a routing rule or an xfrm policy
// for these addresses asks for a protocol or for ports, rows that differ in them have hops of their own. As rules and
// policies come and go, rows move from one hop to another.

// flow is what is known of packets that a row sends through a hop, besides addresses.
func (row *tableRow) flow(hop *abi.Member) routes.Flow {
	port := func(name string) uint16 {
		m := abi.Find(row.members(), name)
		if m == nil || m.Kind != abi.KindEndpoint {
			return 0
		}
		return abi.Order.Uint16(row.value[m.Off+abi.EndpointPort:])
	}
	return routes.Flow{Proto: uint8(hop.Proto), FromPort: port(hop.From), ToPort: port(hop.To)}
}

// regroup moves the rows of a hop that need another one, and returns the hops that are to be resolved: those that are
// new, and the hop itself if rows are left.
func (h *hops) regroup(e *hop) (lookups []*hop) {
	h.relay.mu.Lock()
	defer h.relay.mu.Unlock()
	if h.byKey[e.key] != e || e.key.Flow == (routes.Flow{}) && !h.routes.Asks(e.key) {
		return []*hop{e}
	}
	for row := range e.rows {
		stays, changes := false, false
		for i := range row.hops {
			rh := &row.hops[i]
			if rh.hop != e {
				continue
			}
			key := h.routes.Narrow(rh.traffic)
			if key == e.key {
				stays = true
				continue
			}
			to := h.byKey[key]
			if to == nil {
				to = &hop{key: key, now: e.now, via: e.via, lost: e.lost, rows: map[*tableRow]struct{}{}}
				h.byKey[key] = to
				lookups = append(lookups, to)
			}
			to.rows[row] = struct{}{}
			rh.hop = to
			changes = changes || to.now != e.now
		}
		if !stays {
			delete(e.rows, row)
		}
		if changes {
			h.rewrite(row)
		}
	}
	if len(e.rows) == 0 {
		delete(h.byKey, e.key)
		return lookups
	}
	return append(lookups, e)
}
