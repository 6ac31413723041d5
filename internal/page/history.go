package page

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// kept is how many samples there are: ten minutes, and one more for the first rate.
const kept = 601

// sample is what the counters were at a time.
type sample struct {
	Time    int64      `json:"time"`    // milliseconds
	Packets [][]uint64 `json:"packets"` // by program and reason
}

// history has the counters of the last ten minutes, so that a browser that is opened late has them, too.
type history struct {
	mu      sync.Mutex
	samples []sample
}

// record looks at the counters once a second.
func (h *history) record(ctx context.Context, view http.Handler) {
	relay := api.Local(view)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		var programs api.Programs
		if relay.Get(ctx, "/v1/programs", &programs) == nil {
			h.add(time.Now(), programs)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (h *history) add(at time.Time, programs api.Programs) {
	s := sample{Time: at.UnixMilli()}
	for _, p := range programs.Items {
		var packets []uint64
		for _, r := range p.Reasons {
			packets = append(packets, r.Packets)
		}
		s.Packets = append(s.Packets, packets)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.samples = append(h.samples, s)
	if len(h.samples) > kept {
		h.samples = append(h.samples[:0:0], h.samples[len(h.samples)-kept:]...)
	}
}

// serve answers with the samples after a time.
func (h *history) serve(w http.ResponseWriter, r *http.Request) {
	after := int64(0) // all
	if text := r.URL.Query().Get("after"); text != "" {
		var err error
		if after, err = strconv.ParseInt(text, 10, 64); err != nil {
			http.Error(w, "after must be a time in milliseconds", http.StatusBadRequest)
			return
		}
	}
	out := struct {
		Samples []sample `json:"samples"`
	}{[]sample{}}
	h.mu.Lock()
	for _, s := range h.samples {
		if s.Time > after {
			out.Samples = append(out.Samples, s)
		}
	}
	h.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // an error means that the client has gone
}
