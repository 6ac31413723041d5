package testnet

import (
	"fmt"
	"time"
)

// Until waits for a condition, up to ten times as long as the given limit, since the machine may be busy or stall. what
// describes the condition in the error.
func Until(limit time.Duration, what string, holds func() bool) error {
	limit *= 10
	deadline := time.Now().Add(limit)
	for !holds() {
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v: %s", limit, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
	return nil
}
