// Package metrics shows what relays count, in the text format that Prometheus reads (version 0.0.4), without any
// dependency:
//
//	http.Handle("/metrics", metrics.Handler(relay.Runtime()))
//
// The series, all of them read from the kernel when they are asked for:
//
//	fastrelay_packets_total{relay,program,reason,kind}  packets by reason; kind: sent, pass, drop,
//	                                                    up, fault, copy, declined
//	fastrelay_bytes_total{relay,program,reason,kind}    bytes of their frames as they came
//	fastrelay_counter_total{relay,name}                 named counters of the spec
//	fastrelay_sessions{relay,kind}                      open sessions
//	fastrelay_sessions_limit{relay,kind}                how many may be open at once
//	fastrelay_xdp_packets_total{relay,program,reason,kind}
//	                                                    those of fastrelay_packets_total that were seen at XDP
//	fastrelay_attached{relay,program,interface,how}     1 for each interface that a program is
//	                                                    attached to; 0 while that interface is gone
//	fastrelay_xdp_attached{relay,program,interface}     of programs that run at XDP, too: 1 where packets come to them
//	                                                    there, 0 where they don't at present
//	fastrelay_xdp_drops_total{relay,interface,reason}   those that were sent from XDP, and that the interface dropped
//	fastrelay_lease_left_seconds{relay}                 for how long the kernel goes on without a renewal; 0: it has
//	                                                    lapsed
//	fastrelay_draining{relay}                           1 while the relay takes no new sessions and receivers
//	fastrelay_next_hops{relay,state}                    next hops that rows need, by their state
//	fastrelay_next_hops_missing{relay}                  those among them that packets can't leave by
//	fastrelay_path_mtu_errors_total{relay,result}       ICMP errors about a path's MTU; result: taken, ignored
//	fastrelay_path_mtu_receives{relay}                  1 if the relay receives these errors, 0 without CAP_NET_RAW
//	fastrelay_path_mtus_kept{relay}                     MTUs of paths that the relay keeps, since the kernel doesn't
//	fastrelay_groups{relay,group}                       open groups
//	fastrelay_groups_limit{relay,group}                 how many may be open at once
//	fastrelay_receivers{relay,group}                    receivers in all groups of the kind
//	fastrelay_receivers_limit{relay,group}              how many there may be
//	fastrelay_events_lost_total{relay,event}            records lost because the ring was full
//	fastrelay_events_waiting_bytes{relay}               bytes of records that were not read yet
//	fastrelay_events_ring_bytes{relay}                  how many the ring holds
//
// And for each receiver, named by its group's key and its number, as many as there are:
//
//	fastrelay_receiver_packets_total{relay,group,key,receiver}    copies sent
//	fastrelay_receiver_bytes_total{relay,group,key,receiver}      bytes of their frames
//	fastrelay_receiver_declined_total{relay,group,key,receiver}   packets of which it got no copy
//	fastrelay_receiver_failed_total{relay,group,key,receiver}     those among them that the kernel refused
//	fastrelay_receiver_refused_total{relay,group,key,receiver,credit,level}
//	                                                              those that a credit refused, by level of priority
//
// [Handler] has these as well, of the process:
//
//	fastrelay_build_info{version,revision,goversion}              1; version is that of the main module
//	process_start_time_seconds, process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds,
//	process_max_fds, go_goroutines                                as Prometheus's own libraries have them
package metrics

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/runtime"
)

const contentType = "text/plain; version=0.0.4; charset=utf-8"

// Handler serves the metrics of relays, as [Write] writes them, after those of the process. If they
// can't be read, it answers with an error.
func Handler(relays ...*runtime.Relay) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var b bytes.Buffer
		for _, f := range process() {
			f.write(&b)
		}
		if err := Write(&b, relays...); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(b.Bytes()) // an error means that the client has gone
	})
}

