package gate

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/gate/gaterelay"
)

// The kernel knows a connection ID before the server issues it: IDs are announced in advance, and wait in a pool. So no
// packet of a client comes too early, and a new connection costs no system call.

// IDLength is the number of bytes of an ID.
const IDLength = 8

const poolSize = 4096

// NewID returns a connection ID that the kernel knows.
func (g *Gate) NewID() (uint64, error) {
	for {
		select {
		case id := <-g.pool:
			if len(g.pool) < poolSize/2 {
				select {
				case g.low <- struct{}{}:
				default:
				}
			}
			return id, nil
		default:
		}
		if err := g.addID(); err != nil {
			return 0, err
		}
	}
}

// addID announces a random ID.
func (g *Gate) addID() error {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	id := binary.BigEndian.Uint64(b[:])
	g.swapping.RLock()
	err := g.relay.Known.Put(id, gaterelay.KnownRow{})
	g.swapping.RUnlock()
	if err != nil {
		return err
	}
	select {
	case g.pool <- id:
	default:
		g.Retire(0, id)
	}
	return nil
}

// fill fills the pool when half of it is used.
func (g *Gate) fill(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.low:
		}
		for ctx.Err() == nil && len(g.pool) < poolSize {
			if err := g.addID(); err != nil {
				if ctx.Err() == nil {
					g.log.Error("connection IDs can't be announced", "error", err)
				}
				break
			}
		}
	}
}

// retirement are IDs that end.
type retirement struct {
	at  time.Time
	ids []uint64
}

// Retire ends IDs after a while, in which packets on their way still pass. Rows are removed together, later.
func (g *Gate) Retire(after time.Duration, ids ...uint64) {
	if len(ids) == 0 {
		return
	}
	g.said.Lock()
	g.retired = append(g.retired, retirement{time.Now().Add(after), ids})
	g.said.Unlock()
}

func (g *Gate) removeRetired(now time.Time) error {
	var due []uint64
	g.said.Lock()
	rest := g.retired[:0]
	for _, r := range g.retired {
		if now.Before(r.at) {
			rest = append(rest, r)
		} else {
			due = append(due, r.ids...)
		}
	}
	g.retired = rest
	g.said.Unlock()
	if len(due) == 0 {
		return nil
	}
	_, err := g.relay.Known.DeleteMany(due...)
	return err
}

// Known returns the number of connection IDs that the kernel knows, those in the pool included.
func (g *Gate) Known() (n int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, err := range g.relay.Known.All() {
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// forgetAll removes the IDs of a server that has ended.
func (g *Gate) forgetAll() error {
	var ids []uint64
	for e, err := range g.relay.Known.All() {
		if err != nil {
			return err
		}
		ids = append(ids, e.Key)
	}
	_, err := g.relay.Known.DeleteMany(ids...)
	return err
}
