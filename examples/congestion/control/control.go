// Package control has congestion control algorithms, which know nothing of what they control: a TCP flow by its row in
// the kernel (examples/congestion), or a QUIC subscriber by its credit (examples/quic).
package control

import "time"

// Algorithm makes the state of a new flow.
type Algorithm func(cwnd float64, mss uint32) Flow

// Algorithms by name.
var Algorithms = map[string]Algorithm{"reno": Reno, "cubic": Cubic, "bbr": BBR}

// Flow is an algorithm's state of one flow.
type Flow interface {
	// Signal is told what happened in the last round.
	Signal(Signal) Decision
	// Rules are the rules for losses.
	Rules() Rules
}

// Rules are what a sender does when it detects a loss, until the next decision.
type Rules struct {
	Keep float64 // what remains of the window
	Firm bool    // the decision holds during recovery, too
}

// Signal is what happened in a round of a flow, and how it ended.
type Signal struct {
	Now       time.Duration // a monotonic clock
	Acked     float64       // packets
	Lost      float64
	Cwnd      float64 // packets
	SlowStart bool    // the sender's rules are in slow start
	Limited   bool    // the window limits what is sent
	Reduced   bool    // there was a loss since the last signal, or the window is being reduced
	RTT       time.Duration
	MinRTT    time.Duration // in the round; 0: none was measured
	Rate      float64       // delivery rate in packets a second
}

// Decision is a window in packets and a pacing rate in packets a second; 0 leaves it to the sender's rules, which are
// Reno's.
type Decision struct{ Cwnd, Pacing float64 }

// Sender is what an algorithm controls.
type Sender interface {
	// Apply carries out a decision, until the next one.
	Apply(Decision, Rules) error
}

// Controller is an algorithm with its sender.
type Controller struct {
	flow   Flow
	sender Sender
}

// Start gives a sender an algorithm and its rules. The sender decides until the first signal.
func Start(algorithm Algorithm, cwnd float64, mss uint32, sender Sender) (*Controller, error) {
	c := &Controller{algorithm(cwnd, mss), sender}
	return c, sender.Apply(Decision{}, c.flow.Rules())
}

// Signal has the algorithm decide.
func (c *Controller) Signal(s Signal) error { return c.sender.Apply(c.flow.Signal(s), c.flow.Rules()) }
