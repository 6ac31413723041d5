package cli

import "github.com/fastrelay/fastrelay-gen/internal/diag"

// Codes of the command line. Those of writing files are in package build.
var (
	codeUsage = diag.Define("FR0510", "a mistake on the command line",
		"A command, a flag or an argument is unknown, missing or malformed. `fastrelay-gen COMMAND --help` shows what a command takes, with an example.",
		"$ fastrelay-gen biuld spec.cue",
		"$ fastrelay-gen build spec.cue")

	codeName = diag.Define("FR0511", "not a name",
		"Names are made of lower-case letters, digits and underscores, and begin with a letter; they become names in C and in Go.",
		"$ fastrelay-gen init My-Relay",
		"$ fastrelay-gen init my_relay")

	codeExists = diag.Define("FR0512", "a file exists already",
		"`init` never replaces a file.",
		"$ fastrelay-gen init turn\n$ fastrelay-gen init turn",
		"$ fastrelay-gen init turn\n$ fastrelay-gen init turn2")

	codeUnknown = diag.Define("FR0513", "no such part of the spec",
		"A program, header, table, session, group or setting was named on the command line that the spec doesn't declare.",
		"$ fastrelay-gen explain spec.cue --header chanel_data",
		"$ fastrelay-gen explain spec.cue --header channel_data")

	codeValue = diag.Define("FR0514", "a value that doesn't fit",
		"A value on the command line has to fit the type that the spec gives it: 0x4001 or 16385 for an integer, 192.0.2.1 for an address, "+
			"192.0.2.1:3478 or [2001:db8::1]:3478 for an endpoint, 10.0.0.0/8 for a prefix, true or false for a bool; the first value of a counter, "+
			"the limit of a credit, units a second and a burst (125000/30000) for a bucket.",
		"$ sudo fastrelay-gen run spec.cue --attach gate=eth0 --set port=high",
		"$ sudo fastrelay-gen run spec.cue --attach gate=eth0 --set port=3478")

	codeFile = diag.Define("FR0515", "a file can't be read",
		"The file named on the command line isn't there, is a folder, or may not be read. The message says which, and which file may be meant.",
		"$ fastrelay-gen build .",
		"$ fastrelay-gen build spec.cue")

	codeRun = diag.Define("FR0516", "the relay can't run",
		"The kernel or the machine refuses to load or to attach: a missing right, a kernel that is too old, an interface that isn't there. "+
			"Nothing is left behind. `fastrelay-gen doctor` says what the machine lacks.",
		"$ sudo fastrelay-gen run spec.cue --attach gate=eth9",
		"$ sudo fastrelay-gen run spec.cue --attach gate=eth0")

	codeCode = diag.Define("FR0517", "no such code",
		"Codes look like FR0107, and stand in brackets in every message. `fastrelay-gen explain` without an argument lists them all.",
		"$ fastrelay-gen explain FR1",
		"$ fastrelay-gen explain FR0201")

	codeFailure = diag.Define("FR0518", "something failed",
		"The operating system, a tool or fastrelay-gen itself failed in a way that has no code of its own. The message says what is known.",
		"$ fastrelay-gen build spec.cue     # the disk is full",
		"$ df . && fastrelay-gen doctor     # what the machine lacks")
)
