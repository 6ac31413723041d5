package sim

// The devices of the host that plans are tried on, whether in the model alone (package internal/sample) or in the
// kernel as well (package internal/testrun, which makes them): their indices, for the hops of copies. A device with any
// other index doesn't exist, and the kernel refuses its copies.
const (
	Wire      = 1    // lo: copies are taken
	OtherWire = 1001 // likewise
	Refusing  = 1002 // the device takes no packet: the helper returns 1 (NET_XMIT_DROP), like a backlog that is full
	Down      = 1003 // the device is not up: the helper fails
)

// Devices are the indices above, and one that leads nowhere.
var Devices = []uint32{Wire, OtherWire, Refusing, Down, 1004}

// TakesFrames is a [World]'s word for the devices that frames may leave by.
func TakesFrames(index uint32) bool { return index != Down }

// Refuses is a [World]'s word for what the devices do with copies.
func Refuses(_ int, h Hop) bool { return h.Ifindex != Wire && h.Ifindex != OtherWire }

// MaxFrame is the largest frame that is tried: the kernel's test runs work in one page, with room for headers in front.
const MaxFrame = 3400
