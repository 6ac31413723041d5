package specgen

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// payloads says what is wrong with what follows the headers of a packet that left: all bytes up to the end of the
// outermost IP datagram leave, but for padding and for the trailers of headers that are popped. Data leaves as far
// after what its header counts as it came.
func payloads(received, left []byte, was, now []*packet.Span, out []layer, sent bool) string {
	if !sent && bytes.Equal(received, left) {
		return ""
	}
	outer := slices.IndexFunc(was, (*packet.Span).IsNet) // the outermost datagram of the packet that came
	net, end := outer, len(received)
	leaves := slices.IndexFunc(now, (*packet.Span).IsNet)
	if leaves >= 0 {
		net = max(net, out[leaves].from)
	}
	if net >= 0 {
		end = was[net].Inner
	}
	first := was[len(was)-1].End
	gone := make([]bool, len(received))
	for i, sp := range was[outer+1:] {
		i += outer + 1
		popped := !slices.ContainsFunc(out, func(l layer) bool { return l.from == i })
		if popped {
			mark(gone[sp.Payload():max(sp.Payload(), sp.Inner)])
		}
		k := slack(sp)
		if k == nil || sp.Inner == sp.Limit || i <= net && !popped {
			continue
		}
		if k.Data && popped {
			return fmt.Sprintf("header %s was popped, and data after it", sp.Name())
		} else if !k.Data && i > net {
			mark(gone[sp.Inner:sp.Limit])
		}
	}
	if slices.Contains(gone[:min(first, end)], true) {
		return "something is taken out in front of a header"
	}
	var want []byte
	for i := first; i < end; i++ {
		if !gone[i] {
			want = append(want, received[i])
		}
	}
	stop := len(left)
	if leaves >= 0 {
		stop = now[leaves].Inner
		trailers := packet.Trailers(now[:leaves])
		if sent && stop+trailers != len(left) {
			return fmt.Sprintf("%d bytes follow the IP datagram that left, of which %d are trailers",
				len(left)-stop, trailers)
		}
		if sent && outer >= 0 && trailers > 0 && !bytes.Equal(left[stop:], received[was[outer].Inner:][:trailers]) {
			return "the trailer of a header in front of the IP datagram changed"
		}
	}
	if got := left[now[len(now)-1].End:stop]; !bytes.Equal(got, want) {
		return fmt.Sprintf("a payload of %d bytes came, one of %d left, or its bytes changed", len(want), len(got))
	}
	for i, sp := range now[leaves+1:] {
		l := out[i+leaves+1]
		k := slack(sp)
		if k == nil || l.blank || l.from >= 0 && l.from <= net {
			continue
		}
		follow := 0
		if k.Data && l.from >= 0 {
			follow = was[l.from].Limit - was[l.from].Inner
		}
		if got := sp.Limit - sp.Inner; got != follow {
			return fmt.Sprintf("after header %s %d bytes left that it doesn't count, not %d", sp.Name(), got, follow)
		}
	}
	return ""
}

func mark(b []bool) {
	for i := range b {
		b[i] = true
	}
}

// slack is the length of a header that allows bytes after what it counts, or nil.
func slack(sp *packet.Span) (k *spec.Counts) {
	for _, p := range sp.Places {
		if c := p.Field.Counts; c != nil && c.What != "header" && p.There {
			k = c
		}
	}
	if k != nil && k.Slack == 0 {
		return nil
	}
	return k
}