// Write writes the metrics of relays. The order is that of the specs, so the same counts give the same text. A relay
// that is closed has no series.
func Write(w io.Writer, relays ...*runtime.Relay) error {
	all := newMetrics().families()
	for _, r := range relays {
		one := newMetrics()
		err := one.add(r)
		if errors.Is(err, runtime.ErrClosed) {
			continue
		}
		if err != nil {
			return fmt.Errorf("metrics of relay %q: %w", r.Desc().Name, err)
		}
		for i, f := range one.families() {
			all[i].series.Write(f.series.Bytes())
		}
	}
	var b bytes.Buffer
	for _, f := range all {
		f.write(&b)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// metrics are the series of a relay.
type metrics struct {
	packets, volume, named, sessions, limits, attached   *family
	lease, draining, hops, missing, frames, atXDP, drops *family

	paths  *pathFamilies
	groups *groupFamilies
}

func newMetrics() *metrics {
	return &metrics{
		packets:  &family{name: "fastrelay_packets_total", typ: "counter", help: "Packets by reason."},
		volume:   &family{name: "fastrelay_bytes_total", typ: "counter", help: "Bytes of the frames as they came."},
		named:    &family{name: "fastrelay_counter_total", typ: "counter", help: "Named counters of the spec."},
		sessions: &family{name: "fastrelay_sessions", typ: "gauge", help: "Open sessions."},
		limits: &family{
			name: "fastrelay_sessions_limit", typ: "gauge", help: "How many sessions may be open at once.",
		},
		attached: &family{name: "fastrelay_attached", typ: "gauge",
			help: "1 for each interface that a program is attached to, 0 while that interface is gone."},
		frames: &family{
			name: "fastrelay_xdp_packets_total", typ: "counter", help: "Those of fastrelay_packets_total seen at XDP.",
		},
		atXDP: &family{name: "fastrelay_xdp_attached", typ: "gauge",
			help: "1 for each interface where packets come to a program at XDP first, 0 where they don't at present."},
		drops: &family{name: "fastrelay_xdp_drops_total", typ: "counter",
			help: "Packets that were sent from XDP, and that the interface dropped."},
		lease: &family{name: "fastrelay_lease_left_seconds", typ: "gauge",
			help: "For how long the kernel goes on forwarding without a renewal."},
		draining: &family{
			name: "fastrelay_draining", typ: "gauge", help: "1 while the relay takes nothing new.",
		},
		hops: &family{name: "fastrelay_next_hops", typ: "gauge", help: "Next hops that rows need, by their state."},
		missing: &family{
			name: "fastrelay_next_hops_missing", typ: "gauge", help: "Next hops that packets can't leave by.",
		},
		paths:  newPathFamilies(),
		groups: newGroupFamilies(),
	}
}

func (m *metrics) families() []*family {
	own := []*family{
		m.packets, m.volume, m.frames, m.named, m.sessions, m.limits, m.attached, m.atXDP, m.drops, m.lease,
		m.draining, m.hops, m.missing,
	}
	return slices.Concat(own, m.paths.all(), m.groups.all())
}

func (m *metrics) add(r *runtime.Relay) error {
	d := r.Desc()
	m.paths.add(r)
	if err := m.groups.add(r); err != nil {
		return err
	}
	for _, p := range r.Programs() {
		counts, err := p.Counts()
		if err != nil {
			return err
		}
		frames, err := p.XDPCounts()
		if err != nil {
			return err
		}
		for i, n := range counts {
			reason := p.Desc().Reasons[i]
			labels := []string{
				"relay", d.Name, "program", p.Name(), "reason", reason.Name, "kind", reason.Kind.String(),
			}
			m.packets.add(n.Packets, labels...)
			m.volume.add(n.Bytes, labels...)
			if frames != nil {
				m.frames.add(frames[i].Packets, labels...)
			}
		}
		for _, a := range p.Attachments() {
			n := uint64(1)
			if a.Lost != nil {
				n = 0
			}
			m.attached.add(n, "relay", d.Name, "program", p.Name(), "interface", a.Interface, "how", a.Mode.String())
			if p.Desc().AtXDP() {
				n = 0
				if a.XDP {
					n = 1
				}
				m.atXDP.add(n, "relay", d.Name, "program", p.Name(), "interface", a.Interface)
			}
		}
	}
	counters, err := r.Counters()
	if err != nil {
		return err
	}
	for i, n := range counters {
		m.named.add(n, "relay", d.Name, "name", d.Counters[i])
	}
	m.addState(r)
	for _, s := range d.Sessions {
		m.sessions.add(uint64(r.OpenSessions(s.Name)), "relay", d.Name, "kind", s.Name)
		m.limits.add(uint64(s.Size), "relay", d.Name, "kind", s.Name)
	}
	return nil
}

// hopStates are the states of next hops that rows have.
var hopStates = []runtime.HopState{
	runtime.HopDirect, runtime.HopNeighbour, runtime.HopLocal, runtime.HopUnreachable, runtime.HopBlackhole,
	runtime.HopProhibit, runtime.HopXfrm, runtime.HopRule, runtime.HopEncap, runtime.HopNone,
}

// addState adds what a relay is doing.
func (m *metrics) addState(r *runtime.Relay) {
	relay := []string{"relay", r.Desc().Name}
	_, left := r.Lease()
	m.lease.addText(strconv.FormatFloat(left.Seconds(), 'f', 3, 64), relay...)
	drops, _ := r.XDPDrops() // none where they can't be counted
	for _, d := range drops {
		m.drops.add(d.Packets, append(relay, "interface", d.Interface, "reason", d.Reason)...)
	}
	draining := uint64(0)
	if r.Draining() {
		draining = 1
	}
	m.draining.add(draining, relay...)
	if !r.Desc().HasHops() {
		return
	}
	states, missing := map[runtime.HopState]uint64{}, uint64(0)
	for _, h := range r.NextHops() {
		states[h.State]++
		if h.Missing() {
			missing++
		}
	}
	for _, state := range hopStates {
		m.hops.add(states[state], append(slices.Clone(relay), "state", state.String())...)
	}
	m.missing.add(missing, relay...)
}

// pathFamilies are the series of relays that follow the MTUs of paths.
type pathFamilies struct{ errors, receives, kept *family }

func newPathFamilies() *pathFamilies {
	return &pathFamilies{
		errors: &family{
			name: "fastrelay_path_mtu_errors_total", typ: "counter", help: "ICMP errors about a path's MTU.",
		},
		receives: &family{
			name: "fastrelay_path_mtu_receives", typ: "gauge", help: "1 where the relay receives ICMP errors.",
		},
		kept: &family{name: "fastrelay_path_mtus_kept", typ: "gauge", help: "MTUs of paths that the relay keeps."},
	}
}

func (f *pathFamilies) all() []*family { return []*family{f.errors, f.receives, f.kept} }

func (f *pathFamilies) add(r *runtime.Relay) {
	p := r.PathMTUs()
	if !p.Followed {
		return
	}
	relay := []string{"relay", r.Desc().Name}
	f.errors.add(p.Taken, append(slices.Clone(relay), "result", "taken")...)
	f.errors.add(p.Ignored, append(slices.Clone(relay), "result", "ignored")...)
	receives := uint64(0)
	if p.Receives {
		receives = 1
	}
	f.receives.add(receives, relay...)
	f.kept.add(uint64(p.Kept), relay...)
}

// groupFamilies are the series of relays that send to many.
type groupFamilies struct {
	groups, groupsLimit, receivers, receiversLimit *family
	lost, waiting, ring                            *family
	packets, volume, declined, failed, refused     *family
}

func newGroupFamilies() *groupFamilies {
	return &groupFamilies{
		groups: &family{name: "fastrelay_groups", typ: "gauge", help: "Open groups."},
		groupsLimit: &family{
			name: "fastrelay_groups_limit", typ: "gauge", help: "How many groups may be open at once.",
		},
		receivers: &family{
			name: "fastrelay_receivers", typ: "gauge", help: "Receivers in all groups of the kind.",
		},
		receiversLimit: &family{
			name: "fastrelay_receivers_limit", typ: "gauge", help: "How many receivers there may be.",
		},
		lost: &family{
			name: "fastrelay_events_lost_total", typ: "counter", help: "Records lost because the ring was full.",
		},
		waiting: &family{
			name: "fastrelay_events_waiting_bytes", typ: "gauge", help: "Bytes of records that were not read yet.",
		},
		ring: &family{
			name: "fastrelay_events_ring_bytes", typ: "gauge", help: "Bytes of records that the ring holds.",
		},
		packets: &family{
			name: "fastrelay_receiver_packets_total", typ: "counter", help: "Copies sent to the receiver.",
		},
		volume: &family{name: "fastrelay_receiver_bytes_total", typ: "counter", help: "Bytes of the copies' frames."},
		declined: &family{
			name: "fastrelay_receiver_declined_total", typ: "counter",
			help: "Packets of which the receiver got no copy.",
		},
		failed: &family{
			name: "fastrelay_receiver_failed_total", typ: "counter", help: "Copies that the kernel refused.",
		},
		refused: &family{
			name: "fastrelay_receiver_refused_total", typ: "counter", help: "Packets that a credit refused.",
		},
	}
}

func (f *groupFamilies) all() []*family {
	return []*family{
		f.groups, f.groupsLimit, f.receivers, f.receiversLimit, f.lost, f.waiting, f.ring, f.packets, f.volume,
		f.declined, f.failed, f.refused,
	}
}

func (f *groupFamilies) add(r *runtime.Relay) error {
	d := r.Desc()
	for _, k := range r.GroupKinds() {
		kind := []string{"relay", d.Name, "group", k.Desc().Name}
		groups, receivers := k.Count()
		f.groups.add(uint64(groups), kind...)
		f.groupsLimit.add(uint64(k.Desc().Size), kind...)
		f.receivers.add(uint64(receivers), kind...)
		f.receiversLimit.add(uint64(k.Desc().Rows), kind...)
		for g := range k.All() {
			key := strings.TrimPrefix(g.String(), k.Desc().Name+" ")
			for _, v := range g.Receivers() {
				labels := append(slices.Clone(kind), "key", key, "receiver", strconv.Itoa(int(v.ID())))
				if err := f.addReceiver(v, labels); err != nil {
					return err
				}
			}
		}
	}
	for i, e := range d.Events {
		f.lost.add(r.Lost(i+1), "relay", d.Name, "event", e.Name)
	}
	if waiting, size := r.EventsWaiting(); size > 0 {
		f.waiting.add(waiting, "relay", d.Name)
		f.ring.add(size, "relay", d.Name)
	}
	return nil
}

func (f *groupFamilies) addReceiver(v *runtime.AnyReceiver, labels []string) error {
	u, err := v.Usage()
	if err != nil {
		return err
	}
	f.packets.add(u.Packets, labels...)
	f.volume.add(u.Bytes, labels...)
	f.declined.add(u.Declined, labels...)
	f.failed.add(u.Failed, labels...)
	for credit, refused := range v.Refused() {
		for level, n := range refused {
			f.refused.add(n, append(slices.Clone(labels), "credit", credit, "level", strconv.Itoa(level))...)
		}
	}
	return nil
}

// family is the series of one name, which have to be together.
type family struct {
	name, typ, help string
	series          bytes.Buffer
}

// add appends a series; labels are names and values in turn.
func (f *family) add(v uint64, labels ...string) { f.addText(strconv.FormatUint(v, 10), labels...) }

func (f *family) addText(v string, labels ...string) {
	f.series.WriteString(f.name)
	sep := byte('{')
	for i := 0; i < len(labels); i += 2 {
		f.series.WriteByte(sep)
		fmt.Fprintf(&f.series, `%s="%s"`, labels[i], escape.Replace(labels[i+1]))
		sep = ','
	}
	fmt.Fprintf(&f.series, "} %s\n", v)
}

var escape = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

func (f *family) write(b *bytes.Buffer) {
	if f.series.Len() > 0 {
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", f.name, f.help, f.name, f.typ)
		b.Write(f.series.Bytes())
	}
}
