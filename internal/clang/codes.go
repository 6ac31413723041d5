package clang

import "github.com/fastrelay/fastrelay-gen/internal/diag"

var (
	codeClang = diag.Define("FR0901", "clang rejects the generated C",
		"The C that fastrelay-gen generated for the spec doesn't compile. This is a fault of fastrelay-gen,\n"+
			"not of the spec: please report it, with the folder that the message names. It has the spec's plan,\n"+
			"the C, and the messages of clang.\n"+
			"\n"+
			"Until it is fixed, changing the part of the spec that the message points to may help.",
		"$ fastrelay-gen build spec.cue     # says the line of the spec, and the folder",
		"$ ls fastrelay-failure             # what a report needs\nfastrelay.h  log.txt  plan.txt  relay.bpf.c")
	codeNotFound = diag.Define("FR0903", "no suitable clang",
		"Compiling the generated C needs clang 14 or newer, with its llvm-strip. The message lists each clang\n"+
			"in PATH, and what is wrong with it. clang-19 is preferred, then the newest one; objects are\n"+
			"identical for the same version only.",
		"$ clang --version                  # and no other one\nclang version 11.0.1\n$ fastrelay-gen build spec.cue",
		"$ apt-get install clang-19 llvm-19\n$ fastrelay-gen build spec.cue")
	codeVerifier = diag.Define("FR0902", "the kernel's verifier rejects a program",
		"Before the kernel runs a program, its verifier proves that the program is safe. Here the proof\n"+
			"failed. If the kernel is older than the plan requires (fastrelay-gen doctor shows it), this is the\n"+
			"cause. Otherwise it is a fault of fastrelay-gen, not of the spec: please report it, with the folder\n"+
			"that the message names. It has the spec's plan, the C, the object, and the log of the verifier.\n"+
			"\n"+
			"Until it is fixed, changing the part of the spec that the message points to may help: fewer\n"+
			"alternatives in a stack, smaller bounds of variable fields, fewer rules in one program.",
		"$ uname -r                         # older than the spec's needs: kernel\n5.4.0\n$ fastrelay-gen run "+
			"spec.cue --attach to_peer=eth0",
		"$ fastrelay-gen doctor             # says what this kernel has")
	codeStack = diag.Define("FR0904", "a program needs too much stack",
		"A program and the functions that it calls have 512 bytes of stack in the kernel, in which clang keeps\n"+
			"the values that don't fit into ten registers. A program whose rules take many headers off, put many\n"+
			"on and send in many ways may need more. Two programs, each with some of the rules, each have a\n"+
			"stack of their own.",
		`stack: ["eth", "ip", "udp", "tag", {inner: ["eth", "ip"]}, {last: ["udp", "tcp"]}] // and 13 ways to send`,
		`stack: ["eth", "ip", "udp", "tag", {inner: ["eth", "ip"]}, {last: ["udp"]}] // and another program for TCP`)
)
