package cli

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// remove takes away what a relay has left whose process is dead. It touches nothing if one lives.
func (a *app) remove(name, pin, socket string) error {
	if p := listener(api.PathOf(socket)); p != nil {
		p.close()
		return &diag.Diagnostic{Code: codeRelay, Message: "a relay runs, and has the socket " + api.PathOf(socket),
			Hint: "end it first: fastrelay-gen stop --socket " + socket}
	}
	pinned, err := runtime.Remove(pin)
	if err != nil && !errors.Is(err, runtime.ErrNotFound) {
		return &diag.Diagnostic{Code: codeRelay, Message: err.Error()}
	}
	rest, err := control.Remove(socket)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &diag.Diagnostic{Code: codeRelay, Message: err.Error()}
	}
	removed := append(pinned, rest...)
	if len(removed) == 0 {
		d := &diag.Diagnostic{Code: codeRelay,
			Message: "there is nothing of a relay " + name + ": neither " + pin + " nor " + api.PathOf(socket),
			Hint:    "with --pin or --socket of run, give them here as well"}
		if others := pinnedRelays(); len(others) > 0 {
			d.Hint += "; pinned are " + strings.Join(others, ", ")
		}
		return d
	}
	return a.print(map[string]any{"removed": removed}, strings.Join(removed, "\n")+"\n")
}
