// Package specgen tests the compiler with random specs. Generate makes a well-typed spec of a seed; a Pipeline takes a
// spec through every stage (load, compile, render, clang, the kernel's verifier, random packets in the model and in the
// kernel) and says where it failed; Shrink makes a failing spec small.
//
// What a generated spec may be refused for are restrictions that the language documents (a packet that can't be resized
// safely, a header of variable length that would have to be pushed). Everything else that goes wrong with a generated
// spec is a fault of this project.
package specgen
