package metrics

import (
	"bytes"
	"fmt"
	"io"
	"net/http"

	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// UserSpace serves the metrics of a relay that forwards in user space: those of the process; what look returns, under
// the names that relays in the kernel have; and what own writes. Of named counters, look returns unsigned integers.
func UserSpace(look func() (api.Relay, []api.Program, api.Object), own func(io.Writer) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var b bytes.Buffer
		for _, f := range process() {
			f.write(&b)
		}
		relay, programs, counters := look()
		m := newMetrics()
		m.addUserSpace(&relay, programs, counters)
		for _, f := range m.families() {
			f.write(&b)
		}
		if err := own(&b); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(b.Bytes()) // an error means that the client has gone
	})
}

func (m *metrics) addUserSpace(r *api.Relay, programs []api.Program, counters api.Object) {
	for _, p := range programs {
		for _, c := range p.Reasons {
			labels := []string{"relay", r.Name, "program", p.Name, "reason", c.Name, "kind", c.Kind}
			m.packets.add(c.Packets, labels...)
			m.volume.add(c.Bytes, labels...)
		}
		for _, a := range p.Attachments {
			m.attached.add(1, "relay", r.Name, "program", p.Name, "interface", a.Interface, "how", a.How)
		}
	}
	for _, c := range counters {
		m.named.addText(fmt.Sprint(c.Value), "relay", r.Name, "name", c.Name)
	}
	draining := uint64(0)
	if r.Draining {
		draining = 1
	}
	m.draining.add(draining, "relay", r.Name)
	for _, k := range r.Sessions {
		m.sessions.add(uint64(*k.Open), "relay", r.Name, "kind", k.Name)
		m.limits.add(uint64(k.Limit), "relay", r.Name, "kind", k.Name)
	}
}
