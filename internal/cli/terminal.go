package cli

import (
	"fmt"
	"io"
	"os"
)

// terminal reports whether w is a terminal that a person looks at.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	return isTerminal(f)
}

// colored reports whether colours may be used on w (https://no-color.org).
func colored(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && terminal(w)
}

// size returns the columns and lines of the terminal w, or 0.
func size(w io.Writer) (width, height int) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0
	}
	return terminalSize(f)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
