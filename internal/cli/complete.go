package cli

import (
	"context"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// What a shell completes besides commands and flags: specs, codes, and the names in the spec that the command line
// has already.

// specFiles completes an argument that is a spec.
func specFiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"cue"}, cobra.ShellCompDirectiveFilterFileExt
}

// codeOrSpec completes the argument of explain.
func codeOrSpec(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if !strings.HasPrefix(strings.ToUpper(begun), "FR") {
		return specFiles(cmd, args, begun)
	}
	var codes []string
	for _, i := range diag.Infos() {
		if strings.HasPrefix(string(i.Code), strings.ToUpper(begun)) {
			codes = append(codes, string(i.Code)+"\t"+i.Title)
		}
	}
	return codes, cobra.ShellCompDirectiveDefault // else a file whose name begins so
}

// named completes a flag whose value is a name in the spec.
func named(names func(*spec.Spec) []spec.Name) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		return namesIn(cmd.Context(), args, begun, "", names), cobra.ShellCompDirectiveNoFileComp
	}
}

// assigned completes a flag whose value is NAME=…; values completes the part after the =, as far as it is
// there.
func assigned(names func(*spec.Spec) []spec.Name, values func(begun string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		name, value, ok := strings.Cut(begun, "=")
		if !ok {
			const directive = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
			return namesIn(cmd.Context(), args, begun, "=", names), directive
		}
		var out []string
		for _, v := range values(value) {
			if strings.HasPrefix(name+"="+v, begun) {
				out = append(out, name+"="+v)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// namesIn returns the names in a spec that begin as given. A spec that isn't there or has mistakes has none.
func namesIn(ctx context.Context, args []string, begun, suffix string, names func(*spec.Spec) []spec.Name) []string {
	if len(args) == 0 {
		return nil
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return nil
	}
	s, list := spec.LoadWithin(ctx, args[0], text)
	if list.Len() > 0 {
		return nil
	}
	var out []string
	for _, n := range names(s) {
		if strings.HasPrefix(n.Value, begun) {
			out = append(out, n.Value+suffix)
		}
	}
	return out
}

func programsOf(s *spec.Spec) (names []spec.Name) {
	for _, p := range s.Programs {
		names = append(names, p.Name)
	}
	return names
}

func headersOf(s *spec.Spec) (names []spec.Name) {
	for _, h := range s.Headers {
		names = append(names, h.Name)
	}
	return names
}

func settingsOf(s *spec.Spec) (names []spec.Name) {
	for _, x := range s.Settings {
		names = append(names, x.Name)
	}
	return names
}

func sessionsOf(s *spec.Spec) (names []spec.Name) {
	for _, x := range s.Sessions {
		names = append(names, x.Name)
	}
	return names
}

func tablesOf(s *spec.Spec) (names []spec.Name) {
	for _, t := range s.Tables {
		names = append(names, t.Name)
	}
	return names
}

func groupsOf(s *spec.Spec) (names []spec.Name) {
	for _, g := range s.Groups {
		names = append(names, g.Name)
	}
	return names
}

func noValues(string) []string { return nil }

func devices() (names []string) {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, dev := range all {
		names = append(names, dev.Name)
	}
	return names
}

// targets completes what a program is attached to: an interface, and after its colon the place among the programs that
// are there.
func targets(begun string) []string {
	name, _, placed := strings.Cut(begun, ":")
	if !placed {
		return devices()
	}
	dev, err := net.InterfaceByName(name)
	if err != nil {
		return nil
	}
	out := []string{name + ":first"}
	for _, p := range tcxPrograms(dev.Index) {
		out = append(out, name+":before="+p)
	}
	return out
}

// completeFlags registers what completes the flags of a command. A flag that the command doesn't have is a mistake in
// this program.
func completeFlags(cmd *cobra.Command, flags map[string]cobra.CompletionFunc) {
	for name, f := range flags {
		if err := cmd.RegisterFlagCompletionFunc(name, f); err != nil {
			panic(err)
		}
	}
}
