// Package lab has what the SFU is shown and tested with: hosts, the server in a process of its own, a test video that a
// real encoder made in three temporal layers, a publisher that sends it as RTP, and receivers that decode what they
// get.
package lab
