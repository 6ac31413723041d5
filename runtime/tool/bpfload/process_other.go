//go:build !linux

package bpfload

// Room does nothing where no relay runs.
func Room(int) error { return nil }

func fileLimit() uint64 { return 0 }

func self() process { return process{} }
