package wire

// cursor takes fields from b one after the other. Once one isn't whole, short is set, and all that follow are 0: the
// caller looks once.
type cursor struct {
	b     []byte
	at    int
	short bool
}

func (c *cursor) varint() uint64 {
	if c.short {
		return 0
	}
	v, n := ParseVarint(c.b[c.at:])
	if n == 0 {
		c.short = true
	}
	c.at += n
	return v
}

func (c *cursor) uint8() uint8 {
	if c.short || c.at == len(c.b) {
		c.short = true
		return 0
	}
	c.at++
	return c.b[c.at-1]
}

// bytes takes n bytes, which are those of b.
func (c *cursor) bytes(n uint64) []byte {
	if c.short || n > uint64(len(c.b)-c.at) {
		c.short = true
		return nil
	}
	c.at += int(n)
	return c.b[c.at-int(n) : c.at : c.at]
}

// rest takes all that is left, nil if nothing is.
func (c *cursor) rest() []byte {
	if c.at == len(c.b) {
		return nil
	}
	return c.bytes(uint64(len(c.b) - c.at))
}

// properties takes the length and the properties of an object, nil if there are none.
func (c *cursor) properties() (Properties, error) {
	n := c.varint()
	if n > MaxObjectProperties {
		return nil, ErrLimit
	}
	if n == 0 {
		return nil, nil
	}
	return c.bytes(n), nil
}
