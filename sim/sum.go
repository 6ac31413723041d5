package sim

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Ones' complement arithmetic on 16 bits is arithmetic modulo 65535 in which 0 has two forms, 0000 and FFFF. So a sum
// is kept here as a number below 65535, the complement is the negative, and swapping the bytes of a sum is multiplying
// it by 256. Which of the two forms of 0 is written is decided at the end.
const modulus = 65535

func sumAdd(a, b uint64) uint64 { return (a + b) % modulus }
func sumNeg(a uint64) uint64    { return (modulus - a%modulus) % modulus }
func sumSwap(a uint64) uint64   { return a * 256 % modulus }

// sumBytes sums 16-bit words in network order; odd says that the first byte is the second one of a word.
func sumBytes(b []byte, odd bool) uint64 {
	var sum uint64
	for i, x := range b {
		if (i%2 == 0) != odd {
			sum += uint64(x) << 8
		} else {
			sum += uint64(x)
		}
	}
	return sum % modulus
}

// sumIsRight reports whether the sum over bytes that include their own checksum is FFFF. (Of all zeros it is 0000.)
func sumIsRight(b []byte) bool {
	return sumBytes(b, false) == 0 && slices.ContainsFunc(b, func(x byte) bool { return x != 0 })
}

// terms sums the summands of a checksum.
func (r *run) terms(terms []ir.Term, what string) uint64 {
	var sum uint64
	for _, t := range terms {
		var b []byte
		if t.New != nil {
			sum := r.followed(t.New)
			b = []byte{byte(sum >> 8), byte(sum)}
		} else if t.Region {
			b = r.region(r.offset(t.At), int(r.uint(t.Len)), t.Max, what)
		} else {
			b = r.wire(t.Value, t.Size, false, what)
		}
		sum = sumAdd(sum, sumBytes(b, t.Odd || t.OddIf != nil && r.bool(t.OddIf)))
	}
	return sum
}

// region returns bytes of the packet that came, at most so many as the plan says.
func (r *run) region(at, n, limit int, what string) []byte {
	if r.err != nil {
		return nil
	}
	if at < 0 || n < 0 || at+n > len(r.in) || n > limit {
		r.fail("%s: %d bytes at %d are summed, at most %d, in a frame of %d", what, n, at, limit, len(r.in))
		return nil
	}
	return r.in[at : at+n]
}

// wholeOK reports whether the checksum over a datagram of n bytes is right.
func (r *run) wholeOK(e *ir.SumOK, n int) bool {
	at, pseudo := r.offset(e.Off), r.terms(e.Pseudo, "checksum")
	if r.err != nil || at < 0 || n < 0 || at+n > len(r.in) {
		r.fail("checksum: %d bytes at %d are summed in a frame of %d", n, at, len(r.in))
		return false
	}
	if n > ir.MaxWhole {
		return false
	}
	if len(e.Pseudo) == 0 && !r.completes(at, at+n, r.packet.Partial) {
		return sumIsRight(r.in[at : at+n])
	}
	return sumAdd(pseudo, r.completed(r.in, at, at+n, r.packet.Partial)) == 0
}

// completes reports whether a device completes a checksum of these bytes, as far as the program knows.
func (r *run) completes(from, to int, p Partial) bool {
	return !r.relay.World.Infers && p != (Partial{}) && p.Start >= from && p.Start < to
}

// completed sums bytes of a packet up, of which a device may have to complete a checksum: those that it covers, and the
// checksum with them, then add up to the complement of what its field holds.
func (r *run) completed(data []byte, from, to int, p Partial) uint64 {
	if !r.completes(from, to, p) {
		return sumBytes(data[from:to], false)
	}
	rest := sumNeg(bigEndian(data[p.Field : p.Field+2]))
	if (p.Start-from)%2 != 0 {
		rest = sumSwap(rest)
	}
	return sumAdd(sumBytes(data[from:p.Start], false), rest)
}

