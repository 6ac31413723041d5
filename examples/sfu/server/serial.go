package server

// unwrapper makes numbers that don't wrap out of those that do (RFC 1982, RFC 3550 appendix A.1). The zero value is
// ready.
type unwrapper struct {
	highest int64
	begun   bool
}

// near returns the number that v stands for, the one nearest to the highest so far.
func (u *unwrapper) near(v uint16) int64 {
	if !u.begun {
		return int64(v) + 1<<16 // what comes after the first may be in front of it
	}
	return u.highest + int64(int16(v-uint16(u.highest)))
}

// next is near, and remembers the highest.
func (u *unwrapper) next(v uint16) int64 {
	n := u.near(v)
	if !u.begun || n > u.highest {
		u.highest, u.begun = n, true
	}
	return n
}
