// Package cli is the command line. [Do] runs one command and returns its exit status; nothing below it ends the
// process or touches the process's own streams, so that a test can run any command.
//
// Exit status: 0 success, 1 an error (in the spec, on the command line, or of the machine), 2 something differs from
// what it should be (`build --check`, `fmt -l`).
package cli
