//go:build !linux

package testrun

import (
	"errors"
	"net/netip"
	"runtime"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// Elsewhere nothing runs in the kernel, and all that would begin a run fails.
var errSystem = errors.New("programs run in the kernel of Linux, and this is " + runtime.GOOS)

// Pin fails.
func Pin() (func(), error) { return nil, errSystem }

// Now fails.
func Now() (uint64, error) { return 0, errSystem }

// Net is a network that can't be entered.
type Net struct{ capture *capture }

// Enter fails.
func Enter(*ir.Plan, bool) (*Net, error) { return nil, errSystem }

func (*Net) Host([6]byte) error                   { return errSystem }
func (*Net) Leave() error                         { return errSystem }
func (*Net) Away() error                          { return errSystem }
func (*Net) Back() error                          { return errSystem }
func (*Net) Devices() error                       { return errSystem }
func (*Net) Capture() error                       { return errSystem }
func (*Net) Route(netip.Addr, netip.Addr) sim.Hop { return sim.Hop{} }

type capture struct{}

func (*capture) copies(into []Copy, _ *[]byte) []Copy { return into }
func (*capture) drop()                                {}

type Ring struct{}

func OpenRing(*ebpf.Map) (*Ring, error) { return nil, errSystem }

func (*Ring) Close()             {}
func (*Ring) Drain(func([]byte)) {}
