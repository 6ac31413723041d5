package fuzz

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// Case is a difference as it is saved: a state and packets, all bytes in hexadecimal digits in the layouts of
// docs/internals.md.
type Case struct {
	Relay      string            `json:"relay"`
	Spec       string            `json:"spec"` // the folder of its spec
	Text       string            `json:"difference"`
	Settings   map[string]string `json:"settings,omitempty"`
	Conditions []string          `json:"conditions,omitempty"` // of the relay
	Slots      []CaseSlot        `json:"slots,omitempty"`
	Shared     map[int]uint64    `json:"shared,omitempty"`
	Rows       []CaseRow         `json:"rows,omitempty"`
	Groups     []CaseGroup       `json:"groups,omitempty"`
	Credits    []CaseCredit      `json:"credits,omitempty"`
	Names      []CaseTranslation `json:"translations,omitempty"`
	Patience   int               `json:"patience,omitempty"` // packets that pass before user space reads the ring
	Packets    []CasePacket      `json:"packets"`
}

// CaseSlot is an open slot.
type CaseSlot struct {
	Index    int    `json:"index"`
	Gen      uint32 `json:"gen"`
	Deadline uint64 `json:"deadline"`
}

// CaseRow is a row of a table.
type CaseRow struct {
	Table string `json:"table"`
	Key   string `json:"key"`
	Value string `json:"value"`
}

// CaseGroup is a group of receivers.
type CaseGroup struct {
	Group     string   `json:"group"`
	Key       string   `json:"key"`
	Receivers []string `json:"receivers"`
}

// CaseCredit is an entry of the array of credits. Ahead is by how many nanoseconds the time that a bucket is spent to
// is ahead of the clock; Spent is 0 then.
type CaseCredit struct {
	Index int    `json:"index"`
	Limit uint64 `json:"limit"`
	Spent uint64 `json:"spent,omitempty"`
	Ahead uint64 `json:"ahead,omitempty"`
	Burst uint64 `json:"burst,omitempty"`
}

// CaseTranslation is a row of the table of translations.
type CaseTranslation struct {
	Namespace  uint32 `json:"namespace"`
	Key        uint64 `json:"key"`
	Value      uint64 `json:"value"`
	Unfinished bool   `json:"unfinished,omitempty"`
}

// CasePacket is a packet and the program that it comes to.
type CasePacket struct {
	Program  string `json:"program"`
	Data     string `json:"data"`
	GSO      uint32 `json:"gso_size,omitempty"`
	Mark     uint32 `json:"mark,omitempty"`
	Priority uint32 `json:"priority,omitempty"`
}

func newCase(plan *ir.Plan, b *bench, state *sim.Relay, log []logged, text string) *Case {
	c := &Case{
		Relay: plan.Name, Spec: filepath.Base(filepath.Dir(plan.Pos.File)), Text: text,
		Conditions: state.World.Conditions,
	}
	c.Patience = b.patience
	for name, v := range b.settings {
		if c.Settings == nil {
			c.Settings = map[string]string{}
		}
		c.Settings[name] = hex.EncodeToString(v)
	}
	for i, s := range state.Slots {
		if s != (sim.Slot{}) {
			c.Slots = append(c.Slots, CaseSlot{i, s.Gen, s.Deadline})
		}
	}
	for i, v := range state.Shared {
		if v != 0 {
			if c.Shared == nil {
				c.Shared = map[int]uint64{}
			}
			c.Shared[i] = v
		}
	}
	for _, t := range plan.Tables {
		table := state.Table(t.Name)
		for _, k := range table.Keys() {
			c.Rows = append(c.Rows, CaseRow{
				t.Name, hex.EncodeToString([]byte(k)), hex.EncodeToString(table.Get([]byte(k))),
			})
		}
	}
	c.fanOut(plan, state)
	for _, l := range log {
		c.Packets = append(c.Packets, CasePacket{
			l.program, hex.EncodeToString(l.packet.Data), l.packet.GSO, l.packet.Mark, l.packet.Priority,
		})
	}
	return c
}

// Save writes a case to a file.
func (c *Case) Save(file string) error {
	b, err := json.MarshalIndent(c, "", "\t")
	if err != nil {
		return fmt.Errorf("save a case: %w", err)
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

// ReadCase reads a case from a file.
func ReadCase(file string) (*Case, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	c := &Case{}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}

// Replay runs a case again, and returns how the kernel and the model differ, or "". Without an object the model runs
// alone.
func Replay(plan *ir.Plan, object []byte, c *Case) (string, error) {
	var net *testrun.Net
	if object != nil {
		n, leave, err := enter(plan)
		if err != nil {
			return "", err
		}
		defer leave()
		net = n
	}
	settings := map[string][]byte{}
	var bad error
	bytes := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			bad = fmt.Errorf("case of %s: %w", c.Relay, err)
		}
		return b
	}
	for name, v := range c.Settings {
		settings[name] = bytes(v)
	}
	b, err := newBench(plan, object, settings, net)
	if err != nil {
		return "", err
	}
	defer b.close()
	m := b.model
	m.Reset()
	m.World.Now, m.World.Conditions = 1, c.Conditions
	for _, s := range c.Slots {
		if s.Index >= len(m.Slots) {
			return "", fmt.Errorf("case of %s: there is no slot %d", c.Relay, s.Index)
		}
		m.Slots[s.Index] = sim.Slot{Gen: s.Gen, Deadline: s.Deadline}
	}
	for i, v := range c.Shared {
		if i >= len(m.Shared) {
			return "", fmt.Errorf("case of %s: there is no shared counter %d", c.Relay, i)
		}
		m.Shared[i] = v
	}
	for _, r := range c.Rows {
		i := slices.IndexFunc(plan.Tables, func(t *ir.Table) bool { return t.Name == r.Table })
		key, value := bytes(r.Key), bytes(r.Value)
		if i < 0 || len(key) != plan.Tables[i].Key.Size || len(value) != plan.Tables[i].Value.Size {
			return "", fmt.Errorf("case of %s: a row doesn't fit table %q", c.Relay, r.Table)
		}
		m.Table(r.Table).Put(key, value)
	}
	if err := c.putFanOut(b, bytes); err != nil {
		return "", err
	}
	if bad != nil {
		return "", bad
	}
	if err := b.start(); err != nil {
		return "", err
	}
	b.patience = c.Patience
	for _, p := range c.Packets {
		_, text, err := b.try(p.Program, sim.Packet{
			Data: bytes(p.Data), GSO: p.GSO, Mark: p.Mark, Priority: p.Priority,
		})
		if text != "" || err != nil {
			return text, err
		}
	}
	if bad != nil {
		return "", bad
	}
	return b.finish()
}
