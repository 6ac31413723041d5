package cli

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/fastrelay/fastrelay-gen/internal/doctor"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// versions is what `version` prints.
type versions struct {
	Module   string `json:"module"`
	Language int    `json:"language"` // version of the language
	Runtime  int    `json:"runtime"`  // contract between generated packages and package runtime
	Go       string `json:"go"`
	Clang    string `json:"clang"`
	Kernel   string `json:"kernel"`
}

// release is the version of a released binary: `make release` sets it when it links.
var release string

// moduleVersion is what the go command knows: the version that `go install` was given; in a checkout a version made
// of the commit, or "(devel)", with the commit if the go command recorded it.
func moduleVersion(info *debug.BuildInfo) string {
	version := info.Main.Version
	if version == "" {
		version = "(devel)"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && version == "(devel)" {
			version += " " + s.Value
		}
	}
	return version
}

// thisVersion is the version of this binary, as far as anything says it.
func thisVersion() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return moduleVersion(info)
	}
	return ""
}

func (a *app) versionCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the versions of this tool, of clang and of the kernel",
		Example: "  fastrelay-gen version --format json",
		Args:    exactly(),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.version(cmd.Context(), format) },
	}
	formatFlag(cmd, &format)
	return cmd
}

func (a *app) version(ctx context.Context, format string) error {
	if err := a.setFormat(format); err != nil {
		return err
	}
	v := versions{Module: thisVersion(), Language: spec.Language, Runtime: abi.Version, Clang: doctor.Clang(ctx)}
	if info, ok := debug.ReadBuildInfo(); ok {
		v.Go = info.GoVersion
	}
	v.Kernel, _, _ = doctor.Release()
	if format == "json" {
		return a.json(v)
	}
	fmt.Fprintf(a.out, "fastrelay-gen  %s (language %d, runtime contract %d, %s)\nclang          %s\n"+
		"kernel         %s\n",
		v.Module, v.Language, v.Runtime, v.Go, v.Clang, v.Kernel)
	return nil
}

func (a *app) completionCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a script that completes commands, flags, and names of a spec in a shell",
		Example: `  source <(fastrelay-gen completion bash)
  fastrelay-gen completion zsh > "${fpath[1]}/_fastrelay-gen"
  fastrelay-gen completion fish > ~/.config/fish/completions/fastrelay-gen.fish`,
		Args:      exactly("SHELL"),
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.out, true)
			case "zsh":
				return root.GenZshCompletion(a.out)
			case "fish":
				return root.GenFishCompletion(a.out, true)
			}
			return usage("no completion for %q", args[0]).nearest(args[0], cmd.ValidArgs, "").
				hint("shells are bash, zsh and fish")
		},
	}
}
