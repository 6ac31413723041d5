// Package lab is a test bench for the TURN example: a server in a process of its own on a test host, and a path from a
// client to a peer through it. Tests, the benchmark and the demo share it.
package lab
