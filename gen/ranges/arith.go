package ranges

import (
	"math/bits"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Arith returns what the result of an operator may be that computes an integer of two others, unsigned and of 64 bits.
func Arith(op ir.BinOp, x, y Set) Set {
	c, constant := y.Single()
	lowX, lowY, highX, highY := x.Min().Lo, y.Min().Lo, x.Max().Lo, y.Max().Lo
	switch op {
	case ir.Add:
		if constant {
			return x.Plus(c.Lo)
		}
		if high, carry := bits.Add64(highX, highY, 0); carry == 0 {
			return Between(Small(lowX+lowY), Small(high))
		}
	case ir.Sub:
		switch {
		case constant:
			return x.Plus(-c.Lo)
		case lowX >= highY:
			return Between(Small(lowX-highY), Small(highX-lowY))
		}
	case ir.Mul:
		if over, high := bits.Mul64(highX, highY); over == 0 {
			return Between(Small(lowX*lowY), Small(high))
		}
	case ir.Div:
		if constant && c.Lo > 0 {
			return x.Each(func(v uint64) uint64 { return v / c.Lo })
		}
	case ir.Rem:
		switch {
		case !constant || c.Lo == 0:
		case highX < c.Lo:
			return x
		default:
			return UpTo(c.Lo - 1)
		}
	case ir.And:
		return UpTo(min(highX, highY))
	case ir.Or:
		return Between(Small(max(lowX, lowY)), Small(ones(highX|highY)))
	case ir.Xor:
		return UpTo(ones(highX | highY))
	case ir.Shl:
		if constant && c.Lo < 64 && bits.Len64(highX)+int(c.Lo) <= 64 {
			return x.Each(func(v uint64) uint64 { return v << c.Lo })
		}
	case ir.Shr:
		if constant && c.Lo < 64 {
			return x.Each(func(v uint64) uint64 { return v >> c.Lo })
		}
	}
	return AnyUint
}

// ones is the largest integer of as many bits as v has.
func ones(v uint64) uint64 { return 1<<bits.Len64(v) - 1 }
