package glue

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// literal writes a description as a Go literal, without fields that are zero.
func literal(d abi.Desc) string {
	var b strings.Builder
	writeLiteral(&b, reflect.ValueOf(d), true, 0)
	return b.String()
}

// constants are the names of kinds in Go.
var constants = map[any]string{
	abi.KindUint: "KindUint", abi.KindBool: "KindBool", abi.KindBytes: "KindBytes", abi.KindMAC: "KindMAC",
	abi.KindAddr:     "KindAddr",
	abi.KindEndpoint: "KindEndpoint", abi.KindPrefix: "KindPrefix", abi.KindNextHop: "KindNextHop",
	abi.KindHop:     "KindHop",
	abi.KindCounter: "KindCounter", abi.KindCredit: "KindCredit", abi.KindBucket: "KindBucket",
	abi.KindTranslation: "KindTranslation", abi.KindData: "KindData",
	abi.TableHash: "TableHash", abi.TableLRU: "TableLRU", abi.TableArray: "TableArray", abi.TableLPM: "TableLPM",
	abi.ReasonSent: "ReasonSent", abi.ReasonPassed: "ReasonPassed", abi.ReasonDropped: "ReasonDropped",
	abi.ReasonPunted: "ReasonPunted",
	abi.ReasonFault:  "ReasonFault", abi.ReasonCopied: "ReasonCopied", abi.ReasonDeclined: "ReasonDeclined",
	abi.HookIngress: "HookIngress", abi.HookEgress: "HookEgress",
	abi.HookCongestion: "HookCongestion", abi.HookXDP: "HookXDP",
}

// writeLiteral writes a value; typed says whether a struct or slice has to name its type, which it needn't within a
// slice. The line that it begins in is indented by so many tabs.
func writeLiteral(b *strings.Builder, v reflect.Value, typed bool, tabs int) {
	switch x := v.Interface().(type) {
	case abi.Kind, abi.TableKind, abi.ReasonKind, abi.Hook:
		b.WriteString("abi." + constants[x])
		return
	case time.Duration:
		fmt.Fprintf(b, "%d", x)
		return
	case net.HardwareAddr:
		fmt.Fprintf(b, "net.HardwareAddr{%s}", byteList(x))
		return
	case netip.Addr:
		fmt.Fprintf(b, "netip.MustParseAddr(%q)", x.String())
		return
	}
	typ := ""
	if typed {
		typ = v.Type().String()
	}
	switch v.Kind() {
	case reflect.Pointer:
		b.WriteByte('&')
		writeLiteral(b, v.Elem(), true, tabs)
	case reflect.Struct:
		writeStruct(b, v, typ, tabs)
	case reflect.Slice, reflect.Array:
		b.WriteString(typ + "{")
		lines := v.Type().Elem().Kind() == reflect.Struct
		for i := range v.Len() {
			if lines {
				b.WriteString("\n")
			}
			writeLiteral(b, v.Index(i), false, tabs+btoi(lines))
			b.WriteString(",")
		}
		if lines {
			b.WriteString("\n")
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
		writeLiteral(b, v.Elem(), true, tabs)
	default:
		panic(fmt.Sprintf("glue: no literal for %v", v.Type()))
	}
}

// writeStruct writes the fields that aren't zero.
func writeStruct(b *strings.Builder, v reflect.Value, typ string, tabs int) {
	b.WriteString(typ + "{")
	lines := v.Type() == reflect.TypeFor[abi.Desc]()
	column := tabs*tab + len(typ+"{")
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			continue
		}
		var f strings.Builder
		f.WriteString(v.Type().Field(i).Name + ": ")
		writeLiteral(&f, v.Field(i), true, tabs+btoi(lines))
		text := f.String()
		first, _, _ := strings.Cut(text, "\n")
		if lines || column+len(first+", },") > columns {
			b.WriteString("\n")
			column = (tabs + 1) * tab
		}
		b.WriteString(text + ",")
		column += len(text[strings.LastIndex(text, "\n")+1:] + ", ")
	}
	if lines {
		b.WriteString("\n")
	}
	b.WriteString("}")
}

func byteList(bs []byte) string {
	var parts []string
	for _, x := range bs {
		parts = append(parts, fmt.Sprintf("0x%02x", x))
	}
	return strings.Join(parts, ", ")
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
