package cli

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fastrelay/fastrelay-gen/internal/doctor"
)

func (a *app) doctorCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine has and lacks, and what to do",
		Long: `Checks what building and running relays needs: clang, the kernel and its features, rights,
the bpf file system, devices. Changes nothing. Exit status 1 if something required is missing.`,
		Example: `  fastrelay-gen doctor
  sudo fastrelay-gen doctor --format json`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.setFormat(format); err != nil {
				return err
			}
			checks := doctor.Examine(cmd.Context())
			if format == "json" {
				if err := a.json(struct {
					Checks []doctor.Check `json:"checks"`
				}{checks}); err != nil {
					return err
				}
			} else {
				a.checks(checks)
			}
			for _, c := range checks {
				if c.Status == doctor.Missing {
					return exit(statusError)
				}
			}
			return nil
		},
	}
	formatFlag(cmd, &format)
	return cmd
}

func formatFlag(cmd *cobra.Command, format *string) {
	cmd.Flags().StringVar(format, "format", "text", "text for people, json for machines")
}

func (a *app) json(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// marks are printed before a check: lower case for what is fine, capitals for what is missing.
var marks = map[doctor.Status]string{
	doctor.OK: "ok     ", doctor.Info: "       ", doctor.Warning: "warning", doctor.Missing: "MISSING",
}

func (a *app) checks(checks []doctor.Check) {
	var missing []string
	for _, c := range checks {
		fmt.Fprintf(a.out, "%s  %-20s %s\n", marks[c.Status], c.Name, c.Found)
		if c.Do != "" && c.Status != doctor.OK {
			fmt.Fprintf(a.out, "         %-20s -> %s\n", "", c.Do)
		}
		if c.Status == doctor.Missing {
			missing = append(missing, fmt.Sprintf("%s (to %s)", c.Name, c.Needed))
		}
	}
	if len(missing) == 0 {
		fmt.Fprintln(a.out, "\nthis machine can build and run relays")
		return
	}
	fmt.Fprintln(a.out, "\nmissing:")
	for _, m := range missing {
		fmt.Fprintln(a.out, "  "+m)
	}
}
