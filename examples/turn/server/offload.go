package server

import (
	"errors"
	"io"
	"log/slog"
)

// offload is the kernel's part of a server.
type offload struct {
	why string // why there is none
}

func startOffload(config Config, log *slog.Logger) *offload {
	return &offload{why: "none yet"}
}

func (o *offload) open(channel) (io.Closer, error) { return nil, errors.New(o.why) }
func (o *offload) close() error                    { return nil }
func (o *offload) outcomes() ([]Outcome, error)    { return nil, nil }
func (o *offload) state() (bool, string)           { return false, o.why }
