// Package resetkey has the key from which the next process at an address knows what this one has promised to peers: the
// tokens of stateless resets (RFC 9000, section 10.3).
package resetkey

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// File reads a key of 32 bytes, as hexadecimal digits, from a file; if there is none, it makes one with mode 0600.
func File(file string) (*[32]byte, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		if err := create(file); err != nil {
			return nil, err
		}
		f, err = os.Open(file)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("%s: every user may use this key, and end sessions with it: chmod o= %s", file, file)
	}
	text, err := io.ReadAll(io.LimitReader(f, 1024))
	if err != nil {
		return nil, err
	}
	b, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(b) != 32 {
		return nil, fmt.Errorf("%s: a key has 64 hexadecimal digits; remove the file, and a key is made", file)
	}
	return (*[32]byte)(b), nil
}

// create makes a key, unless another process makes one at the same time.
func create(file string) error {
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*") // of mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	_, err = fmt.Fprintln(f, hex.EncodeToString(key[:]))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), file); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
