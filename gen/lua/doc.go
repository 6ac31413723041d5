// Package lua renders the headers of a spec as a Wireshark dissector in Lua. The Lua is a table of the headers and
// stacks, with the expressions of the spec as functions, and an engine that is the same for all specs
// (templates/dissector.lua). Of a spec's text only names of the form [a-z][a-z0-9_]* and numbers reach it.
package lua
