// Package nldump reads lists by netlink which may change meanwhile.
package nldump

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// attempts are made at most: a list that always changes meanwhile is an error.
const attempts = 5

// List reads a list from the kernel. If the list changed while it was read, it is read again.
func List[T any](read func() ([]T, error)) (list []T, err error) {
	for range attempts {
		if list, err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}
