package main

import (
	"fmt"
	"io"

	"github.com/fastrelay/fastrelay-gen/examples/segments/sfu"
)

// print prints the figures as a table of Markdown.
func print(w io.Writer, cells []cell) {
	fmt.Fprintln(w, "| subscribers | plain | sendmmsg | segments | encryption | segments/plain | segments/sendmmsg |\n"+
		"|---|---|---|---|---|---|---|")
	for _, c := range cells {
		plain, mmsg, segments := c.copies[sfu.Plain], c.copies[sfu.Sendmmsg], c.copies[sfu.Segments]
		fmt.Fprintf(w, "| %d | %.0f ns | %.0f ns | %.0f ns | %.0f ns | %.2f | %.2f |\n",
			c.subscribers, plain, mmsg, segments, c.seal, segments/plain, segments/mmsg)
	}
}
