package x
import ("testing";"fmt";"cuelang.org/go/cue/cuecontext";"cuelang.org/go/cue";"cuelang.org/go/cue/parser";"cuelang.org/go/cue/ast")
const src = `
name: "x"
a: b: 3
a: c: 4
let l = [{x: 1}, {y: 2}]
rows: l
m: {q: l[0], if a.b == 3 {z: 9}}
headers: ch: fields: [{name: "n", is: >=0x4000 & <=0x4fff}]
tt: "l4.dst.port": 443 | 8443
k: a.b
"q q": "a" + "b"
kk: {z: 1}
kk: {z: 1}
`
func TestX(t *testing.T){
 f, err := parser.ParseFile("u.cue", src, parser.ParseComments)
 fmt.Println(err)
 ctx := cuecontext.New()
 v := ctx.BuildFile(f)
 var walk func(v cue.Value, ind string)
 walk = func(v cue.Value, ind string){
  s := v.Source()
  op, args := v.Expr()
  lab := ""
  if fd, ok := s.(*ast.Field); ok { lab = fd.Label.Pos().String() }
  fmt.Printf("%s%s pos=%v src=%T lab=%s op=%v nargs=%d kind=%v inc=%v", ind, v.Path(), v.Pos(), s, lab, op, len(args), v.Kind(), v.IncompleteKind())
  for _, a := range args { fmt.Printf(" [%v %T %v]", a.Pos(), a.Source(), a) }
  fmt.Println()
  if it, err := v.Fields(cue.All()); err == nil { for it.Next() { walk(it.Value(), ind+"  ") } }
  if it, err := v.List(); err == nil { for it.Next() { walk(it.Value(), ind+"  ") } }
 }
 walk(v, "")
}
