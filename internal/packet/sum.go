package packet

import (
	"github.com/fastrelay/fastrelay-gen/spec"
)

// fold adds the carries of a sum back in until 16 bits are left (RFC 1071).
func fold(sum uint64) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

func words(b []byte) uint64 {
	var sum uint64
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint64(b[i])<<8 | uint64(b[i+1])
	}
	if len(b)%2 == 1 {
		sum += uint64(b[len(b)-1]) << 8
	}
	return sum
}

// covered returns the bytes that a checksum of the last span of s covers.
func (s *scope) covered(c *spec.Checksum) []byte {
	sp := s.spans[len(s.spans)-1]
	if c.Covers == "header" {
		return s.frame[sp.Start:sp.End]
	}
	return s.frame[sp.Start:max(sp.End, sp.Inner)]
}

// pseudo sums the pseudo-header.
func (s *scope) pseudo(c *spec.Checksum) (uint64, error) {
	var sum uint64
	for _, e := range c.Pseudo {
		if e.Op == spec.OpName {
			if p, _ := s.place(e.Path); p != nil && p.There {
				if v := p.Get(s.frame); v.Bytes != nil {
					sum += words(v.Bytes)
					continue
				}
			}
		}
		v, err := s.eval(e)
		if err != nil {
			return 0, err
		}
		sum += v&0xffff + v>>16&0xffff + v>>32&0xffff + v>>48
	}
	return sum, nil
}

// checksum computes what a checksum field at a place should hold.
func (s *scope) checksum(p *Place) (uint16, error) {
	c := p.Field.Checksum
	pseudo, err := s.pseudo(c)
	if err != nil {
		return 0, err
	}
	old := p.Get(s.frame)
	p.Put(s.frame, Uint(0))
	sum := ^fold(words(s.covered(c)) + pseudo)
	p.Put(s.frame, old)
	if sum == 0 && c.Optional {
		sum = 0xffff
	}
	return sum, nil
}
