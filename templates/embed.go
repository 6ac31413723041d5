// Package templates holds the texts that the back ends fill in. They hold no logic: what is decided is decided in the plan.
package templates

import "embed"

// FS holds the templates and the helper header.
//
//go:embed *
var FS embed.FS
