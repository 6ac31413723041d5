package spec

import (
	"fmt"
	"go/scanner"
	"go/token"
	"net/netip"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Expressions are read by precedence climbing over the tokens of go/scanner. go/parser can't be used: names of RFC
// fields such as `type` and `range` are keywords in Go.

const (
	maxExprLength = 1024 // bytes
	maxExprDepth  = 64   // nested operators, parentheses and arguments
)

// textPos is where a text is. If it is exact, the text is in the source as it is, byte for byte; else (it was
// escaped, computed, or has several lines) everything in it has one position.
type textPos struct {
	pos   diag.Pos
	exact bool
}

func (p textPos) at(off, n int) diag.Pos {
	if !p.exact {
		return p.pos
	}
	return p.pos.Add(off, n)
}

var exprOps = map[token.Token]ExprOp{
	token.MUL: OpMul, token.QUO: OpDiv, token.REM: OpRem, token.SHL: OpShl, token.SHR: OpShr, token.AND: OpAnd,
	token.AND_NOT: OpAndNot, token.ADD: OpAdd, token.SUB: OpSub, token.OR: OpOr, token.XOR: OpXor, token.EQL: OpEq,
	token.NEQ: OpNe, token.LSS: OpLt, token.LEQ: OpLe, token.GTR: OpGt, token.GEQ: OpGe, token.LAND: OpLand,
	token.LOR: OpLor,
}

var unaryOps = map[token.Token]ExprOp{token.NOT: OpNot, token.XOR: OpInv, token.SUB: OpNeg}

// withMinus are the tokens of Go that are an operator and a minus here, as in a<-b.
var withMinus = map[token.Token]token.Token{token.ARROW: token.LSS, token.DEC: token.SUB}

// parseExpr parses an expression; every node gets its own position from where the text is.
func parseExpr(text string, where textPos) (e *Expr, d *diag.Diagnostic) {
	if len(text) > maxExprLength {
		return nil, newDiag(codeExpr, where.at(0, 1), "the expression is longer than %d bytes", maxExprLength)
	}
	p := &exprParser{text: text, where: where, file: token.NewFileSet().AddFile("", -1, len(text))}
	p.s.Init(p.file, []byte(text), func(at token.Position, msg string) {
		p.bad = append(p.bad, lexError{at.Offset, msg})
	}, scanner.ScanComments)
	p.next()
	if p.tok == token.EOF {
		return nil, newDiag(codeExpr, where.at(0, len(text)), "an expression is missing")
	}
	e = p.binary(1, 0)
	if p.tok != token.EOF {
		p.unexpected("the end of the expression")
	}
	if p.first != nil {
		return nil, p.first
	}
	return e, nil
}

// exprParser goes on after a mistake, but only the first one is kept: the others may follow from it.
type exprParser struct {
	text  string
	where textPos
	file  *token.File
	s     scanner.Scanner
	first *diag.Diagnostic
	bad   []lexError // of the token just read

	tok   token.Token
	lit   string
	start int  // of the token, in bytes
	end   int  // of the token
	last  int  // end of the token before
	minus bool // - comes next: it is the second byte of the token just read
}

// lexError is what the scanner says about a token.
type lexError struct {
	off int
	msg string
}

func (p *exprParser) fail(off, n int, format string, args ...any) {
	if p.first == nil {
		p.first = newDiag(codeExpr, p.where.at(off, n), format, args...)
	}
}

func (p *exprParser) unexpected(want string) {
	switch {
	case p.tok == token.EOF:
		p.fail(len(p.text), 1, "the expression ends where %s is wanted", want)
	case p.tok == token.ASSIGN:
		p.fail(p.start, 1, "= is not an operator")
		if p.first.Hint == "" {
			p.first.WithHint("== compares")
		}
	case p.address() != "":
		p.noAddress()
	case p.first == nil:
		p.fail(p.start, p.end-p.start, "unexpected %q, want %s", p.text[p.start:p.end], want)
		p.first.Hint = p.otherWord()
	}
	p.tok = token.EOF // nothing that follows can be trusted
}

// otherWord says how a word of other languages is written here.
func (p *exprParser) otherWord() string {
	switch before := strings.Fields(p.text[:p.start]); {
	case p.lit == "and":
		return "&& joins conditions"
	case p.lit == "or":
		return "|| joins alternatives"
	case p.lit == "in":
		return "one of several: x == 1 || x == 2; in a prefix: match: \"ip.src\": \"10.0.0.0/8\""
	case len(before) > 0 && before[len(before)-1] == "not":
		return "! negates"
	}
	return ""
}

// isAddressByte reports whether an address, a prefix or an endpoint may have a character.
func isAddressByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' || c == '.' || c == ':' || c == '/'
}

