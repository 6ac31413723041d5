package build

import "github.com/fastrelay/fastrelay-gen/internal/diag"

// Codes of the command line and of what it writes.
var (
	codeForeign = diag.Define("FR0501", "a file is in the way",
		"`build` only replaces files that it has written itself: those that its manifest lists, and those that say in their first "+
			"lines that fastrelay-gen generated them. Choose another folder with `-o`, or move the file away.",
		"$ ls relay/\nrelay.go        # written by hand\n$ fastrelay-gen build spec.cue",
		"$ fastrelay-gen build spec.cue -o turnrelay")

	codePackage = diag.Define("FR0502", "not a package name",
		"The generated package needs a name that Go accepts: lower-case letters and digits, beginning with a letter, and no word of Go's own.",
		"$ fastrelay-gen build spec.cue --package turn-relay",
		"$ fastrelay-gen build spec.cue --package turnrelay")

	codeWrite = diag.Define("FR0503", "the output can't be written",
		"A file or a folder could not be written, and nothing was changed. The message of the operating system says why: a missing right, a full disk, "+
			"a file where a folder should be.",
		"$ fastrelay-gen build spec.cue -o /proc/relay",
		"$ fastrelay-gen build spec.cue -o relay")
)
