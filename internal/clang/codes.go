package clang

import "github.com/fastrelay/fastrelay-gen/internal/diag"

var (
	codeClang = diag.Define("FR0901", "clang refuses the generated C",
		`The C that fastrelay-gen made of the spec doesn't compile. That is a fault of fastrelay-gen, not of the spec: please report
it, with the folder that the message names. It holds the spec's plan, the C, and what clang says.

A change of the part of the spec that the message points to may help until then.`,
		"$ fastrelay-gen build spec.cue     # says the line of the spec, and the folder",
		"$ ls fastrelay-failure             # what a report needs\nfastrelay.h  log.txt  plan.txt  relay.bpf.c")
	codeNotFound = diag.Define("FR0903", "no clang that will do",
		`The C that is generated takes clang 14 or newer, with its llvm-strip, to compile. The message names each clang that was found in
PATH, and what is wrong with it. clang-19 is taken where it is there, else the newest one; objects are the same for the same version only.`,
		"$ clang --version                  # and no other one\nclang version 11.0.1\n$ fastrelay-gen build spec.cue",
		"$ apt-get install clang-19 llvm-19\n$ fastrelay-gen build spec.cue")
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
