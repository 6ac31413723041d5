package declare

import (
	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass reports headers that can't be laid out at all, whether they are used or not.

// checkHeaders reports headers that can't be laid out at all, whether they are used or not.
func (c *declarer) checkHeaders() {
	for _, h := range c.names.Spec.Headers {
		bits := 0
		for _, f := range h.Fields {
			if f.Kind == spec.FieldUint {
				c.checkBits(f, bits)
				bits += f.Bits
			} else if bits%8 != 0 {
				c.diags.Add(code.Header, f.Name.Pos, "field %q has to begin at a byte boundary", f.Name.Value).
					WithHint("the fields in front of it have %d bits", bits)
				bits = 0
			}
		}
		c.checkSums(h)
		if bits%8 != 0 {
			missing := 8 - bits%8
			c.diags.Add(code.Header, h.Name.Pos, "header %q has %s: it ends inside a byte", h.Name.Value,
				diag.Plural(bits, "bit")).
				WithHint("%s more would fill it: {name: \"reserved\", bits: %d}", diag.Plural(missing, "bit"), missing)
		}
	}
}

// checkBits reports what a field of some bits can't be where it begins, so many bits after a byte boundary.
func (c *declarer) checkBits(f *spec.Field, at int) {
	whole := at%8 == 0 && f.Bits%8 == 0
	if f.Little && !whole {
		c.diags.Add(code.Header, f.Name.Pos, "field %q is little endian, but not whole bytes at a byte boundary",
			f.Name.Value)
	}
	if f.When != nil && !whole {
		c.diags.Add(code.Header, f.Name.Pos, "field %q is conditional, but not whole bytes at a byte boundary",
			f.Name.Value)
	}
	if f.Checksum != nil && (f.Bits != 16 || at%8 != 0) {
		c.diags.Add(code.Header, f.Name.Pos, "checksum %q is not 16 bits at a byte boundary", f.Name.Value)
	}
	if f.Counts != nil && f.When != nil {
		c.diags.Add(code.Header, f.Name.Pos, "length %q can't be conditional", f.Name.Value)
	}
}

// checkSums reports checksums that can't be computed or verified.
func (c *declarer) checkSums(h *spec.Header) {
	var sum *spec.Field
	for _, f := range h.Fields {
		if f.Checksum == nil {
			continue
		}
		if sum != nil {
			c.diags.Add(code.Header, f.Name.Pos, "header %q has two checksums: each would cover the other",
				h.Name.Value).
				WithRelated(sum.Name.Pos, "the other one")
		}
		sum = f
		c.checkPseudo(f.Checksum)
		c.checkVerify(h, f)
	}
}

// checkPseudo reports summands of a pseudo-header that a rewrite couldn't follow.
func (c *declarer) checkPseudo(k *spec.Checksum) {
	for _, e := range k.Pseudo {
		call := e.Op == spec.OpCall && e.Fn.Value == "len" && len(e.Args) == 1 && e.Args[0].Op == spec.OpName &&
			len(e.Args[0].Path) == 1
		if e.Op != spec.OpInt && !call && (e.Op != spec.OpName || len(e.Path) > 2) {
			c.diags.Add(code.Header, e.Pos, "a summand of a pseudo-header is an integer, a field, or len(HEADER)")
		}
	}
}

// checkVerify reports checksums that can't be verified: only bytes of which each packet has as many are summed up.
func (c *declarer) checkVerify(h *spec.Header, f *spec.Field) {
	k := f.Checksum
	if !k.Verify {
		return
	}
	what := ""
	switch {
	case k.Covers != "header":
		what = "it covers what follows the header"
	case h.Varies() && h.MaxBytes() > 64:
		what = "the size of the header varies, and may be more than 64 bytes"
	case len(k.Pseudo) > 0:
		what = "it has a pseudo-header"
	case k.Optional || k.Offloaded || len(k.Absent) > 0:
		what = "it may be absent or left to a device"
	default:
		return
	}
	c.diags.Add(code.Header, k.Pos, "checksum %q can't be verified: %s", f.Name.Value, what).
		WithHint("leave `verify` out: who receives the packet looks at the checksum")
}
