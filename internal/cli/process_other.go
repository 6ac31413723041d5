//go:build !linux

package cli

// process is one that listens on a socket. Relays run on Linux.
type process struct{}

func listener(string) *process { return nil }

func (p *process) ended() bool { return true }

func (p *process) close() {}
