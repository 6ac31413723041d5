package main

import "io"

// Cost is the cost of one kind of packet in the kernel.
type Cost struct{}

func measureCost(rounds int) ([]Cost, error) { return nil, nil }
func printCost(w io.Writer, list []Cost)     {}
