package abi

import (
	"encoding/json"
	"fmt"
)

// Layout is what pinned maps were made for: the value of the pin [PinnedLayout], in JSON. A relay adopts what is pinned
// only if its own layout is the same in all that both have.
type Layout struct {
	Version int `json:"version"` // of the contract, Version; it is read before anything else
	Desc
}

// Marshal returns the JSON of a relay's layout.
func (d *Desc) Marshal() ([]byte, error) { return json.Marshal(Layout{Version, *d}) }

// ReadLayout understands a layout; of another version it has the version alone.
func ReadLayout(text []byte) (*Layout, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, fmt.Errorf("read a layout: %w", err)
	}
	l := &Layout{Version: head.Version}
	if l.Version != Version {
		return l, nil
	}
	if err := json.Unmarshal(text, l); err != nil {
		return nil, fmt.Errorf("read a layout: %w", err)
	}
	return l, nil
}
