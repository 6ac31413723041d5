package main

import (
	"crypto/sha256"
	"flag"
	"io"
	"net/netip"
	"strings"
	"testing"
)

// TestArguments has the command be given what it can't do.
func TestArguments(t *testing.T) {
	const address = "-address 127.0.0.1:4433 "
	hash := strings.Repeat("0a", sha256.Size)
	const kernel = " -interfaces lo -null 127.0.0.0/8 "
	for args, want := range map[string]string{
		"":                            "such as 192.0.2.1:4433",
		"-address localhost:4433":     `"localhost:4433" isn't an IP address and a port`,
		"-address :4433":              "isn't an IP address and a port",
		address + "-segments false":   `"false" is no flag`,
		address + "more":              `"more" is no flag`,
		address + "-backlog 2":        "64KiB at least",
		address + "-cache -5":         "1024KiB at least",
		address + "-cache 5MB":        "such as 64MiB",
		address + "-keep -1s":         "none is negative",
		address + "-grace -1s":        "none is negative",
		address + "-interfaces lo":    "-interfaces needs -null",
		address + kernel:              "-interfaces needs -upstream",
		address + "-kernel-control x": "-kernel-control needs -interfaces",
		address + kernel + "-upstream moqt://127.0.0.1 -successor x": "exclude each other",
		"-address 0.0.0.0:1" + kernel + "-upstream moqt://127.0.0.1": "-address has to be the one address",
		"-address 127.0.0.1":               "isn't an IP address and a port",
		address + "-cert x":                "-cert and -key belong together",
		address + "-cert x -key y":         "-cert and -key: stat x",
		address + "-metrics nowhere":       "-metrics",
		address + "-upstream host:1":       `upstream "host:1": write moqt://host:port/path`,
		address + "-upstream-hash 1234":    "-upstream-hash",
		address + "-upstream-hash " + hash: "-upstream-hash and -upstream-ca say how",
		address + "-upstream-ca x":         "-upstream-ca: open x",
		address + "-upstream-ca main.go":   "-upstream-ca: main.go has no certificate",
		address + "-upstream moqt://host -upstream-ca x -upstream-hash " + hash: "give -upstream-ca or -upstream-hash",
	} {
		if err := run(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v instead of an error about %q", args, err, want)
		}
	}
}

// TestSizes reads what -cache takes.
func TestSizes(t *testing.T) {
	for text, want := range map[string]int{"1048576": 1 << 20, "1MiB": 1 << 20, "2048KiB": 2 << 20, "3GiB": 3 << 30} {
		flags := flag.NewFlagSet("moq", flag.ContinueOnError)
		var size int
		sizeFlag(flags, &size, "cache", 5<<20, 1<<20, "")
		if err := flags.Parse([]string{"-cache", text}); err != nil || size != want {
			t.Errorf("%s: %d, %v", text, size, err)
		}
	}
}

// TestPrefixes has the flag of addresses be written wrongly.
func TestPrefixes(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.0/24": "", "2001:db8::/32": "", "192.0.2.1/32": "", "192.0.2.1/24": "write 192.0.2.0/24",
		"192.0.2.1": "such as", "all": "such as",
	} {
		flags := flag.NewFlagSet("moq", flag.ContinueOnError)
		flags.SetOutput(io.Discard)
		var all []netip.Prefix
		prefixesFlag(flags, &all, "null", "")
		err := flags.Parse([]string{"-null", text})
		switch {
		case want == "" && (err != nil || len(all) != 1 || all[0].String() != text):
			t.Errorf("%s: %v, %v", text, all, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v instead of an error about %q", text, err, want)
		}
	}
}
