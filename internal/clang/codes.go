package clang

import "github.com/fastrelay/fastrelay-gen/internal/diag"

var (
	codeClang = diag.Define("FR0901", "clang refuses the generated C",
		`The C that fastrelay-gen made of the spec doesn't compile. That is a fault of fastrelay-gen, not of the spec: please report
it, with the folder that the message names. It holds the spec's plan, the C, and what clang says.

A change of the part of the spec that the message points to may help until then.`,
		"$ fastrelay-gen build spec.cue     # says the line of the spec, and the folder",
		"$ ls fastrelay-failure             # what a report needs\nfastrelay.h  log.txt  plan.txt  relay.bpf.c")
	codeVerifier = diag.Define("FR0902", "the kernel's verifier rejects a program",
		`Before the kernel runs a program, its verifier proves that the program can do no harm. Here the proof failed. Where the
kernel is older than what the plan needs (fastrelay-gen doctor says so), that is the reason. Else it is a fault of
fastrelay-gen, not of the spec: please report it, with the folder that the message names. It holds the spec's plan, the C, the
object, and all that the verifier says.

A change of the part of the spec that the message points to may help until then: fewer alternatives in a stack, smaller bounds of
variable fields, less in one program.`,
		"$ uname -r                         # older than the spec's needs: kernel\n5.4.0\n$ fastrelay-gen run spec.cue --attach to_peer=eth0",
		"$ fastrelay-gen doctor             # says what this kernel has")
)
