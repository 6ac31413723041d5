// Package sample makes random packets and random state that fit a plan: packets of the headers of a program's stack,
// with values that its tables hold, and then spoiled; rows, groups, credits at their bounds.
//
// It is part of every build: with it, `build` rehearses a plan in the model before anything is written (Rehearse), so
// that no build writes a plan which contradicts itself. It needs no rights and no kernel. What runs programs on packets
// there is package testrun, which no build has. Package fuzz compares the kernel with the model on these packets.
package sample
