package live

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/turn/turnrelay"
	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// lease is long, since other work of the machine may hold up what renews it.
const lease = time.Minute

// roomBuilt is for how many sessions examples/turn has room.
const roomBuilt = 4096

// load loads the relay of examples/turn: as it is in the repository, whose folder is root, or with more room.
func load(root string, sessions int) (*runtime.Relay, error) {
	if sessions <= roomBuilt {
		r, err := turnrelay.Load(turnrelay.Options{Lease: lease})
		if err != nil {
			return nil, err
		}
		return r.Runtime(), nil
	}
	built, err := withRoom(root, sessions)
	if err != nil {
		return nil, err
	}
	desc := glue.Desc(built.Plan)
	return runtime.Load(&desc, built.Object(), runtime.Options{Lease: lease})
}

// withRoom compiles the spec with another size.
func withRoom(root string, sessions int) (*build.Result, error) {
	text, err := os.ReadFile(filepath.Join(root, "examples", "turn", "spec.cue"))
	if err != nil {
		return nil, err
	}
	size := fmt.Appendf(nil, "size: %d", roomBuilt)
	if bytes.Count(text, size) != 1 {
		return nil, fmt.Errorf("the spec of examples/turn doesn't say %s once", size)
	}
	dir, err := os.MkdirTemp("", "bench-room-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "spec.cue")
	text = bytes.Replace(text, size, fmt.Appendf(nil, "size: %d", sessions), 1)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	built, list, err := build.Spec(context.Background(), file, build.Options{})
	return built, errors.Join(err, list.Err())
}
