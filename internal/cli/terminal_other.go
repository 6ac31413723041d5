//go:build !linux

package cli

import "os"

// isTerminal: elsewhere output has no colors. `run`, which redraws a table, is for Linux.
func isTerminal(*os.File) bool { return false }

func terminalSize(*os.File) (width, height int) { return 0, 0 }
