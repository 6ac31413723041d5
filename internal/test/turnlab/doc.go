// Package turnlab is a test bench for the TURN example: a server in a process of its own on a test host, a client that
// sends only the TURN requests (RFC 8656) that a test asks for, and traffic at a given rate, whose losses and delays it
// measures. Tests, the benchmark and the demo share it.
package turnlab
