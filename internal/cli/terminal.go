package cli

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// terminal reports whether w is a terminal that a person looks at.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// colored reports whether colours may be used on w (https://no-color.org).
func colored(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && terminal(w)
}

// height returns the number of lines of the terminal w, or 0.
func height(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Row)
}
