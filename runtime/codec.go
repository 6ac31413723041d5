package runtime

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// A Codec lays values out as the kernel has them, or reads them. Generated code has one function for each key, row and
// list of fields, which serves both ways: it calls what fits the kind of each member, in the order of the spec.
//
//	func peersRow(c *runtime.Codec, row *PeersRow) {
//		c.Addr(&row.Local)
//		runtime.Uint(c, &row.VNI)
//		runtime.Each(c, row.Credit[:], (*runtime.Codec).Credit) // one for each level of priority
//	}
//
// A value that doesn't fit makes what calls the function fail with a [*ValueError].
type Codec struct {
	layout
	values
	reading bool
	refer   func(member, level int) handle // reading: what a member refers to

	member int // of the layout: the one whose turn it is
	level  int // -1: all of the member
	err    error
}

// layout is where values are in memory.
type layout struct {
	where   string // for errors
	members []abi.Member
	size    int
}

// values are those of the members of a layout.
type values struct {
	data  []byte
	given [][]handle // by member: what is given for those that refer to state; nil: nothing
}

// part is the memory of a member.
func (l layout) part(data []byte, member int) []byte {
	m := &l.members[member]
	return m.In(data)
}

// wrong is the error for the value of a member.
func (l layout) wrong(m *abi.Member, v any, reason string) error {
	return &ValueError{Where: l.where + ", " + strconv.Quote(m.Name), Value: v, Reason: reason}
}

// encode lays values out.
func (l layout) encode(write func(c *Codec)) (values, error) {
	c := Codec{layout: l, values: values{data: make([]byte, l.size)}, member: -1, level: -1}
	write(&c)
	return c.values, c.err
}

// decode reads values. Members that refer to state have what refer says.
func (l layout) decode(data []byte, refer func(member, level int) handle, read func(c *Codec)) {
	read(&Codec{layout: l, values: values{data: data}, reading: true, refer: refer, member: -1, level: -1})
}

// next turns to the next member, unless its levels are being visited, and returns it with its bytes.
func (c *Codec) next() (*abi.Member, []byte) {
	if c.level < 0 {
		for c.member++; c.member < len(c.members) && c.members[c.member].Hidden; c.member++ {
		}
	}
	if c.member >= len(c.members) {
		c.fail(nil, errors.New("is one more than the spec has"))
		return nil, nil
	}
	m := &c.members[c.member]
	b := c.part(c.data, c.member)
	if c.level >= 0 && !m.Kind.IsState() {
		size := m.Size / m.Levels
		b = b[c.level*size : (c.level+1)*size]
	}
	return m, b
}

// fail notes the first error.
func (c *Codec) fail(v any, err error) {
	if c.err != nil {
		return
	}
	m := &abi.Member{} // there is no such member
	if c.member < len(c.members) {
		m = &c.members[c.member]
	}
	reason := err.Error()
	if c.level >= 0 {
		reason += fmt.Sprintf(" (level %d)", c.level)
	}
	c.err = c.wrong(m, v, reason)
}

// plain is what is done with a value that is in the memory itself.
func plain[T any](c *Codec, v *T, put func([]byte, T) error, get func([]byte) T) {
	m, b := c.next()
	switch {
	case m == nil:
	case c.reading:
		*v = get(b)
	default:
		if err := put(b, *v); err != nil {
			c.fail(*v, err)
		}
	}
}

// Uint is an integer.
func Uint[T uint8 | uint16 | uint32 | uint64](c *Codec, v *T) {
	m, b := c.next()
	switch {
	case m == nil:
	case c.reading:
		*v = T(getUint(b))
	default:
		if err := putBits(b, m.Bits, uint64(*v)); err != nil {
			c.fail(*v, err)
		}
	}
}

// Each is a member that has a value for each level of priority; one is what a single one would be.
func Each[T any](c *Codec, levels []T, one func(*Codec, *T)) {
	m, _ := c.next()
	if m == nil {
		return
	}
	if len(levels) != m.Levels {
		c.fail(levels, wrongLevels(len(levels), m.Levels))
		return
	}
	for i := range levels {
		c.level = i
		one(c, &levels[i])
	}
	c.level = -1
}

func wrongLevels(given, want int) error {
	return fmt.Errorf("has %d values, must have %d: one for each level of priority", given, want)
}

// Bool is a bool.
func (c *Codec) Bool(v *bool) { plain(c, v, putBool, getBool) }

// Bytes is bytes of a fixed number.
func (c *Codec) Bytes(v []byte) {
	plain(c, &v, putBytes, func(b []byte) []byte { copy(v, b); return v })
}

