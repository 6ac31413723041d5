package clang

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// keptVar names a folder where objects are kept, by the C and the clang that they are made of. Objects are
// reproducible, so a kept one is what clang would make; a suite whose packages compile the same specs compiles each
// once.
const keptVar = "FASTRELAY_OBJECTS"

// kept returns the file in which an object is kept; "": nowhere.
func kept(tool *Tool, source, header string, opt Options) string {
	dir := os.Getenv(keptVar)
	if dir == "" {
		return ""
	}
	key := sha256.Sum256([]byte(tool.Clang + " " + tool.Version + " " + Digest(source, header, opt)))
	return filepath.Join(dir, fmt.Sprintf("%x.o", key))
}

// keep writes an object for others to find, whole or not at all. If that isn't possible, they compile it again.
func keep(file string, object []byte) {
	if os.MkdirAll(filepath.Dir(file), 0o755) != nil {
		return
	}
	part, err := os.CreateTemp(filepath.Dir(file), ".part-")
	if err != nil {
		return
	}
	_, err = part.Write(object)
	if err = errors.Join(err, part.Close()); err == nil {
		err = os.Rename(part.Name(), file)
	}
	if err != nil {
		os.Remove(part.Name())
	}
}
