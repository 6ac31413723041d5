// Package templates holds the texts that back ends fill in: what generated C and Go look like. Templates have no logic
// but loops and conditions; all that they show is computed in gen/bpf and gen/glue.
package templates

import "embed"

// FS has all templates, by file name.
//
//go:embed *.tmpl *.h
var FS embed.FS