// address returns the address, the prefix or the endpoint that the token at hand is a part of, or "".
func (p *exprParser) address() string {
	from, to := p.start, p.end
	for from > 0 && isAddressByte(p.text[from-1]) {
		from--
	}
	for to < len(p.text) && isAddressByte(p.text[to]) {
		to++
	}
	text := p.text[from:to]
	_, err1 := netip.ParseAddr(text)
	_, err2 := netip.ParsePrefix(text)
	_, err3 := netip.ParseAddrPort(text)
	if err1 != nil && err2 != nil && err3 != nil {
		return ""
	}
	return text
}

func (p *exprParser) noAddress() {
	if p.first == nil {
		text := p.address()
		p.fail(strings.Index(p.text, text), len(text), "addresses can't be in an expression")
		p.first.WithHint("they belong in a match: \"ip.src\": %q", text)
	}
}

func (p *exprParser) next() {
	if p.tok == token.EOF {
		return
	}
	p.last = p.end
	if p.minus {
		p.tok, p.lit, p.start, p.end, p.minus = token.SUB, "", p.end, p.end+1, false
		return
	}
	for {
		var pos token.Pos
		pos, p.tok, p.lit = p.s.Scan()
		p.start = p.file.Offset(pos)
		if p.tok != token.SEMICOLON || p.lit != "\n" { // else inserted at the end of a line
			break
		}
	}
	p.end = p.start + max(len(p.lit), 1)
	if p.lit == "" {
		p.end = p.start + len(p.tok.String())
	}
	p.end = min(p.end, len(p.text))
	if op, two := withMinus[p.tok]; two {
		p.tok, p.end, p.minus = op, p.end-1, true
	}
	if len(p.bad) > 0 && (!p.tok.IsLiteral() || p.tok == token.INT) { // other literals are wrong in any case
		p.fail(p.bad[0].off, 1, "%s", p.bad[0].msg)
	}
	p.bad = nil
	if p.tok == token.COMMENT {
		p.fail(p.start, p.end-p.start, "a comment can't be in an expression")
		p.tok = token.EOF
	}
}

func (p *exprParser) node(op ExprOp, start int, args ...*Expr) *Expr {
	return &Expr{Op: op, Args: args, Pos: p.where.at(start, p.last-start)}
}

func (p *exprParser) deeper(depth int) bool {
	if depth < maxExprDepth {
		return true
	}
	p.fail(p.start, 1, "the expression is nested more than %d levels deep", maxExprDepth)
	p.tok = token.EOF
	return false
}

func (p *exprParser) binary(precedence, depth int) *Expr {
	start := p.start
	x := p.unary(depth)
	for n := depth; p.tok.Precedence() >= precedence; n++ {
		op, known := exprOps[p.tok]
		if !known || !p.deeper(n) {
			break
		}
		level := p.tok.Precedence()
		p.next()
		y := p.binary(level+1, depth+1)
		x = p.node(op, start, x, y)
	}
	return x
}

func (p *exprParser) unary(depth int) *Expr {
	if !p.deeper(depth) {
		return p.node(OpInt, p.start)
	}
	if op, ok := unaryOps[p.tok]; ok {
		start := p.start
		p.next()
		x := p.unary(depth + 1)
		return p.node(op, start, x)
	}
	return p.postfix(depth)
}

func (p *exprParser) postfix(depth int) *Expr {
	start := p.start
	x := p.operand(depth)
	for p.tok == token.LBRACK || p.tok == token.PERIOD && x.Op == OpIndex {
		dot := p.tok == token.PERIOD
		p.next()
		if dot {
			if !p.isName() {
				p.unexpected("a name")
				break
			}
			name := p.part()
			x = p.node(OpMember, start, x)
			x.Path = []Name{name}
			continue
		}
		index := p.binary(1, depth+1)
		p.expect(token.RBRACK)
		x = p.node(OpIndex, start, x, index)
	}
	return x
}

func (p *exprParser) expect(tok token.Token) {
	if p.tok != tok {
		p.unexpected(strconv.Quote(tok.String()))
		return
	}
	p.next()
}

