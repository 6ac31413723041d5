package server

import "time"

// await looks every millisecond whether a condition holds that nothing announces, in the kernel or on the wire, and
// says whether it did within the limit.
func await(limit time.Duration, holds func() bool) bool {
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		switch {
		case holds():
			return true
		case !time.Now().Before(end):
			return false
		}
	}
}
