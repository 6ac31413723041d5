package testnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
)

// Host is one network namespace.
type Host struct {
	Name string // as given, such as "relay"

	net    *Net
	nsName string // as known to iproute2
	ns     netns.NsHandle
	links  *netlink.Handle
}

// Host adds a host to the network. Its loopback device is up; IPv6 addresses are usable at once (no duplicate address
// detection), and nothing is forwarded until SetForwarding says so.
func (n *Net) Host(name string) (*Host, error) {
	h := &Host{Name: name, net: n, nsName: n.prefix + name, ns: netns.None()}
	if err := h.create(); err != nil {
		_ = h.close()
		return nil, fmt.Errorf("making host %s: %w", name, err)
	}
	n.mu.Lock()
	n.hosts = append(n.hosts, h)
	n.mu.Unlock()
	return h, nil
}

func (h *Host) create() error {
	path := filepath.Join(runDir, h.nsName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	f.Close()
	h.ns, err = namespace.New(func() error {
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	})
	if err != nil {
		return err
	}
	if h.links, err = netlink.NewHandleAt(h.ns, unix.NETLINK_ROUTE); err != nil {
		return err
	}
	lo, err := h.links.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := h.links.LinkSetUp(lo); err != nil {
		return err
	}
	for _, s := range [][2]string{
		{"net/ipv6/conf/all/accept_dad", "0"},
		{"net/ipv6/conf/default/accept_dad", "0"},
		{"net/ipv6/conf/default/router_solicitations", "0"},
		{"net/ipv4/conf/all/rp_filter", "0"},
		{"net/ipv4/conf/default/rp_filter", "0"},
	} {
		if err := h.Sysctl(s[0], s[1]); err != nil {
			return err
		}
	}
	return h.SetForwarding(false)
}

func (h *Host) close() error {
	if h.links != nil {
		h.links.Close()
		h.links = nil
	}
	if h.ns.IsOpen() {
		_ = h.ns.Close()
	}
	return removeNamespace(h.nsName)
}

// Do runs f on a thread that is in the host's namespace. Sockets made in f belong to the host. Goroutines started in f
// do not: they run on other threads. If f ends its goroutine, as t.Fatal does, Do ends the caller's.
func (h *Host) Do(f func() error) error { return namespace.OnThread(h.ns, f) }

// Command prepares a program that runs in the host's namespace, with a /sys of its own. Started by StartChild, it is
// killed with this process.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", h.nsName, name}, args...)...)
}

// keeper starts children, on a thread that lives as long as the process.
var keeper = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// StartChild starts a program that the kernel kills when this process ends, however it ends. The kernel watches the
// thread that starts a child (PR_SET_PDEATHSIG), and Go ends threads at will; so all children are started by one that
// stays.
func StartChild(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error, 1)
	keeper() <- func() { started <- cmd.Start() }
	return <-started
}

// Run runs a program in the host's namespace to its end. The error holds what it printed.
func (h *Host) Run(name string, args ...string) error {
	out, err := h.Command(context.Background(), name, args...).CombinedOutput()
	if err != nil {
		command := strings.Join(append([]string{name}, args...), " ")
		return fmt.Errorf("%s: %s: %w: %s", h.Name, command, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Sysctl sets a kernel parameter of the host, such as "net/ipv4/ip_forward".
func (h *Host) Sysctl(name, value string) error {
	return h.Do(func() error { return os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0) })
}

// SetForwarding says whether the host is a router, for IPv4 and IPv6.
func (h *Host) SetForwarding(on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	return errors.Join(h.Sysctl("net/ipv4/ip_forward", value), h.Sysctl("net/ipv6/conf/all/forwarding", value))
}

// Listens reports whether a program of the host listens at a TCP port (proc_net_tcp(5)).
func (h *Host) Listens(port int) bool {
	var sockets []byte
	err := h.Do(func() error {
		for _, name := range []string{"tcp", "tcp6"} {
			text, err := os.ReadFile("/proc/thread-self/net/" + name)
			if err != nil {
				return err
			}
			sockets = append(sockets, text...)
		}
		return nil
	})
	const listening = "0A"
	for line := range strings.Lines(string(sockets)) {
		f := strings.Fields(line)
		if len(f) > 3 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) && f[3] == listening {
			return err == nil
		}
	}
	return false
}
