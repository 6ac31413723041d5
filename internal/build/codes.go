package build

import "github.com/fastrelay/fastrelay-gen/internal/diag"

// Codes of the command line and of what it writes.
var (
	codeForeign = diag.Define("FR0501", "an existing file would be overwritten",
		"`build` replaces only files that it has written itself: those in its manifest, and those whose first\n"+
			"lines say that fastrelay-gen generated them. Choose another folder with `-o`, or move the file.",
		"$ ls turnrelay/\nrelay.go        # written by hand\n$ fastrelay-gen build spec.cue -o turnrelay",
		"$ fastrelay-gen build spec.cue -o internal/turnrelay")

	codePackage = diag.Define("FR0502", "not a package name",
		"The name of the generated package must be a Go package name: lower-case letters and digits,\n"+
			"beginning with a letter, and not a keyword.",
		"$ fastrelay-gen build spec.cue --package turn-relay",
		"$ fastrelay-gen build spec.cue --package turnrelay")

	codeWrite = diag.Define("FR0503", "the output can't be written",
		"A file or a folder could not be written, and nothing was changed. The message of the operating\n"+
			"system has the cause: a missing right, a full disk, a file in the place of a folder.",
		"$ fastrelay-gen build spec.cue -o /proc/relay",
		"$ fastrelay-gen build spec.cue -o turnrelay")

	codeContradiction = diag.Define("FR0504", "a fault of the compiler: the plan contradicts itself",
		"Before anything is written, `build` and `vet` run each program in the reference model, on some\n"+
			"thousand random packets and tables. This plan can't be executed: it would have dropped or damaged\n"+
			"packets. This is never the fault of the spec. The message names the line of the spec; a report needs\n"+
			"the spec, the packet in the message, and the output of `fastrelay-gen version`. Writing the rule in\n"+
			"another way may avoid it.",
		"$ fastrelay-gen build spec.cue     # whatever the spec says, this is not the answer to expect",
		"$ fastrelay-gen version            # with the spec and the message, all that a report needs")
)
