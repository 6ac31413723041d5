package fuzz

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/sample"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Garbled is what became of datagrams that were garbled on their way.
type Garbled struct {
	Datagrams int // that rules learned from as they were sent
	Tried     int // of them with one bit flipped, or one word zero
	Learned   int // of these, with what was garbled outside of what checksums cover
	Wrong     string
}

// Verifies reports whether Garble has something to try.
func Verifies(s *spec.Spec) bool { return slices.ContainsFunc(s.Programs, verifies) }

// Garble has rules learn from n datagrams, of which each arrives in all forms that differ in a bit or are zero in a
// word, in the model and in the kernel. Rows may follow only from what an independent decoder finds right, with its
// checksum. Programs that don't verify the checksum of the outermost UDP or TCP are left out: one has to.
func Garble(c Config, n int) (out Garbled, err error) {
	f := &fuzzer{Config: c, rng: sample.NewSource(c.Seed), headers: packet.NewHeaders(c.Spec)}
	defer f.close()
	if c.Object != nil {
		net, leave, err := enter(c.Plan)
		if err != nil {
			return out, err
		}
		defer leave()
		f.net = net
	}
	if err := f.load(0); err != nil {
		return out, err
	}
	f.generators = slices.DeleteFunc(f.generators, func(g *sample.Generator) bool { return !verifies(g.Program) })
	for range 1000 * n {
		if out.Datagrams >= n || out.Wrong != "" {
			break
		}
		f.state()
		if err := f.bench.start(); err != nil {
			return out, err
		}
		g := sample.Pick(f.rng, f.generators)
		if err := f.garble(g.Program, g.Frame(f.bench.model).Data, &out); err != nil {
			return out, err
		}
	}
	return out, nil
}

// garble tries all forms of one datagram, if its program learns from it.
func (f *fuzzer) garble(program *spec.Program, data []byte, out *Garbled) error {
	b, name := f.bench, program.Name.Value
	if right, known := f.believable(name, data); !right || !known {
		return nil
	}
	res, err := b.probe.Run(name, sim.Packet{Data: data, Link: sim.LinkType(data, packet.DefaultDestination)})
	if err != nil || f.rows(b.probe) == f.rows(b.model) {
		return err
	}
	out.Datagrams++
	old := f.rows(b.model)
	for _, form := range forms(data) {
		if !program.Receives() {
			f.host(name, form)
		}
		p := sim.Packet{Data: form}
		out.Tried++
		if _, out.Wrong, err = b.try(name, p); errors.Is(err, testrun.ErrRefused) {
			continue
		} else if err != nil || out.Wrong != "" {
			return err
		}
		if f.rows(b.model) == old {
			continue
		}
		if right, known := f.believable(name, form); known && !right {
			out.Wrong = fmt.Sprintf("program %q learns from %x, which was %x (%s) when it was sent", name, form, data,
				res.Reason)
			return nil
		}
		out.Learned++
		b.model.CopyState(b.before)
		if err := b.start(); err != nil {
			return err
		}
	}
	out.Wrong, err = b.finish()
	return err
}

// host makes the checksum of a datagram's IPv4 header right, as a host does with all that it sends: no program at
// tc/egress has to verify it.
func (f *fuzzer) host(program string, data []byte) {
	frame := f.framed(program, data)
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy)
	if ip, ok := p.NetworkLayer().(*layers.IPv4); ok && len(ip.Contents) >= 20 {
		_, sum := ip.VerifyChecksum()
		binary.BigEndian.PutUint16(ip.Contents[10:], uint16(sum.Correct))
		copy(data, frame[len(frame)-len(data):])
	}
}

// forms are all that differ from a datagram by one bit, and those with one of its 16-bit words zero.
func forms(data []byte) (all [][]byte) {
	for i := range data {
		for bit := range 8 {
			form := slices.Clone(data)
			form[i] ^= 1 << bit
			all = append(all, form)
		}
		if i%2 == 1 && data[i-1]|data[i] != 0 {
			form := slices.Clone(data)
			form[i-1], form[i] = 0, 0
			all = append(all, form)
		}
	}
	return all
}

// rows are all rows of a model's tables, as text.
func (f *fuzzer) rows(m *sim.Relay) (text string) {
	for _, t := range f.bench.plan.Tables {
		table := m.Table(t.Name)
		for _, key := range table.Keys() {
			text += fmt.Sprintf("%s %x %x\n", t.Name, key, table.Get([]byte(key)))
		}
	}
	return text
}

// believable reports whether a packet has checksums, which are right; known says that gopacket finds the headers that
// have them: an EtherType in front of them that a spec doesn't look at may be another one.
func (f *fuzzer) believable(program string, data []byte) (right, known bool) {
	frame := f.framed(program, data)
	wrong, known := judge(frame)
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy)
	switch l := p.TransportLayer().(type) {
	case *layers.UDP:
		return wrong == "" && l.Checksum != 0, known
	case *layers.TCP:
		return wrong == "", known
	}
	return false, p.NetworkLayer() != nil
}

// verifies reports whether a program learns, and only after it has verified the checksum of the outermost UDP or TCP.
func verifies(p *spec.Program) bool {
	i := slices.IndexFunc(p.Stack, func(e *spec.StackEntry) bool {
		return !slices.ContainsFunc(e.Headers, func(h spec.Name) bool { return h.Value != "udp" && h.Value != "tcp" })
	})
	if i < 0 || p.Stack[i].Optional {
		return false
	}
	learns := 0
	for _, r := range p.Rules {
		for _, a := range r.Do {
			if a.Kind != spec.ActLearn {
				continue
			}
			if a.Verified == nil || a.Verified.Value != p.Stack[i].Var.Value {
				return false
			}
			learns++
		}
	}
	return learns > 0
}
