// Package templates holds the texts that back ends fill in: what generated C, Go and Lua look like. Templates have no
// logic but loops and conditions; all that they show is computed in gen/bpf, gen/glue and gen/lua.
package templates

import "embed"

// FS has all templates, by file name.
//
//go:embed *.tmpl *.h *.lua
var FS embed.FS
