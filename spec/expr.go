package spec

import (
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// ExprOp is the kind of an expression node.
type ExprOp int

const (
	OpInt    ExprOp = iota // Int
	OpBool                 // Int is 0 or 1
	OpName                 // Path: a dotted name ("udp.src.port", "ch", "setting.port")
	OpIndex                // Args[0][Args[1]]: one byte of a bytes value, or the value of a level of priority
	OpMember               // Args[0].Path[0]: a member of what an index finds
	OpCall                 // Fn(Args...): len, low
	OpNot                  // !x
	OpInv                  // ^x
	OpNeg                  // -x
	OpMul                  // Go's binary operators, with Go's precedence
	OpDiv
	OpRem
	OpShl
	OpShr
	OpAnd
	OpAndNot
	OpAdd
	OpSub
	OpOr
	OpXor
	OpEq
	OpNe
	OpLt
	OpLe
	OpGt
	OpGe
	OpLand
	OpLor
)

// Expr is a parsed expression. Pos covers the node's own text.
type Expr struct {
	Op   ExprOp
	Int  uint64
	Path []Name
	Fn   Name
	Args []*Expr
	Pos  diag.Pos
}
