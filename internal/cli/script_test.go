//go:build linux

package cli_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/cli"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"fastrelay-gen": func() { os.Exit(cli.Do(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// Every behaviour of the command line, its messages included, is a script. Those in testdata/kernel load and attach
// programs, in network namespaces of their own, and need root.
func TestScripts(t *testing.T) { scripts(t, "testdata/script") }

// The commands that load programs, on a network of their own.
func TestKernelScripts(t *testing.T) {
	needs.Root(t)
	scripts(t, "testdata/kernel")
}

func scripts(t *testing.T, dir string) {
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("NO_COLOR", "1")
			env.Setenv("FASTRELAY_OBJECTS", os.Getenv("FASTRELAY_OBJECTS"))
			env.Values[network{}] = &map[string]*testnet.Host{}
			root, err := filepath.Abs("../..")
			if err != nil {
				return err
			}
			programs, _, _ := strings.Cut(env.Getenv("PATH"), string(os.PathListSeparator))
			env.Setenv("SELF", filepath.Join(programs, "fastrelay-gen"))
			env.Setenv("EXAMPLES", filepath.Join(root, "examples"))
			env.Setenv("CAPTURES", filepath.Join(root, "internal/capture/testdata"))
			env.Setenv("PIN", fmt.Sprintf("/sys/fs/bpf/script-%d", os.Getpid()))
			env.Setenv("LAB", filepath.Join(root, "internal/test/control/testdata/spec.cue"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status":   status,
			"line":     line,
			"udp":      udp,
			"attached": attached,
			"merging":  merging,
			"burst":    burst,
		},
	})
}

// status N COMMAND…: the command ends with this exit status. Its output can be looked at as after exec.
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND…")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		got = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if got != args[0] {
		ts.Fatalf("exit status %s, not %s", got, args[0])
	}
}

// network is a script's network, once it has asked for one.
type network struct{}

// line: builds hosts client, relay and peer (testnet.Line) and sets $CLIENT, $RELAY and $PEER to the names of their
// namespaces.
func line(ts *testscript.TestScript, neg bool, args []string) {
	n, err := testnet.New()
	ts.Check(err)
	ts.Defer(func() { _ = n.Close() })
	l, err := n.Line()
	ts.Check(err)
	hosts := map[string]*testnet.Host{"CLIENT": l.Client, "RELAY": l.Relay, "PEER": l.Peer}
	for name, h := range hosts {
		ts.Setenv(name, h.Command(context.Background(), "true").Args[3])
	}
	*ts.Value(network{}).(*map[string]*testnet.Host) = hosts
}

// udp HOST FROM TO HEX: sends one datagram.
func udp(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 4 {
		ts.Fatalf("usage: udp HOST FROM TO HEX")
	}
	host := (*ts.Value(network{}).(*map[string]*testnet.Host))[args[0]]
	if host == nil {
		ts.Fatalf("there is no host %s", args[0])
	}
	payload, err := hex.DecodeString(args[3])
	ts.Check(err)
	from := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(args[1]))
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(args[2]))
	ts.Check(host.Do(func() error {
		c, err := net.DialUDP("udp", from, to)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(payload)
		return err
	}))
}

// merging HOST ADDRESS: opens a socket that asks for merged datagrams (UDP_GRO), until the script ends.
func merging(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: merging HOST ADDRESS")
	}
	at := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(args[1]))
	ts.Check((*ts.Value(network{}).(*map[string]*testnet.Host))[args[0]].Do(func() error {
		c, err := net.ListenUDP("udp", at)
		if err != nil {
			return err
		}
		ts.Defer(func() { _ = c.Close() })
		return option(c, unix.UDP_GRO, 1)
	}))
}

// burst HOST FROM TO HEX N: sends N datagrams at once, which the host's device takes apart (UDP_SEGMENT).
func burst(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 5 {
		ts.Fatalf("usage: burst HOST FROM TO HEX N")
	}
	payload, err := hex.DecodeString(args[3])
	ts.Check(err)
	n, err := strconv.Atoi(args[4])
	ts.Check(err)
	from := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(args[1]))
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(args[2]))
	ts.Check((*ts.Value(network{}).(*map[string]*testnet.Host))[args[0]].Do(func() error {
		c, err := net.DialUDP("udp", from, to)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := option(c, unix.UDP_SEGMENT, len(payload)); err != nil {
			return err
		}
		_, err = c.Write(bytes.Repeat(payload, n))
		return err
	}))
}

func option(c *net.UDPConn, name, value int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, name, value) })
	return errors.Join(err, set)
}

// attached HOST DEVICE N: waits until this many programs are attached to the device's ingress, for at most ten
// seconds.
func attached(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: attached HOST DEVICE N")
	}
	host := (*ts.Value(network{}).(*map[string]*testnet.Host))[args[0]]
	if host == nil {
		ts.Fatalf("there is no host %s", args[0])
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	got := ""
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-tick.C {
		ts.Check(host.Do(func() error {
			dev, err := net.InterfaceByName(args[1])
			if err != nil {
				return err
			}
			there, err := link.QueryPrograms(link.QueryOptions{Target: dev.Index, Attach: ebpf.AttachTCXIngress})
			if err != nil {
				return err
			}
			got = fmt.Sprint(len(there.Programs))
			return nil
		}))
		if got == args[2] {
			return
		}
	}
	ts.Fatalf("%s programs are attached, not %s", got, args[2])
}
