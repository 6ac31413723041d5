// Package sample makes random packets and random state that fit a plan: packets of the headers of a program's stack,
// with values that its tables hold, and then spoiled; rows, groups, credits at their bounds. With them it rehearses a
// plan before anything is written (Rehearse); package fuzz compares the kernel with the model on them.
package sample
