// Package control opens a relay to its operator: a unix socket that speaks HTTP with JSON. docs/operate.md describes
// it, and package api has its types.
//
//	relay, err := turnrelay.Load(turnrelay.Options{Control: control.Socket("turn")})
//
// Then /run/fastrelay/turn.sock shows what the relay knows, and changes it, through the methods of package runtime that
// the server itself calls: what the one opens, the other finds. `fastrelay-gen show`, `watch` and so on use it; so may
// a server in any language.
//
// Root and the user of the relay's process may use the socket. A program that doesn't import this package has no HTTP
// server in it.
package control
