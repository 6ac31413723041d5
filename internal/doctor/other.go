//go:build !linux

package doctor

import "runtime"

// system: there is nothing to look at where relays don't run.
func system() []Check {
	return []Check{{
		Name: "kernel", Needed: "run", Status: Warning, Found: runtime.GOOS,
		Do: "relays run on Linux; here they are compiled, and tested in the model",
	}}
}
