package cli

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/interrupt"
)

// starter is the spec that `init` writes, with NAME for the relay's name.
//
//go:embed starter.cue.txt
var starter string

// namePattern is what the language calls a name.
var namePattern = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

func (a *app) initCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init NAME",
		Short: "Write a small spec to start from; it builds, passes its tests and runs",
		Long: `Writes NAME/spec.cue: a relay for a small protocol, with comments that explain each part. It builds, its
tests pass, and it runs without changes. An existing spec is never replaced.`,
		Example: `  fastrelay-gen init myrelay
  fastrelay-gen test myrelay/spec.cue`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			defer interrupt.Hold(cmd.Context())()
			return a.initialise(args[0])
		},
	}
}

func (a *app) initialise(name string) error {
	if !namePattern.MatchString(name) {
		return &diag.Diagnostic{Code: codeName, Message: fmt.Sprintf("%q is not a name", name),
			Hint: "a name consists of lower-case letters, digits and underscores, and begins with a letter: " +
				suggestName(name)}
	}
	path := filepath.Join(name, "spec.cue")
	if err := os.MkdirAll(name, 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return &diag.Diagnostic{Code: codeExists, Message: path + " exists, and is not changed",
			Hint: "choose another name, or remove the file"}
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(strings.ReplaceAll(starter, "NAME", name))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	fmt.Fprintf(a.out, `wrote %[1]s

next:
  fastrelay-gen test %[1]s                     run the tests that it holds
  fastrelay-gen explain %[1]s --header tag     look at its header
  fastrelay-gen build %[1]s                    write the C, the object and the Go package
  sudo fastrelay-gen run %[1]s --traffic       see its tests' packets go through the kernel
`, path)
	return nil
}

// suggestName makes a name of what was given.
func suggestName(given string) string {
	name := regexp.MustCompile(`[^a-z0-9_]+`).ReplaceAllString(strings.ToLower(given), "_")
	name = strings.Trim(name, "_0123456789")
	if name == "" {
		return "myrelay"
	}
	return name
}
