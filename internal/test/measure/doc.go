// Package measure measures what a path takes: traffic at a given rate, its losses and delays, and what it costs a
// processor. The benchmarks, the experiments and the demo share it.
package measure
