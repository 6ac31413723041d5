package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func contextWithTimeout() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 5*time.Minute)
}

const (
	wait     = 20 * time.Second
	turnPort = 3478
	channel  = 0x4001
)

// three are the capabilities of a relay.
var three = []string{"CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"}

// container is a container that runc runs in the network of a host.
type container struct {
	*testing.T
	server string
	state  string // runc's folder
	chroot bool   // the test runs in a chroot
	cmd    *exec.Cmd
	log    bytes.Buffer
	ended  chan error
}

// extract writes the files of a layer, with their attributes.
func extract(t *testing.T, layer []byte, root string) {
	t.Helper()
	headers, content, err := files(layer)
	if err != nil {
		t.Fatal(err)
	}
	for name, h := range headers {
		path := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(path, h.FileInfo().Mode())
		} else if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
			err = os.WriteFile(path, content[name], h.FileInfo().Mode())
		}
		err = errors.Join(err, os.Chown(path, h.Uid, h.Gid))
		if value, ok := h.PAXRecords[xattr+"security.capability"]; ok {
			err = errors.Join(err, unix.Setxattr(path, "security.capability", []byte(value), 0))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// start runs the image as the kubelet has it run for the manifest in deploy/kubernetes: as the user of the image, on a
// file system that can't be written, with the host's network; with these capabilities, which a user other than root
// only gets by a file that has them, and without new privileges (allowPrivilegeEscalation: false).
// pins, if any, is the folder of the machine's BPF file system that the container has as its own.
func start(t *testing.T, server string, host *testnet.Host, capabilities []string, pins string,
	args ...string) *container {
	t.Helper()
	layer, image := unpacked(t, server)
	bundle, sockets := t.TempDir(), t.TempDir()
	if err := os.Chmod(sockets, 0o777); err != nil { // as an emptyDir is
		t.Fatal(err)
	}
	extract(t, layer, filepath.Join(bundle, "rootfs"))
	type object = map[string]any
	mounts := []object{
		{"destination": "/proc", "type": "proc", "source": "proc"},
		{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755"}},
		{"destination": "/sys", "type": "sysfs", "source": "sysfs",
			"options": []string{"nosuid", "noexec", "nodev", "ro"}},
		{"destination": "/run/fastrelay", "type": "bind", "source": sockets, "options": []string{"bind"}},
	}
	if pins != "" {
		mounts = append(mounts,
			object{"destination": "/sys/fs/bpf", "type": "bind", "source": pins, "options": []string{"rbind"}})
	}
	text, err := json.Marshal(object{
		"ociVersion": "1.0.2",
		"process": object{
			"user": object{"uid": user, "gid": user}, "args": append(image.Config.Entrypoint, args...), "cwd": "/",
			"env": []string{}, "noNewPrivileges": true,
			"capabilities": object{
				"bounding": capabilities, "effective": capabilities, "permitted": capabilities,
			},
		},
		"root":   object{"path": "rootfs", "readonly": true},
		"mounts": mounts,
		"linux": object{
			"namespaces": []object{
				{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
				{"type": "network", "path": networkOf(t, host)},
			},
		},
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &container{T: t, server: server, state: t.TempDir(), ended: make(chan error, 1)}
	c.cmd = c.runc("run", "--bundle", bundle, c.id())
	c.cmd.Stdout, c.cmd.Stderr = &c.log, &c.log
	if err := testnet.StartChild(c.cmd); err != nil {
		t.Fatal(err)
	}
	go func() { c.ended <- c.cmd.Wait() }()
	t.Cleanup(func() {
		_ = c.runc("delete", "--force", c.id()).Run()
		if err := <-c.ended; t.Failed() {
			t.Logf("the container ended with %v:\n%s", err, c.log.String())
		}
	})
	return c
}

// networkOf is the file of a host's network namespace.
func networkOf(t *testing.T, host *testnet.Host) string {
	t.Helper()
	name, err := host.Command(t.Context(), "ip", "netns", "identify").Output()
	if err != nil {
		t.Fatal(err)
	}
	return "/run/netns/" + strings.TrimSpace(string(name))
}

func (c *container) id() string { return fmt.Sprintf("fastrelay-%d", os.Getpid()) }

// runc prepares a command of runc. It gets cgroups of version 2 in a mount namespace of its own, since a machine may
// have others, or none.
func (c *container) runc(args ...string) *exec.Cmd {
	const script = `mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec runc "$@"`
	return exec.Command("unshare", append([]string{"--mount", "sh", "-c", script, "runc", "--root", c.state},
		args...)...)
}

// exec prepares a command of fastrelay-gen in the container.
func (c *container) exec(args ...string) *exec.Cmd {
	if c.chroot {
		id := fmt.Sprint(user)
		return exec.Command("nsenter", append([]string{"--target", fmt.Sprint(c.pid()), "--root", "--wd", "--setuid",
			id, "--setgid", id, "/fastrelay-gen"}, args...)...)
	}
	return c.runc(append([]string{"exec", c.id(), "/fastrelay-gen"}, args...)...)
}

// pid is the server's process.
func (c *container) pid() int {
	c.Helper()
	text, err := c.runc("state", c.id()).Output()
	var state struct{ Pid int }
	if err == nil {
		err = json.Unmarshal(text, &state)
	}
	if err != nil {
		c.Fatal(err)
	}
	return state.Pid
}

// tool runs fastrelay-gen in the container, as an exec probe does, and wants a status.
func (c *container) tool(status int, args ...string) string {
	c.Helper()
	out, err := c.exec(args...).CombinedOutput()
	got := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		c.Fatal(err)
	}
	if got != status {
		c.Fatalf("%s: status %d, want %d:\n%s", strings.Join(args, " "), got, status, out)
	}
	return string(out)
}

// ready waits until the readiness probe succeeds.
func (c *container) ready() {
	c.Helper()
	var said []byte
	if err := testnet.Until(wait, "the relay is ready", func() bool {
		select {
		case err := <-c.ended:
			c.ended <- err
			c.Fatal("the server has ended")
		default:
		}
		var err error
		said, err = c.exec("check", "--socket", c.server).CombinedOutput()
		// runc enters the mount namespace, whose root is the container's only if it wasn't made in a chroot.
		c.chroot = c.chroot || bytes.Contains(said, []byte("stat /fastrelay-gen: no such file"))
		return err == nil
	}); err != nil {
		c.Fatalf("%v: %s", err, said)
	}
}

// status returns a line of /proc/PID/status of the server.
func (c *container) status(name string) string {
	c.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.pid()))
	if err != nil {
		c.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(line, ":"); key == name {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return ""
}

// peerAndClient are a client with a channel, and its peer.
func peerAndClient(t *testing.T, l *testnet.Line, number uint16) (*turnlab.Client, *net.UDPConn) {
	t.Helper()
	var peer *net.UDPConn
	if err := l.Peer.Do(func() (err error) {
		peer, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(l.PeerAddr.V4, 0)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() })
	client, err := turnlab.Dial(l.Client, l.ClientAddr.V4, netip.AddrPortFrom(l.RelayInAddr.V4, turnPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if err := client.Open(number, peer.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
		t.Fatal(err)
	}
	return client, peer
}

// exchange sends packets both ways.
func exchange(t *testing.T, client *turnlab.Client, number uint16, peer *net.UDPConn, packets int) {
	t.Helper()
	buf := make([]byte, 2048)
	for i := range packets {
		text := fmt.Sprint("packet ", i)
		if err := client.Send(number, []byte(text)); err != nil {
			t.Fatal(err)
		}
		_ = peer.SetReadDeadline(time.Now().Add(wait))
		n, from, err := peer.ReadFromUDPAddrPort(buf)
		if err != nil || string(buf[:n]) != text {
			t.Fatalf("%s: the peer has %q, %v", text, buf[:n], err)
		}
		if _, err := peer.WriteToUDPAddrPort([]byte(text), from); err != nil {
			t.Fatal(err)
		}
		if _, got, err := client.Receive(wait); err != nil || string(got) != text {
			t.Fatalf("%s: the client has %q, %v", text, got, err)
		}
	}
}

// sent returns how many packets a program has sent.
func (c *container) sent(program string) (n uint64) {
	c.Helper()
	var p struct {
		Reasons []struct {
			Kind    string
			Packets uint64
		}
	}
	var all []json.RawMessage
	text := c.tool(0, "show", "programs", program, "--socket", "turn", "--format", "json")
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) == 0 {
		all = []json.RawMessage{json.RawMessage(text)}
	}
	if err := json.Unmarshal(all[0], &p); err != nil {
		c.Fatalf("%v:\n%s", err, text)
	}
	for _, r := range p.Reasons {
		if r.Kind == "sent" {
			n += r.Packets
		}
	}
	return n
}

// A TURN relay runs in a container, as a user without rights but for three capabilities. Clients' packets go through
// the kernel; probes, drain and the end are as Kubernetes does them.
func TestContainer(t *testing.T) {
	needs.All(t)
	needs.Root(t)
	l, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	users := "--user=" + turnlab.User + "=" + turnlab.Password
	c := start(t, "turn", l.Relay, three, "", "--realm", turnlab.Realm, users, "--control", "turn", "--first",
		"--interfaces", "eth0,eth1", "--listen", fmt.Sprintf("%v:%d", l.RelayInAddr.V4, turnPort),
		"--relay", l.RelayOutAddr.V4.String())
	c.ready()
	const rights = "000000c000001000" // CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN
	for name, want := range map[string]string{
		"Uid": "65532 65532 65532 65532", "CapEff": rights, "CapPrm": rights, "CapBnd": rights, "NoNewPrivs": "1",
		"CapAmb": "0000000000000000", "CapInh": "0000000000000000",
	} {
		if got := c.status(name); got != want {
			t.Errorf("the server's %s is %s, want %s", name, got, want)
		}
	}
	client, peer := peerAndClient(t, l, channel)
	exchange(t, client, channel, peer, 100)
	if to, back := c.sent("to_peer"), c.sent("to_client"); to < 99 || back < 99 {
		t.Errorf("of 100 packets each way, the kernel has forwarded %d and %d", to, back)
	}

	// Drained: not ready, but alive; channels go on, and new ones are user space's.
	if text := c.tool(2, "drain", "--socket", "turn", "--limit", "10ms"); !strings.Contains(text, "1 session and") {
		t.Errorf("drain says %q", text)
	}
	if text := c.tool(1, "check", "--socket", "turn"); !strings.Contains(text, "is being drained") {
		t.Errorf("check says %q", text)
	}
	c.tool(0, "check", "--socket", "turn", "--alive")
	before := c.sent("to_peer")
	exchange(t, client, channel, peer, 10)
	second, otherPeer := peerAndClient(t, l, channel)
	exchange(t, second, channel, otherPeer, 10)
	if n := c.sent("to_peer") - before; n != 10 {
		t.Errorf("%d packets went through the kernel while it was drained, want the 10 of the channel that was open", n)
	}
	if err := client.Refresh(0); err != nil { // the client leaves
		t.Fatal(err)
	}
	c.tool(0, "drain", "--socket", "turn", "--limit", "20s")

	// The end.
	if err := c.runc("kill", c.id(), "TERM").Run(); err != nil {
		t.Fatal(err)
	}
	err = <-c.ended
	c.ended <- err
	if err != nil {
		t.Errorf("the container ended with %v", err)
	}
	out, err := l.Relay.Command(t.Context(), "bpftool", "net", "show").CombinedOutput()
	if err != nil || strings.Contains(string(out), "tcx/ingress") {
		t.Errorf("programs are left (%v):\n%s", err, out)
	}
}

// If the container may not have a capability that its server needs, it doesn't start.
func TestContainerWithoutCapability(t *testing.T) {
	needs.All(t)
	needs.Root(t)
	l, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	c := start(t, "turn", l.Relay, three[1:], "", "--user", "a=b")
	select {
	case err := <-c.ended:
		c.ended <- err
		if err == nil || !strings.Contains(c.log.String(), "operation not permitted") {
			t.Errorf("%v: %s", err, c.log.String())
		}
	case <-time.After(wait):
		t.Error("the server runs")
	}
}

// A relay that is pinned is killed with its container. The next one, as the same user, adopts what it left, in a folder
// of the BPF file system that an init container has given to that user.
func TestPinnedContainer(t *testing.T) {
	needs.All(t)
	needs.Root(t)
	l, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	pins := fmt.Sprintf("/sys/fs/bpf/container-%d", os.Getpid())
	if err := errors.Join(os.Mkdir(pins, 0o700), os.Chown(pins, user, user)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(pins); err != nil {
			t.Error(err)
		}
	})
	run := func() *container {
		c := start(t, "gate", l.Relay, three, pins, "-watch", "-interface", "eth0", "-first", "-pin",
			"/sys/fs/bpf/gate", "-control", "gate")
		c.ready()
		return c
	}
	totals := func() string {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(pins, "gate", "*", "*totals*"))
		if err != nil || len(files) == 0 {
			t.Fatalf("the table totals isn't pinned: %v", err)
		}
		out, err := exec.CommandContext(t.Context(), "bpftool", "-j", "map", "show", "pinned", files[0]).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	first := run()
	before := totals()
	if err := first.runc("kill", first.id(), "KILL").Run(); err != nil {
		t.Fatal(err)
	}
	err = <-first.ended
	first.ended <- err
	second := run()
	if after := totals(); after != before {
		t.Errorf("the second container has another table:\n%s\n%s", before, after)
	}
	if text := second.tool(0, "ps", "--socket", "gate"); !strings.Contains(text, "long=eth0") {
		t.Errorf("programs are not attached:\n%s", text)
	}
}
