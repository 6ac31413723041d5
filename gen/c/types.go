package c

import "strings"

// Type is a type as C writes it: "__u32", "const int", "struct packet *".
type Type string

// Pointer is the type of pointers to values of a type.
func Pointer(to Type) Type { return to + " *" }

// StructType is the type of a structure.
func StructType(name string) Type { return Type("struct " + name) }

// IsPointer reports whether a type is that of pointers.
func (t Type) IsPointer() bool { return strings.HasSuffix(string(t), "*") }

// IsConst reports whether a variable of a type never changes.
func (t Type) IsConst() bool { return strings.HasPrefix(string(t), "const ") && !t.IsPointer() }

// Const is the type of variables that never change.
func (t Type) Const() Type { return "const " + t }

// IsScalar reports whether a type is that of an integer or a pointer: 0 is one.
func (t Type) IsScalar() bool {
	return integers[Type(strings.TrimPrefix(string(t), "const "))] || t.IsPointer()
}

// Linkage says who calls a function, and how.
type Linkage int

const (
	Inline   Linkage = iota // other functions; it becomes a part of them
	NoInline                // other functions, or the kernel
	Program                 // the kernel, for each packet
	XDP                     // the kernel, for each frame, in the driver
)

// head is what stands in front of the type of a function's result.
func (l Linkage) head() string {
	return [...]string{"static __always_inline ", "static __noinline ", `SEC("tc") `, `SEC("xdp.frags") `}[l]
}
