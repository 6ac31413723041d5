// Package bpf is the back end that turns a plan into C for the kernel.
//
// A program becomes one function that decides, with a function for every way in which a packet can be rewritten:
//
//	prog_P         reads the packet, looks up, guards; ends in fr_up, fr_drop, or one of the
//	prog_P_write1  which compute all that the packet that leaves needs, then change it, then send it
//
// All helpers that a program calls stand in templates/fastrelay.h, so that the generated text shows what a spec means and
// nothing else. Names of a spec appear behind prefixes only (prog_, tbl_, key_, val_, m_, set_, row_, v_, p_), and every other
// text of a spec only in comments that it can't end.
//
// # What the verifier wants
//
// Oldest is Linux 5.10. Each packet access has a check that dominates it: the renderer keeps a record of what was checked on the
// way (checks.go), and adds a check where the plan's reasoning is beyond the verifier's. Offsets that vary are masked where
// they are used, because a kernel forgets the bounds of a spilled scalar, and the pointer that was checked is pinned, because
// clang likes to compute it anew in another way. Keys on the stack are zeroed and written in aligned pieces.
//
// # Lines
//
// Each statement is attributed to its line of the spec by #line, which clang keeps in BTF, so that the verifier's log shows the
// spec. Lines in between belong to the generated file (lines.go).
package bpf
