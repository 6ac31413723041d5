package cli

import "github.com/fastrelay/fastrelay-gen/internal/diag"

// Codes of the command line. Those of writing files are in package build.
var (
	codeUsage = diag.Define("FR0510", "a mistake on the command line",
		"A command, a flag or an argument is unknown, missing or malformed. `fastrelay-gen COMMAND --help`\n"+
			"shows what a command accepts, with an example.",
		"$ fastrelay-gen biuld spec.cue",
		"$ fastrelay-gen build spec.cue")

	codeName = diag.Define("FR0511", "not a name",
		"Names consist of lower-case letters, digits and underscores, and begin with a letter; they become\n"+
			"names in C and in Go.",
		"$ fastrelay-gen init My-Relay",
		"$ fastrelay-gen init my_relay")

	codeExists = diag.Define("FR0512", "a file exists already",
		"`init` never replaces a file.",
		"$ fastrelay-gen init turn\n$ fastrelay-gen init turn",
		"$ fastrelay-gen init turn\n$ fastrelay-gen init turn2")

	codeUnknown = diag.Define("FR0513", "not declared in the spec",
		"A program, header, table, session, group or setting on the command line isn't declared in the spec.",
		"$ fastrelay-gen explain spec.cue --header chanel_data",
		"$ fastrelay-gen explain spec.cue --header channel_data")

	codeValue = diag.Define("FR0514", "a value that doesn't fit",
		"A value on the command line must have the type that the spec declares: 0x4001 or 16385 for an\n"+
			"integer, 192.0.2.1 for an address, 192.0.2.1:3478 or [2001:db8::1]:3478 for an endpoint, 10.0.0.0/8\n"+
			"for a prefix, true or false for a bool; the first value of a counter, the limit of a credit, the\n"+
			"rate a second and the burst of a bucket (125000/30000).",
		"$ sudo fastrelay-gen run spec.cue --attach gate=eth0 --set port=high",
		"$ sudo fastrelay-gen run spec.cue --attach gate=eth0 --set port=3478")

	codeFile = diag.Define("FR0515", "a file can't be read",
		"The file on the command line doesn't exist, is a folder, or may not be read. The message says which,\n"+
			"and which file may be meant.",
		"$ fastrelay-gen build .",
		"$ fastrelay-gen build spec.cue")

	codeRun = diag.Define("FR0516", "the relay can't run",
		"The kernel or the machine refuses to load or to attach the relay: a missing right, a kernel that is\n"+
			"too old, an interface that doesn't exist. Nothing is left attached. `fastrelay-gen doctor` shows\n"+
			"what the machine lacks.",
		"$ sudo fastrelay-gen run spec.cue --attach gate=eth9",
		"$ sudo fastrelay-gen run spec.cue --attach gate=eth0")

	codeCode = diag.Define("FR0517", "no such code",
		"Codes look like FR0107; every message has one in brackets. `fastrelay-gen explain` without an\n"+
			"argument lists all codes.",
		"$ fastrelay-gen explain FR1",
		"$ fastrelay-gen explain FR0201")

	codeFailure = diag.Define("FR0518", "something failed",
		"The operating system, a tool or fastrelay-gen itself failed in a way that has no code of its own.\n"+
			"The message has what is known.",
		"$ fastrelay-gen build spec.cue     # the disk is full",
		"$ df . && fastrelay-gen doctor     # what the machine lacks")

	codeNoHeaders = diag.Define("FR0519", "no headers to show",
		"Wireshark knows the standard headers. A dissector shows headers that the spec declares, where they\n"+
			"are in the stack of a program, after Ethernet, IP, UDP or TCP.",
		"$ fastrelay-gen dissector spec.cue     # only standard headers are in its stacks",
		"$ fastrelay-gen dissector spec.cue")

	codeCapture = diag.Define("FR0530", "a capture can't be read",
		"`try` reads pcap and pcapng files, also compressed by gzip. The file is something else, or it is damaged or\n"+
			"cut off: then the packets in front of that place were tried.",
		"$ fastrelay-gen try spec.cue spec.cue",
		"$ fastrelay-gen try spec.cue capture.pcapng")

	codeNoTest = diag.Define("FR0531", "a packet that no test can have",
		"`try --test` writes a packet as a test of the spec. The capture has only its first bytes, its link\n"+
			"layer isn't one that programs get packets from, or a test can't express what the program does with\n"+
			"it: the message says which.",
		"$ fastrelay-gen try spec.cue capture.pcapng --test 3     # captured with -s 64",
		"$ fastrelay-gen try spec.cue capture.pcapng --test 4")

	codeRelay = diag.Define("FR0525", "a running relay can't be asked, or refuses",
		"A command for a running relay found no control socket, may not use it, or was refused: the message\n"+
			"says what is wrong with which value. `fastrelay-gen ps` lists the relays of this machine.",
		"$ sudo fastrelay-gen show --socket trun",
		"$ sudo fastrelay-gen ps       # lists the relays that run here")
)
