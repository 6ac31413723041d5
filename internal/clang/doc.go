// Package clang drives the compiler that makes a BPF object of generated C, and brings what it or the kernel's verifier
// has to say back to the line of the spec that it is about.
//
// Compile runs in an empty folder that holds the generated C and its header, so that neither the spec's text nor the
// name of any folder gets into the object: the same C and the same clang make the same bytes anywhere. DWARF is taken
// out; BTF, with the line information that #line has directed to the spec, stays.
package clang
