package runtime

import (
	"errors"
	"fmt"

	"github.com/fastrelay/fastrelay-gen/runtime/internal/pins"
)

// Errors that callers distinguish with errors.Is.
var (
	// ErrClosed is returned by operations on a relay, session, group or receiver that is closed or removed.
	ErrClosed = errors.New("closed")
	// ErrFull is wrapped by a [*FullError].
	ErrFull = errors.New("full")
	// ErrNotFound is wrapped if a row, a group or a reason doesn't exist.
	ErrNotFound = errors.New("not found")
	// ErrExpired is the cause of a session that ended because its lifetime or idle time passed.
	ErrExpired = errors.New("expired")
	// ErrExists is wrapped by an [*ExistsError].
	ErrExists = errors.New("open already")
	// ErrRefused is returned if a credit has no room.
	ErrRefused = errors.New("refused: the credit has no room")
	// ErrContended is returned if a credit or a translation changed at every attempt; nothing was spent or stored.
	ErrContended = errors.New("too much contention")
	// ErrLocked is returned by [Load] if another process holds the pins.
	ErrLocked = pins.ErrLocked
)

// FullError says which table, kind of session or counter array has no room left.
type FullError struct {
	What string // `table "sources"`, `sessions of kind "channel"`, "shared counters"
	Size int    // entries
}

func (e *FullError) Error() string {
	return fmt.Sprintf("%s is full: it holds %d entries; raise its size in the spec", e.What, e.Size)
}

// Is reports whether target is [ErrFull].
func (e *FullError) Is(target error) bool { return target == ErrFull }

// CollisionError says that a session can't be opened because one of its rows belongs to another session.
type CollisionError struct {
	Table string
	Key   string      // the key, readable
	Other *AnySession // the session that has the row
}

func (e *CollisionError) Error() string {
	return fmt.Sprintf("table %q: %s belongs to another session, %v", e.Table, e.Key, e.Other)
}

// ExistsError says that a group can't be opened because one with that key is open.
type ExistsError struct {
	Group *AnyGroup // the one that is open
}

func (e *ExistsError) Error() string { return fmt.Sprintf("%v is %v", e.Group, ErrExists) }

// Is reports whether target is [ErrExists].
func (e *ExistsError) Is(target error) bool { return target == ErrExists }

// LayoutError says that the tables that are pinned were made for another layout, and can't be adopted.
type LayoutError struct {
	Path  string // where the relay is pinned
	What  string // `table "sources"`
	Found string
	Want  string
	// Larger says that what is pinned would do if it were larger: see [Options.Grow].
	Larger bool
}

func (e *LayoutError) Error() string { return (*pins.LayoutError)(e).Error() }

// FolderError says why a relay can't be pinned in a folder: others than root and the caller could change what is
// adopted from there.
type FolderError struct {
	Path  string // PinPath
	Cause string // what is wrong, and whose it is
	Fix   string // what to do
}

func (e *FolderError) Error() string { return (*pins.FolderError)(e).Error() }

// ObjectError says that an object can't be the one that the description was made for.
type ObjectError struct {
	Relay  string
	Reason string
	Err    error
}

func (e *ObjectError) Error() string {
	s := fmt.Sprintf("relay %q: the object is damaged or belongs to another relay: %s", e.Relay, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s + "; build both again"
}

func (e *ObjectError) Unwrap() error { return e.Err }

// KernelError says what the kernel lacks or refuses, and what to do about it.
type KernelError struct {
	Doing string // "load relay \"turn\""
	Cause string // what is missing
	Fix   string // what to do
	Err   error
}

func (e *KernelError) Error() string {
	s := e.Doing + ": " + e.Cause
	if e.Fix != "" {
		s += "; " + e.Fix
	}
	if e.Err != nil {
		s += " (" + e.Err.Error() + ")"
	}
	return s
}

func (e *KernelError) Unwrap() error { return e.Err }

// ValueError says that a value doesn't fit its place.
type ValueError struct {
	Where  string // `table "sources", key "addr"`
	Value  any
	Reason string
}

func (e *ValueError) Error() string {
	return fmt.Sprintf("%s: %v %s", e.Where, e.Value, e.Reason)
}