// whole computes a checksum over the packet that leaves, whose field counts as 0, whatever was there when it came.
func (r *run) whole(s *ir.Sum, data []byte, p Partial) uint16 {
	from, at := r.offset(*s.Whole), r.offset(s.New)
	if r.err != nil || from < 0 || at+2 > len(data) || len(data)-from > ir.MaxWhole ||
		p.Start > 0 && p.Field+2 > len(data) {
		r.fail("%s: a sum over bytes %d to %d", s.Name, from, len(data))
		return 0
	}
	clear(data[at : at+2])
	return r.written(s, sumNeg(sumAdd(r.terms(s.NewPseudo, s.Name), r.completed(data, from, len(data), p))))
}

// sum computes a checksum of the packet that leaves.
func (r *run) sum(s *ir.Sum) uint16 {
	if r.partial(s) {
		old := r.old(s)
		sum := sumAdd(sumAdd(old, r.terms(s.NewPseudo, s.Name)), sumNeg(r.terms(s.OldPseudo, s.Name)))
		if sum == 0 {
			return 0xffff // a sum of summands that are not all zero is never the zero 0000
		}
		return uint16(sum)
	}
	return r.followed(s)
}

// partial reports whether a checksum is left to a device. Of a GSO packet, outer ones are left to whoever cuts it, too.
func (r *run) partial(s *ir.Sum) bool {
	p := r.packet.Partial
	if s.Fresh || !s.Offloaded || p == (Partial{}) {
		return false
	}
	at := r.offset(s.Old)
	return at == p.Field || r.packet.GSO != 0 && at < p.Start && !(s.Absent && r.old(s) == 0)
}

// stuck reports whether a checksum of a rewrite seems to be partial at an odd offset, where a program that infers can't
// have the kernel finish it.
func (r *run) stuck(w *ir.Rewrite) bool {
	return w != nil && r.relay.World.Infers && slices.ContainsFunc(w.Sums, func(s *ir.Sum) bool {
		if s.Whole != nil {
			return true
		}
		if !s.Offloaded || s.Fresh || r.offset(s.New)&1 == 0 {
			return false
		}
		pseudo := r.terms(s.OldPseudo, s.Name)
		if pseudo == 0 {
			pseudo = modulus // a sum of summands that are not all zero
		}
		return r.old(s) == pseudo || w.Resize == ir.InPlace && r.packet.GSO != 0
	})
}

// old is the checksum of the packet that came.
func (r *run) old(s *ir.Sum) uint64 { return bigEndian(r.bytesAt(s.Old, 2, s.Name)) }

// followed computes a checksum that isn't partial from what changes. To a checksum that covers this one, it makes no
// difference whether this one is partial: what leaves in the end is the same.
func (r *run) followed(s *ir.Sum) uint16 {
	if s.Fresh {
		return r.written(s, sumNeg(sumAdd(r.terms(s.NewTerms, s.Name), r.terms(s.NewPseudo, s.Name))))
	}
	old := r.old(s)
	if s.Absent && old == 0 {
		return 0
	}
	payload := sumNeg(old)
	payload = sumAdd(payload, sumNeg(r.terms(s.OldTerms, s.Name)))
	payload = sumAdd(payload, sumNeg(r.terms(s.OldPseudo, s.Name)))
	if s.Tail {
		odd := s.TailOdd != nil && r.bool(s.TailOdd)
		tail := r.region(r.end, r.offset(s.TailEnd)-r.end, s.TailMax, s.Name+" (tail)")
		payload = sumAdd(payload, sumNeg(sumBytes(tail, odd)))
	}
	if s.Swap != nil && r.bool(s.Swap) {
		payload = sumSwap(payload)
	}
	new := sumAdd(payload, sumAdd(r.terms(s.NewTerms, s.Name), r.terms(s.NewPseudo, s.Name)))
	return r.written(s, sumNeg(new))
}

// written chooses the form of zero that a checksum is written in.
func (r *run) written(s *ir.Sum, sum uint64) uint16 {
	if sum == 0 && s.Optional {
		return 0xffff
	}
	return uint16(sum)
}
