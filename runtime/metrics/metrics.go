// Package metrics shows what relays count, in the text format that Prometheus reads (version 0.0.4), without any dependency:
//
//	http.Handle("/metrics", metrics.Handler(relay.Runtime()))
//
// The series, all of them read from the kernel when they are asked for:
//
//	fastrelay_packets_total{relay,program,reason,kind}  packets by what became of them; kind: sent, pass, drop, up, fault
//	fastrelay_bytes_total{relay,program,reason,kind}    bytes of their frames as they came
//	fastrelay_counter_total{relay,name}                 named counters of the spec
//	fastrelay_sessions{relay,kind}                      open sessions
//	fastrelay_sessions_limit{relay,kind}                how many may be open at once
//	fastrelay_attached{relay,program,interface,how}     1 for each interface that a program is attached to
package metrics

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/fastrelay/fastrelay-gen/runtime"
)

// Handler serves the metrics of relays. Relays that are closed show zeros.
func Handler(relays ...*runtime.Relay) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		// An error means that the reader has gone.
		_ = Write(w, relays...)
	})
}

// Write writes the metrics of relays. The order is that of the specs, so the same counts give the same text.
func Write(w io.Writer, relays ...*runtime.Relay) error {
	packets := &family{name: "fastrelay_packets_total", typ: "counter", help: "Packets by what became of them."}
	volume := &family{name: "fastrelay_bytes_total", typ: "counter", help: "Bytes of the frames as they came."}
	named := &family{name: "fastrelay_counter_total", typ: "counter", help: "Named counters of the spec."}
	sessions := &family{name: "fastrelay_sessions", typ: "gauge", help: "Open sessions."}
	limits := &family{name: "fastrelay_sessions_limit", typ: "gauge", help: "How many sessions may be open at once."}
	attached := &family{name: "fastrelay_attached", typ: "gauge", help: "1 for each interface that a program is attached to."}
	for _, r := range relays {
		d := r.Desc()
		for _, p := range r.Programs() {
			for reason, n := range p.Reasons() {
				labels := []string{"relay", d.Name, "program", p.Name(), "reason", reason.Name, "kind", reason.Kind}
				packets.add(n.Packets, labels...)
				volume.add(n.Bytes, labels...)
			}
			for _, a := range p.Attachments() {
				attached.add(1, "relay", d.Name, "program", p.Name(), "interface", a.Interface, "how", a.How)
			}
		}
		for name, n := range r.Counters() {
			named.add(n, "relay", d.Name, "name", name)
		}
		for _, s := range d.Sessions {
			sessions.add(uint64(r.OpenSessions(s.Name)), "relay", d.Name, "kind", s.Name)
			limits.add(uint64(s.Size), "relay", d.Name, "kind", s.Name)
		}
	}
	var b bytes.Buffer
	for _, f := range []*family{packets, volume, named, sessions, limits, attached} {
		f.write(&b)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// family is the series of one name, which have to stand together.
type family struct {
	name, typ, help string
	series          bytes.Buffer
}

// add appends a series; labels are names and values in turn.
func (f *family) add(v uint64, labels ...string) {
	f.series.WriteString(f.name)
	sep := byte('{')
	for i := 0; i < len(labels); i += 2 {
		f.series.WriteByte(sep)
		fmt.Fprintf(&f.series, `%s="%s"`, labels[i], escape.Replace(labels[i+1]))
		sep = ','
	}
	fmt.Fprintf(&f.series, "} %d\n", v)
}

var escape = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

func (f *family) write(b *bytes.Buffer) {
	if f.series.Len() > 0 {
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", f.name, f.help, f.name, f.typ)
		b.Write(f.series.Bytes())
	}
}
