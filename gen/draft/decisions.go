package draft

import (
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// decisionsOf are the fields that rules may set, by the header of what happened.
var decisionsOf = map[string][]string{
	"init": {"cwnd", "pacing"}, "ack": {"cwnd", "pacing", "begin"}, "loss": {"ssthresh"}, "release": nil,
}

// Decides reports whether a field is one that rules may set.
func Decides(pl *Field) bool {
	return slices.Contains(decisionsOf[pl.Parent.Decl.Name.Value], pl.Decl.Name.Value)
}

// Decisions names the fields that can be set, for messages.
func Decisions(header string) string {
	var names []string
	for _, h := range []string{"init", "ack", "loss"} {
		if header != h && header != SocketHeader {
			continue
		}
		for _, f := range decisionsOf[h] {
			names = append(names, h+"."+f)
		}
	}
	if names == nil {
		return "fields of init, ack and loss"
	}
	return strings.Join(names, ", ")
}

// IsEvent reports whether a header says what happened to a socket.
func IsEvent(h *spec.Header) bool {
	_, ok := decisionsOf[h.Name.Value]
	return ok && h.Std
}

const SocketHeader = "socket"
