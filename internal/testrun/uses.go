package testrun

import (
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// Host is the link-layer address of the device that packets come to; Net.Host gives it another one.
var Host = packet.DefaultDestination

// Indices of a Net's devices, for the hops of copies. A device with any other index doesn't exist, and the kernel
// refuses its copies.
const (
	Wire      = 1    // lo: copies are taken
	OtherWire = 1001 // likewise
	Refusing  = 1002 // the device takes no packet: the helper returns 1 (NET_XMIT_DROP), like a backlog that is full
	Down      = 1003 // the device is not up: the helper fails
)

// Devices are the indices above, and one that leads nowhere.
var Devices = []uint32{Wire, OtherWire, Refusing, Down, 1004}

// Copy is a packet that a program sent in addition to the one that it was run on.
type Copy struct {
	Ifindex  uint32
	Mark     uint32
	Priority uint32
	Data     []byte
}

// UsesRoutes reports whether any program of a plan looks routes up in the kernel.
func UsesRoutes(plan *ir.Plan) bool {
	for s := range ir.AllStmts(plan) {
		if hop, ok := s.(*ir.CheckHop); ok && hop.Hop.Row == nil {
			return true
		}
	}
	return false
}

// UsesCopies reports whether any program of a plan sends copies.
func UsesCopies(plan *ir.Plan) bool { return len(plan.Groups) > 0 }

// Refuses is a sim.World's word for what the devices do with copies.
func Refuses(_ int, h sim.Hop) bool { return h.Ifindex != Wire && h.Ifindex != OtherWire }
