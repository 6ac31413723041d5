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
			"Until it is fixed, changing the part of the spec that the message points to may help.",
		"$ uname -r                         # older than the spec's needs: kernel\n5.4.0\n$ fastrelay-gen run "+
			"spec.cue --attach to_peer=eth0",
		"$ fastrelay-gen doctor             # says what this kernel has")
	codeStack = diag.Define("FR0904", "a program needs too much stack",
		"A program and the functions that it calls have 512 bytes of stack in the kernel, in which clang keeps\n"+
			"the values that don't fit into ten registers. All that a rule writes is read or computed before the\n"+
			"first byte is written, so rules that change many headers need much; and what a fan-out does for each\n"+
			"receiver is a function of its own, which comes on top of the largest of the other rules. The message\n"+
			"says how many bytes are for what, at the line that needs most. Two programs, each with some of the\n"+
			"rules, each have a stack of their own.\n"+
			"\n"+
			"The bytes are those of the compiled program, so build, test --kernel and run say this, and vet doesn't.\n"+
			"Before Linux 6.9 each function's bytes are rounded up to 32, since then to 16: with `kernel: \"6.9\"`\n"+
			"in the spec, or a newer one, the latter counts.",
		`stack: ["eth", "ip", "udp", "tag", {inner: ["eth", "ip"]}, {last: ["udp", "tcp"]}] // and 13 ways to send`,
		`stack: ["eth", "ip", "udp", "tag", {inner: ["eth", "ip"]}, {last: ["udp"]}] // and another program for TCP`)
	codePaths = diag.Define("FR0905", "a program has more paths than the verifier follows",
		"Before the kernel runs a program, its verifier follows the paths through it, and gives up after a\n"+
			"million instructions. Alternatives and optional headers in a stack, fields of variable length, and\n"+
			"rules with conditions of their own multiply the paths of all that comes after them. Fewer of them,\n"+
			"smaller bounds, or two programs, each with some of the alternatives or rules, are within the limit:\n"+
			"it counts for each program.\n"+
			"\n"+
			"The paths are those of the compiled program in this kernel, so test --kernel and run say this, and vet\n"+
			"and build don't. Newer kernels follow fewer instructions for the same program.",
		`stack: ["eth", "vlan?", "ip", {l4: ["udp", "tcp"]}, {inner: ["eth", "ip"]}, {last: ["udp", "tcp"]}]`,
		`stack: ["eth", "ip", "udp", {inner: "ip"}, {last: ["udp", "tcp"]}] // and another program for the others`)
)
