//go:build !linux

package cli

import "github.com/fastrelay/fastrelay-gen/runtime/control/api"

// runStats: relays run on Linux.
type runStats struct{}

func openRunStats() *runStats { return &runStats{} }

func (*runStats) close() {}

func (*runStats) nanos([]api.Program) map[string]float64 { return nil }