func (p *exprParser) operand(depth int) *Expr {
	start := p.start
	switch {
	case p.tok == token.INT:
		v, err := strconv.ParseUint(p.lit, 0, 64)
		if err != nil {
			p.fail(p.start, len(p.lit), "%s doesn't fit 64 bits", p.lit)
		}
		p.next()
		x := p.node(OpInt, start)
		x.Int = v
		return x
	case p.tok == token.LPAREN:
		p.next()
		x := p.binary(1, depth+1)
		p.expect(token.RPAREN)
		x.Pos = p.where.at(start, p.last-start)
		return x
	case p.isName():
		return p.name(depth)
	case p.address() != "" && !p.isName():
		p.noAddress()
	case p.tok == token.STRING || p.tok == token.CHAR || p.tok == token.FLOAT || p.tok == token.IMAG:
		p.fail(p.start, p.end-p.start, "%s is not an integer", p.lit)
		if p.tok == token.STRING || p.tok == token.CHAR {
			p.first.WithHint("addresses and other literals belong in a match: \"ip.src\": \"192.0.2.1\"")
		}
	default:
		p.unexpected("a value")
	}
	p.tok = token.EOF
	return p.node(OpInt, start)
}

func (p *exprParser) isName() bool { return p.tok == token.IDENT || p.tok.IsKeyword() }

// part reads one component of a name.
func (p *exprParser) part() Name {
	n := Name{Value: p.lit, Pos: p.where.at(p.start, len(p.lit))}
	if !isName(p.lit) {
		p.fail(p.start, len(p.lit), "%q is not a name", p.lit)
		p.first.Hint = nameRule
	}
	p.next()
	return n
}

// name reads a dotted name, a call, or a truth value.
func (p *exprParser) name(depth int) *Expr {
	start := p.start
	path := []Name{p.part()}
	if p.tok == token.LPAREN {
		p.next()
		var args []*Expr
		for p.tok != token.RPAREN && p.tok != token.EOF {
			args = append(args, p.binary(1, depth+1))
			if p.tok != token.COMMA {
				break
			}
			p.next()
		}
		p.expect(token.RPAREN)
		x := p.node(OpCall, start, args...)
		x.Fn = path[0]
		return x
	}
	for p.tok == token.PERIOD {
		p.next()
		if !p.isName() {
			p.unexpected("a name")
			break
		}
		path = append(path, p.part())
	}
	if word := path[0].Value; len(path) == 1 && (word == "true" || word == "false") {
		x := p.node(OpBool, start)
		if word == "true" {
			x.Int = 1
		}
		return x
	}
	x := p.node(OpName, start)
	x.Path = path
	return x
}

const (
	maxNameLength = 31
	nameRule      = "names are small letters, digits and _, begin with a letter, and have at most 31 characters"
)

func isName(s string) bool {
	if s == "" || len(s) > maxNameLength {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || i > 0 && (c >= '0' && c <= '9' || c == '_') {
			continue
		}
		return false
	}
	return true
}

func newDiag(code diag.Code, pos diag.Pos, format string, args ...any) *diag.Diagnostic {
	return &diag.Diagnostic{Code: code, Pos: pos, Message: fmt.Sprintf(format, args...)}
}

// String returns the expression with all its parentheses, for people and tests.
func (e *Expr) String() string {
	switch e.Op {
	case OpInt:
		return strconv.FormatUint(e.Int, 10)
	case OpBool:
		return strconv.FormatBool(e.Int != 0)
	case OpName:
		parts := make([]string, len(e.Path))
		for i, n := range e.Path {
			parts[i] = n.Value
		}
		return strings.Join(parts, ".")
	case OpIndex:
		return e.Args[0].String() + "[" + e.Args[1].String() + "]"
	case OpMember:
		return e.Args[0].String() + "." + e.Path[0].Value
	case OpCall:
		args := make([]string, len(e.Args))
		for i, a := range e.Args {
			args[i] = a.String()
		}
		return e.Fn.Value + "(" + strings.Join(args, ", ") + ")"
	}
	for tok, op := range unaryOps {
		if op == e.Op {
			return tok.String() + e.Args[0].String()
		}
	}
	for tok, op := range exprOps {
		if op == e.Op {
			return "(" + e.Args[0].String() + " " + tok.String() + " " + e.Args[1].String() + ")"
		}
	}
	return ""
}
