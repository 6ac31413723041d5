package build

import "github.com/fastrelay/fastrelay-gen/internal/diag"

// Codes of the command line and of what it writes.
var (
	codeForeign = diag.Define("FR0501", "a file is in the way",
		"`build` only replaces files that it has written itself: those that its manifest lists, and those that say in their first "+
			"lines that fastrelay-gen generated them. Choose another folder with `-o`, or move the file away.",
		"$ ls turnrelay/\nrelay.go        # written by hand\n$ fastrelay-gen build spec.cue -o turnrelay",
		"$ fastrelay-gen build spec.cue -o internal/turnrelay")

	codePackage = diag.Define("FR0502", "not a package name",
		"The generated package needs a name that Go accepts: lower-case letters and digits, beginning with a letter, and no word of Go's own.",
		"$ fastrelay-gen build spec.cue --package turn-relay",
		"$ fastrelay-gen build spec.cue --package turnrelay")

	codeWrite = diag.Define("FR0503", "the output can't be written",
		"A file or a folder could not be written, and nothing was changed. The message of the operating system says why: a missing right, a full disk, "+
			"a file where a folder should be.",
		"$ fastrelay-gen build spec.cue -o /proc/relay",
		"$ fastrelay-gen build spec.cue -o turnrelay")

	codeContradiction = diag.Define("FR0504", "a fault of the compiler: the plan contradicts itself",
		"Before anything is written, `build` and `vet` run each program in the reference model, on some thousand random packets and tables. This plan "+
			"can't be executed: it would have dropped or spoiled packets. That is never the spec's fault. The message says at which line of the spec it happened; "+
			"a report needs the spec, the packet that the message shows, and what `fastrelay-gen version` prints. A rule written in another way may do meanwhile.",
		"$ fastrelay-gen build spec.cue     # whatever the spec says, this is not the answer to expect",
		"$ fastrelay-gen version            # with the spec and the message, all that a report needs")
)
