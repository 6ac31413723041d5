// Package spectest runs the tests that a spec holds: in the reference model, which needs no rights, and in the kernel,
// which needs root. Both start from the same state, made of the test's sessions, rows and settings, and are judged by
// the same code.
//
// A session of a test becomes rows with a slot of its own that never ends. Hops are what the test's route says for
// every destination; without one they lead to a neighbour whose link-layer address is 02:00:00:00:00:02, from
// 02:00:00:00:00:01, over an MTU of 1500. A counter in a row is given, and compared, by its value.
package spectest
