// Package seek lets package runtime/control go on with a list where the last page of it ended. Package runtime sets the
// functions; each iterates over what is after a place, in the order of the places.
package seek

var (
	Sessions any // func(r *runtime.Relay, slot uint64) iter.Seq[*runtime.AnySession], from a slot on
	Groups   any // func(k *runtime.AnyGroups, key []any) (iter.Seq[*runtime.AnyGroup], error), after a key
	Rows     any // func(t *runtime.AnyTable, key []any) (iter.Seq[runtime.RowInfo], error), after a key; nil: all
)
