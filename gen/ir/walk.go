package ir

// Walk calls visit for an expression and all that are in it, from the outside in. nil is no expression.
func Walk(e Expr, visit func(Expr)) {
	if e == nil {
		return
	}
	visit(e)
	switch e := e.(type) {
	case *Bin:
		Walk(e.X, visit)
		Walk(e.Y, visit)
	case *Not:
		Walk(e.X, visit)
	case *BytesEq:
		Walk(e.X, visit)
		Walk(e.Y, visit)
	case *InPrefix:
		Walk(e.X, visit)
	case *IsV4:
		Walk(e.X, visit)
	case *Unicast:
		Walk(e.X, visit)
	case *Multicast:
		Walk(e.X, visit)
	case *ByteAt:
		Walk(e.X, visit)
	case *Pick:
		Walk(e.If, visit)
		Walk(e.Then, visit)
		Walk(e.Else, visit)
	case *VarintWord:
		Walk(e.X, visit)
	}
}
