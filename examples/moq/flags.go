package main

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// agree says what is wrong with what was given together.
func agree(flags *flag.FlagSet) error {
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is no flag, and flags after it wouldn't count; a switch is written -segments, without a "+
			"value", flags.Arg(0))
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for _, c := range []struct{ flag, needs, why string }{
		{"interfaces", "null", "the kernel copies between relays without protection"},
		{"interfaces", "upstream", "the kernel copies what comes from a relay above"},
		{"kernel-control", "interfaces", "it shows what the kernel does there"},
		{"kernel-metrics", "interfaces", "it shows what the kernel does there"},
	} {
		if given[c.flag] && !given[c.needs] {
			return fmt.Errorf("-%s needs -%s: %s", c.flag, c.needs, c.why)
		}
	}
	if given["interfaces"] && given["successor"] {
		return errors.New("-interfaces and -successor exclude each other: the kernel's programs are for one process at " +
			"an address; without -successor, start the next relay when this one has ended")
	}
	return nil
}

// devices are the names of a list.
func devices(list string) (names []string) {
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// units are those that sizes may have.
var units = []struct {
	name string
	size int
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}}

// sizeFlag adds a flag for a number of bytes.
func sizeFlag(flags *flag.FlagSet, name string, value, least int, usage string) *int {
	size := value
	usage += fmt.Sprintf(" (default %dMiB)", value>>20)
	flags.Func(name, usage, func(v string) error {
		unit := 1
		for _, u := range units {
			if rest, is := strings.CutSuffix(v, u.name); is {
				v, unit = rest, u.size
			}
		}
		n, err := strconv.Atoi(v)
		switch {
		case err != nil || n > 1<<50/unit:
			return errors.New("write a number of bytes, or one of KiB, MiB or GiB, such as 64MiB")
		case n*unit < least:
			return fmt.Errorf("it has to be %dKiB at least", least>>10)
		}
		size = n * unit
		return nil
	})
	return &size
}

// prefixesFlag adds a flag that is a prefix, and may be repeated.
func prefixesFlag(flags *flag.FlagSet, name, usage string) *[]netip.Prefix {
	var all []netip.Prefix
	flags.Func(name, usage, func(v string) error {
		p, err := netip.ParsePrefix(v)
		switch {
		case err != nil:
			return errors.New("write an address and how many of its bits count, such as 192.0.2.0/24 or 192.0.2.1/32")
		case p != p.Masked():
			return fmt.Errorf("it has bits after its length; write %v", p.Masked())
		}
		all = append(all, p)
		return nil
	})
	return &all
}
