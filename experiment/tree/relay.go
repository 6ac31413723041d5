package tree

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/bench/fanout/rewrite/rewriterelay"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// role is the environment variable that has a copy of the running program be a relay, with a job in JSON.
const role = "FASTRELAY_TREE"

// job is what a relay's process does.
type job struct{ Control, Pin string }

// Main lets the program that calls it first of all be started again as a relay. Then it doesn't return.
func Main() {
	text := os.Getenv(role)
	if text == "" {
		return
	}
	if err := relayMain(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// relayMain runs a relay until its input ends. It knows of no tree: a controller opens its group by the control socket.
func relayMain(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	relay, err := rewriterelay.Load(rewriterelay.Options{Control: control.Socket(j.Control), PinPath: j.Pin})
	if err != nil {
		return err
	}
	if err := relay.Deliver.Attach("up"); err != nil {
		return errors.Join(err, relay.Close())
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, relay.Close())
}

// node is a relay of the tree: its place, which the controller knows, and its process.
type node struct {
	host   *testnet.Host
	server netip.AddrPort // where its packets come to
	want   []api.Object   // the receivers that it should have
	job    job
	client *api.Client

	cmd   *exec.Cmd
	input io.Closer
}

// start starts the relay's process, and returns when its program is attached.
func (n *node) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := json.Marshal(n.job)
	if err != nil {
		return err
	}
	n.cmd = exec.Command(self)
	n.cmd.Env = append(os.Environ(), role+"="+string(text))
	n.cmd.Stderr = os.Stderr
	if n.input, err = n.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	// It is in the host's namespace, and sees the BPF file system of all. Its input ends when this process does.
	if err := n.host.Do(n.cmd.Start); err != nil {
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "ready" {
		n.kill()
		return fmt.Errorf("relay %s: %w", n.host.Name, errors.Join(err, errors.New("it didn't start")))
	}
	return nil
}

// kill ends the process without notice.
func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
}

// stop ends the relay; nothing of it remains.
func (n *node) stop() error {
	n.client.Close()
	return errors.Join(n.input.Close(), n.cmd.Wait())
}

const groups = "/v1/groups/receivers"

func (n *node) group() string { return groups + "/" + api.Escape(n.server.String()) }

// install gives the relay the receivers that it should have, and reports whether it had them already. This is all that
// a controller does, for a relay that starts, and for one that takes another one's place.
func (n *node) install(ctx context.Context) (had bool, err error) {
	var g api.Group
	err = n.client.Get(ctx, n.group(), &g)
	if err == nil {
		if g.Receivers != len(n.want) {
			return true, fmt.Errorf("relay %s has %d receivers, not %d", n.host.Name, g.Receivers, len(n.want))
		}
		return true, nil
	}
	if p := (*api.Problem)(nil); !errors.As(err, &p) || p.Status != http.StatusNotFound {
		return false, err
	}
	open := api.OpenGroup{Key: api.Object{{Name: "server", Value: n.server}}, Receivers: n.want}
	return false, n.client.Do(ctx, http.MethodPost, groups, open, nil)
}

// receiver is a row of a group.
func receiver(local, remote netip.AddrPort, ssrc uint32) api.Object {
	return api.Object{
		{Name: "local", Value: local}, {Name: "remote", Value: remote}, {Name: "ssrc", Value: ssrc},
		{Name: "payload_type", Value: 96}, {Name: "sequence", Value: 0}, {Name: "timestamp", Value: 0},
	}
}

// memory returns what the relay's maps take in the kernel, and what its process takes, in bytes.
func (n *node) memory() (maps, process uint64, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(n.cmd.Process.Pid))
	files, err := filepath.Glob(filepath.Join(dir, "fdinfo", "*"))
	if err != nil {
		return 0, 0, err
	}
	seen := map[uint64]bool{}
	for _, f := range files {
		info := numbers(f)
		if id, ok := info["map_id"]; ok && !seen[id] {
			seen[id] = true
			maps += info["memlock"]
		}
	}
	return maps, numbers(filepath.Join(dir, "status"))["VmRSS"] * 1024, nil
}

// numbers reads lines such as "VmRSS: 17 kB".
func numbers(file string) map[string]uint64 {
	text, _ := os.ReadFile(file) // a descriptor may be closed by now
	out := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		if f := strings.Fields(value); len(f) > 0 {
			if n, err := strconv.ParseUint(f[0], 10, 64); err == nil {
				out[name] = n
			}
		}
	}
	return out
}

// replacement is how a relay was replaced, from the moment when its process was killed.
type replacement struct {
	ready   time.Duration // the new process's program is attached
	rebuilt time.Duration // it has its receivers
	adopted bool          // from what its predecessor had pinned
}

// replace kills a relay's process and starts another one in its place, as a supervisor does that waits for it, and
// gives it its receivers. Without pins, nothing of the first one is left.
func (n *node) replace(ctx context.Context) (r replacement, err error) {
	n.kill()
	n.client.Close()
	began := time.Now()
	if err := n.start(); err != nil {
		return r, err
	}
	r.ready = time.Since(began)
	r.adopted, err = n.install(ctx)
	r.rebuilt = time.Since(began)
	return r, err
}
