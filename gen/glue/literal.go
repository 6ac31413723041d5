package glue

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/runtime"
)

// literal writes a description as a Go literal, without fields that are zero.
func literal(d runtime.Desc) string {
	var b strings.Builder
	writeLiteral(&b, reflect.ValueOf(d))
	return b.String()
}

var kindNames = map[runtime.Kind]string{
	runtime.KindUint: "KindUint", runtime.KindBool: "KindBool", runtime.KindBytes: "KindBytes", runtime.KindMac: "KindMac",
	runtime.KindAddr: "KindAddr", runtime.KindEndpoint: "KindEndpoint", runtime.KindPrefix: "KindPrefix",
	runtime.KindNextHop: "KindNextHop", runtime.KindHop: "KindHop", runtime.KindCounter: "KindCounter",
}

func writeLiteral(b *strings.Builder, v reflect.Value) {
	switch x := v.Interface().(type) {
	case runtime.Kind:
		b.WriteString("runtime." + kindNames[x])
		return
	case net.HardwareAddr:
		fmt.Fprintf(b, "net.HardwareAddr{%s}", byteList(x))
		return
	case netip.Addr:
		fmt.Fprintf(b, "netip.MustParseAddr(%q)", x.String())
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		// Within a slice, gofmt -s would leave the type out; here only the outermost needs none.
		fmt.Fprintf(b, "%s{", v.Type())
		lines := 0
		for i := range v.NumField() {
			f := v.Field(i)
			name := v.Type().Field(i).Name
			// Kinds are always said, though the first of them is zero.
			if f.IsZero() && name != "Kind" {
				continue
			}
			if nested := f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Struct; nested || lines == 0 && v.Type().Name() == "Desc" {
				b.WriteString("\n")
			}
			fmt.Fprintf(b, "%s: ", name)
			writeLiteral(b, f)
			b.WriteString(", ")
			lines++
		}
		b.WriteString("}")
	case reflect.Slice:
		fmt.Fprintf(b, "%s{", v.Type())
		for i := range v.Len() {
			if v.Type().Elem().Kind() == reflect.Struct {
				b.WriteString("\n")
			}
			writeLiteral(b, v.Index(i))
			b.WriteString(", ")
		}
		if v.Len() > 0 && v.Type().Elem().Kind() == reflect.Struct {
			b.WriteString("\n")
		}
		b.WriteString("}")
	case reflect.Array:
		fmt.Fprintf(b, "%s{", v.Type())
		for i := range v.Len() {
			writeLiteral(b, v.Index(i))
			b.WriteString(", ")
		}
		b.WriteString("}")
	case reflect.String:
		b.WriteString(strconv.Quote(v.String()))
	case reflect.Bool:
		b.WriteString(strconv.FormatBool(v.Bool()))
	case reflect.Int, reflect.Int64:
		b.WriteString(strconv.FormatInt(v.Int(), 10))
	case reflect.Uint8, reflect.Uint64:
		// In an interface the type would be lost.
		if v.Type() == reflect.TypeFor[uint64]() {
			fmt.Fprintf(b, "%#x", v.Uint())
		} else {
			b.WriteString(strconv.FormatUint(v.Uint(), 10))
		}
	case reflect.Interface:
		if v.Elem().Type() == reflect.TypeFor[uint64]() {
			fmt.Fprintf(b, "uint64(%d)", v.Elem().Uint())
			return
		}
		writeLiteral(b, v.Elem())
	default:
		panic(fmt.Sprintf("glue: no literal for %v", v.Type()))
	}
}

func byteList(bs []byte) string {
	var parts []string
	for _, x := range bs {
		parts = append(parts, fmt.Sprintf("0x%02x", x))
	}
	return strings.Join(parts, ", ")
}
