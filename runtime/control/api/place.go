package api

import (
	"os"
	"path/filepath"
	"strings"
)

// DefaultFolder is where sockets are found by the names of their relays.
const DefaultFolder = "/run/fastrelay"

// Folder returns where sockets are found by the names of their relays: DefaultFolder, or what the environment variable
// FASTRELAY_SOCKETS says.
func Folder() string {
	if dir := os.Getenv("FASTRELAY_SOCKETS"); dir != "" {
		return dir
	}
	return DefaultFolder
}

// PathOf returns the path of a socket: a name without a slash is that of a relay, whose socket is in Folder.
func PathOf(nameOrPath string) string {
	if strings.Contains(nameOrPath, "/") {
		return nameOrPath
	}
	return filepath.Join(Folder(), nameOrPath+".sock")
}
