package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fastrelay/fastrelay-gen/gen/lua"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

func (a *app) dissectorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "dissector SPEC",
		Short: "Print a Wireshark dissector of a spec's headers",
		Long: `dissector prints a script in Lua with which Wireshark and tshark (4.0 or newer) show the headers that a
spec declares: bits, varints, optional fields, elements of lists, and lengths that disagree with the packet. It is used
for the ports, protocols and EtherTypes that the spec names, and for others by "Decode As" or its preferences.`,
		Example: `  fastrelay-gen dissector examples/turn/spec.cue > turn.lua
  tshark -X lua_script:turn.lua -d udp.port==3478,fr_turn -r capture.pcapng
  cp turn.lua ~/.local/lib/wireshark/plugins/     for Wireshark`,
		Args: exactly("SPEC"), ValidArgsFunction: specFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := a.plan(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			text, err := lua.Render(r.Spec)
			if errors.Is(err, lua.ErrNothing) {
				return &diag.Diagnostic{
					Code: codeNoHeaders, Message: fmt.Sprintf("%s: %s", args[0], err),
					Hint: "a header of the spec has to be in a program's stack, after Ethernet, IP, UDP or TCP",
				}
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(a.out, text)
			return err
		},
	}
}
