// Package turnlab is the laboratory for the TURN example: a server in a process of its own on a test host, a client
// that speaks as much TURN (RFC 8656) as a test wants to control, and traffic at a given rate with its losses and
// delays. Tests, the benchmark and the demonstration share it.
package turnlab
