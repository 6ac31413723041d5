// Package examples has tests of what several examples have in common: what servers do with signals, and the manifests
// that deploy them.
package examples
