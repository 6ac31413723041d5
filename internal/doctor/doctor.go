// Package doctor finds out what a machine has and lacks for building and running relays, and says what to do about
// it. It asks the kernel by trying, if trying changes nothing, and never attaches a program to a device.
package doctor

import (
	"context"
	"fmt"
	"net"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/forwarding"
)

// Status is the result of a check.
type Status string

const (
	OK      Status = "ok"
	Warning Status = "warning" // something works less well, or only part of it
	Missing Status = "missing" // building or running doesn't work
	Info    Status = "info"
)

// Check is what was looked at and what was found.
type Check struct {
	Name   string `json:"name"`
	Needed string `json:"needed"` // "build", "run", "test", or ""
	Status Status `json:"status"`
	Found  string `json:"found"`
	Do     string `json:"do,omitempty"` // what to do about it
}

// Examine looks at this machine.
func Examine(ctx context.Context) []Check {
	return append([]Check{compiler(ctx)}, system()...)
}

// Release returns the running kernel's release ("6.1.0-13-amd64") and its version; on other systems than Linux, the
// system's name.
func Release() (release string, major, minor int) {
	if runtime.GOOS != "linux" {
		return runtime.GOOS, 0, 0
	}
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown", 0, 0
	}
	release = strings.TrimSpace(string(text))
	if m := versionPattern.FindStringSubmatch(release); m != nil {
		major, _ = strconv.Atoi(m[1])
		minor, _ = strconv.Atoi(m[2])
	}
	return release, major, minor
}

var versionPattern = regexp.MustCompile(`(\d+)\.(\d+)`)

// kernel: TURN and everything that sends needs bpf_redirect_neigh, which came with 5.10.
func kernel() Check {
	release, major, minor := Release()
	c := Check{Name: "kernel", Needed: "run", Status: OK, Found: release}
	switch {
	case major == 0:
		c.Status, c.Do = Missing, "relays run on Linux only"
	case major < 5 || major == 5 && minor < 10:
		c.Status, c.Do = Missing, "relays that send need Linux 5.10 or newer"
	case major < 6 || major == 6 && minor < 6:
		c.Found += " (attaches through clsact; TCX came with 6.6)"
	}
	return c
}

func jit() Check {
	c := Check{Name: "bpf jit", Needed: "run", Status: OK, Found: "on"}
	text, err := os.ReadFile("/proc/sys/net/core/bpf_jit_enable")
	if err != nil {
		c.Status, c.Found = Info, "unknown: not readable here"
	} else if strings.TrimSpace(string(text)) == "0" {
		c.Status, c.Found = Warning, "off: programs are interpreted, several times slower"
		c.Do = "sysctl net.core.bpf_jit_enable=1"
	}
	return c
}

func btf() Check {
	c := Check{Name: "kernel btf", Status: OK, Found: "/sys/kernel/btf/vmlinux"}
	if _, err := os.Stat(c.Found); err != nil {
		c.Status = Info
		c.Found = "absent (relays don't need it; the kernel was built without CONFIG_DEBUG_INFO_BTF)"
	}
	return c
}

// interfaces lists the devices that a relay could attach to.
func interfaces() []Check {
	all, err := net.Interfaces()
	if err != nil {
		return []Check{{Name: "interfaces", Status: Warning, Found: "unknown: " + err.Error()}}
	}
	var checks []Check
	for _, dev := range all {
		if dev.Flags&net.FlagLoopback != 0 {
			continue
		}
		c := Check{Name: "interface " + dev.Name, Status: OK}
		state := "down"
		if dev.Flags&net.FlagUp != 0 {
			state = "up"
		}
		c.Found = fmt.Sprintf("%s, MTU %d", state, dev.MTU)
		if len(dev.HardwareAddr) == 6 {
			c.Found += ", Ethernet " + dev.HardwareAddr.String()
		} else {
			c.Status = Info
			c.Found += ", no Ethernet: a stack that begins with eth can't be attached here"
		}
		checks = append(checks, c)
		if c, ok := forwards(dev.Name); ok {
			checks = append(checks, c)
		}
	}
	if len(checks) == 0 {
		return []Check{{Name: "interfaces", Needed: "run", Status: Warning, Found: "none but the loopback",
			Do: "a relay needs a device to attach to"}}
	}
	return checks
}

// forwards says which packets an interface doesn't forward: programs find no routes for them.
func forwards(iface string) (c Check, ok bool) {
	var off, mend []string
	for _, version := range forwarding.Versions {
		if on, err := forwarding.On(iface, version); err == nil && !on {
			off = append(off, fmt.Sprintf("IPv%d", version))
			mend = append(mend, forwarding.Mend(iface, version))
		}
	}
	c = Check{Name: "forwarding " + iface, Status: Info, Found: "off for " + strings.Join(off, " and "),
		Do: "only if a program there looks routes up (via: \"route\", or a destination that no row has): " +
			strings.Join(mend, "; ")}
	return c, len(off) > 0
}

// compiler: any clang from 14 on can compile what is generated; objects are the same for the same version only.
func compiler(ctx context.Context) Check {
	c := Check{Name: "clang", Needed: "build", Status: OK}
	tool, err := clang.Find(ctx)
	if err != nil {
		c.Status, c.Found, c.Do = Missing, err.Error(), clang.Install
		return c
	}
	c.Found = fmt.Sprintf("%s (%s, %s)", tool.Version, tool.Clang, tool.Strip)
	return c
}

// Clang returns the version of the clang that `build` uses, or "not found".
func Clang(ctx context.Context) string {
	tool, err := clang.Find(ctx)
	if err != nil {
		return "not found"
	}
	return tool.Version
}