// MAC is a link-layer address.
func (c *Codec) MAC(v *net.HardwareAddr) { plain(c, v, putMAC, getMAC) }

// Addr is an address.
func (c *Codec) Addr(v *netip.Addr) { plain(c, v, putAddr, getAddr) }

// AddrPort is an endpoint.
func (c *Codec) AddrPort(v *netip.AddrPort) { plain(c, v, putEndpoint, getEndpoint) }

// Prefix is a prefix.
func (c *Codec) Prefix(v *netip.Prefix) { plain(c, v, putPrefix, getPrefix) }

// NextHop is the address of a next hop.
func (c *Codec) NextHop(v *netip.Addr) { plain(c, v, putNextHop, getNextHop) }

// refers is what is done with a member that refers to state.
func refers[T any](c *Codec, v **T, to func(h *handle) **T) {
	m, _ := c.next()
	switch {
	case m == nil:
	case c.reading:
		h := c.refer(c.member, max(c.level, 0))
		*v = *to(&h)
	case *v != nil:
		*to(c.give(m, max(c.level, 0))) = *v
	}
}

// give returns the handle of a level of a member, which a caller gives.
func (c *Codec) give(m *abi.Member, level int) *handle {
	if c.given == nil {
		c.given = make([][]handle, len(c.members))
	}
	if c.given[c.member] == nil {
		c.given[c.member] = make([]handle, m.Count())
	}
	return &c.given[c.member][level]
}

// Counter is a counter. If one is given it has to be the row's own; nil stands for it.
func (c *Codec) Counter(v **Counter) { refers(c, v, func(h *handle) **Counter { return &h.counter }) }

// Credit is a credit: the row's own, nil, which stands for it, or what [NewCredit] returned.
func (c *Codec) Credit(v **Credit) { refers(c, v, func(h *handle) **Credit { return &h.credit }) }

// Bucket is a bucket: the row's own, nil, which stands for it, or what [NewBucket] returned.
func (c *Codec) Bucket(v **Bucket) { refers(c, v, func(h *handle) **Bucket { return &h.bucket }) }

// Translation is a translation. If one is given it has to be the row's own; nil stands for it.
func (c *Codec) Translation(v **Translation) {
	refers(c, v, func(h *handle) **Translation { return &h.translation })
}

// encodeAny lays out values without types, in the order of the members that are not hidden.
func (l layout) encodeAny(list []any) (values, error) {
	if names := memberNames(l.members); len(list) != len(names) {
		return values{}, fmt.Errorf("%s: %d values given, %d needed (%s)", l.where, len(list), len(names),
			strings.Join(names, ", "))
	}
	return l.encode(func(c *Codec) {
		for _, v := range list {
			if m, b := c.next(); m.Kind.IsState() {
				c.giveAny(m, v)
			} else if m.Levels == 0 {
				if err := encode(b, m.Kind, m.Bits, v); err != nil {
					c.fail(v, err)
				}
			} else {
				c.eachAny(m, v)
			}
		}
	})
}

// eachAny is Each for a value without a type: an array or a slice.
func (c *Codec) eachAny(m *abi.Member, v any) {
	levels := reflect.ValueOf(v)
	if !levels.IsValid() || levels.Kind() != reflect.Array && levels.Kind() != reflect.Slice {
		c.fail(v, typeError(v, fmt.Sprintf("an array of %d values, one for each level of priority,", m.Levels)))
		return
	}
	if levels.Len() != m.Levels {
		c.fail(v, wrongLevels(levels.Len(), m.Levels))
		return
	}
	for c.level = range m.Levels {
		_, b := c.next()
		if err := encode(b, m.Kind, m.Bits, levels.Index(c.level).Interface()); err != nil {
			c.fail(v, err)
		}
	}
	c.level = -1
}

// giveAny notes what is given for a member that refers to state.
func (c *Codec) giveAny(m *abi.Member, v any) {
	all, err := handlesOf(m, v)
	if err != nil {
		c.fail(v, err)
		return
	}
	for level, h := range all {
		*c.give(m, level) = h
	}
}

// decodeAny is the inverse of encodeAny.
func (l layout) decodeAny(data []byte, refer func(member, level int) handle) (list []any) {
	l.decode(data, refer, func(c *Codec) {
		for range memberNames(l.members) {
			m, b := c.next()
			switch {
			case m.Kind.IsState():
				list = append(list, anyState(m, func(level int) handle { return refer(c.member, level) }))
			case m.Levels == 0:
				list = append(list, decode(b, m.Kind))
			default:
				var all []any
				for one := range slices.Chunk(b, m.Size/m.Levels) {
					all = append(all, decode(one, m.Kind))
				}
				list = append(list, all)
			}
		}
	})
	return list
}
