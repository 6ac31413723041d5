package cli

import (
	"encoding/json"
	"time"
)

// snapshot is all that `run` counts, for machines: one line each time.
type snapshot struct {
	Time      time.Time          `json:"time"`
	Programs  []programSnapshot  `json:"programs"`
	Receivers []receiverSnapshot `json:"receivers,omitempty"`
	Arrived   []arrivedSnapshot  `json:"arrived,omitempty"` // at the hosts of --traffic
	Lost      map[string]uint64  `json:"lost,omitempty"`    // records, by event
	Counters  map[string]uint64  `json:"counters,omitempty"`
}

type programSnapshot struct {
	Name        string               `json:"name"`
	Attachments []attachmentSnapshot `json:"attachments"`
	Reasons     []reasonSnapshot     `json:"reasons"`
}

type attachmentSnapshot struct {
	Interface string `json:"interface"`
	How       string `json:"how"`
	Attached  bool   `json:"attached"`
	Error     string `json:"error,omitempty"` // why it isn't
}

type reasonSnapshot struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

type receiverSnapshot struct {
	Name     string              `json:"name"`
	To       string              `json:"to,omitempty"`
	Copies   uint64              `json:"copies"`
	Bytes    uint64              `json:"bytes"`
	Declined uint64              `json:"declined"`
	Failed   uint64              `json:"failed"`
	Refused  map[string][]uint64 `json:"refused,omitempty"` // by credit: for each level of priority
}

type arrivedSnapshot struct {
	Host    string `json:"host"`
	Flow    string `json:"flow"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// snapshot writes what is counted now as one line.
func (w *watcher) snapshot(now time.Time) error {
	s := snapshot{Time: now, Programs: []programSnapshot{}, Lost: map[string]uint64{}, Counters: map[string]uint64{}}
	for _, p := range w.relay.Programs() {
		if len(p.Attachments()) == 0 {
			continue
		}
		out := programSnapshot{Name: p.Name()}
		for _, at := range p.Attachments() {
			v := attachmentSnapshot{Interface: at.Interface, How: at.Mode.String(), Attached: at.Lost == nil}
			if at.Lost != nil {
				v.Error = at.Lost.Error()
			}
			out.Attachments = append(out.Attachments, v)
		}
		counts, err := p.Counts()
		if err != nil {
			return err
		}
		for i, n := range counts {
			reason := p.Desc().Reasons[i]
			out.Reasons = append(out.Reasons, reasonSnapshot{reason.Name, reason.Kind.String(), n.Packets, n.Bytes})
		}
		s.Programs = append(s.Programs, out)
	}
	d := w.relay.Desc()
	for _, v := range w.receivers {
		u, err := v.handle.Usage()
		if err != nil {
			return err
		}
		out := receiverSnapshot{Name: v.name, To: v.to, Copies: u.Packets, Bytes: u.Bytes, Declined: u.Declined,
			Failed: u.Failed, Refused: map[string][]uint64{}}
		for _, r := range v.refusals {
			for level := range max(d.Levels, 1) {
				out.Refused[r.name] = append(out.Refused[r.name], r.refused(level))
			}
		}
		s.Receivers = append(s.Receivers, out)
	}
	if w.traffic != nil {
		for _, a := range w.traffic.net.Arrived() {
			s.Arrived = append(s.Arrived, arrivedSnapshot{a.Host, a.String(), a.Packets, a.Bytes})
		}
	}
	for i, e := range d.Events {
		s.Lost[e.Name] = w.relay.Lost(i + 1)
	}
	counters, err := w.relay.Counters()
	if err != nil {
		return err
	}
	for i, n := range counters {
		s.Counters[d.Counters[i]] = n
	}
	return json.NewEncoder(w.out).Encode(s)
}
