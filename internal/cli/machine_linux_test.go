package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const machineSpec = `name: "machine"
headers: tag: fields: [{name: "number", bits: 16}]
tables: known: {key: {number: "u16"}, value: {packets: "counter"}, size: 16}
programs: {
	one: {
		hook: "tc/ingress", stack: ["eth", "ip", "udp", "tag"], lookup: k: known: ["tag.number"]
		do: [{count: "k.packets"}, "pass"]
	}
	two: {hook: "tc/ingress", stack: ["eth", "ip", "udp", "tag"], do: ["pass"]}
}
`

// machine is a relay that an operator works on, and what has to be so.
type machine struct {
	*testing.T
	host         *testnet.Host
	dir, pin     string
	socket, page string
	spec, other  string
	pid          int         // of the relay; 0: none runs
	pinned       bool        // it has left its pins, if none runs
	attached     [][2]string // programs and interfaces
	size         int         // of the table
	rows         []string    // keys of its rows
	devices      []string
	made         int // devices with a name of their own
	log          []string
}

// A relay is attached, detached, killed, taken over and stopped at random, its log and its interfaces are renamed,
// while ps, metrics and the kernel's own list of programs agree on what is attached where.
func TestOperations(t *testing.T) {
	needs.Root(t)
	n := testnet.Start(t)
	host, err := n.Host("relay")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	m := &machine{T: t, host: host, dir: dir, socket: filepath.Join(dir, "m.sock"), spec: filepath.Join(dir, "m.cue"),
		pin: fmt.Sprintf("/sys/fs/bpf/machine-%d", os.Getpid())}
	m.other = filepath.Join(dir, "other.cue")
	other := strings.Replace(machineSpec, `name: "machine"`, `name: "other"`, 1)
	if err := os.WriteFile(m.other, []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	m.resize(16)
	for range 3 {
		m.device()
	}
	if err := host.Run("ip", "tuntap", "add", "noeth", "mode", "tun"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if m.pid != 0 {
			_, _ = m.command("stop", "--socket", m.socket)
		}
		os.RemoveAll(m.pin) // of a relay that was killed last
		if t.Failed() {
			t.Logf("it did\n%s", strings.Join(m.log, "\n"))
		}
	})
	random := rand.New(rand.NewPCG(needs.Seed(t), 0))
	for range needs.Of(60, 600) {
		m.step(random)
		m.check()
		if t.Failed() {
			return
		}
	}
}

// resize writes the spec with a table of another size.
func (m *machine) resize(size int) {
	m.size = size
	text := strings.Replace(machineSpec, "size: 16", fmt.Sprint("size: ", size), 1)
	if err := os.WriteFile(m.spec, []byte(text), 0o600); err != nil {
		m.Fatal(err)
	}
}

// device makes one.
func (m *machine) device() {
	name := fmt.Sprintf("d%d", m.made)
	m.made++
	if err := m.host.Run("ip", "link", "add", name, "type", "veth", "peer", "name", name+"peer"); err != nil {
		m.Fatal(err)
	}
	m.devices = append(m.devices, name)
}

// command runs one of the tool's, to its end.
func (m *machine) command(args ...string) (string, int) {
	m.Helper()
	var says bytes.Buffer
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{"fastrelay-gen"}, args...), Stdout: &says, Stderr: &says,
	}
	err := m.host.Do(cmd.Run)
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		m.Fatal(err)
	}
	m.log = append(m.log, fmt.Sprintf("%s: %d\n%s", strings.Join(args, " "), cmd.ProcessState.ExitCode(), &says))
	return says.String(), cmd.ProcessState.ExitCode()
}

// must runs a command that has to end with a status, and to say something.
func (m *machine) must(status int, words string, args ...string) string {
	m.Helper()
	out, got := m.command(args...)
	if got != status || !strings.Contains(out, words) {
		m.Fatalf("%s: status %d, want %d, with %q:\n%s", strings.Join(args, " "), got, status, words, out)
	}
	return out
}

// step does one thing.
func (m *machine) step(random *rand.Rand) {
	program := []string{"one", "two"}[random.IntN(2)]
	iface := append(slices.Clone(m.devices), "nosuch")[random.IntN(len(m.devices)+1)]
	at := [2]string{program, iface}
	there := slices.Contains(m.attached, at)
	switch what := random.IntN(13); {
	case what == 0: // an interface is renamed, and another one may get the name that it had
		i := random.IntN(len(m.devices))
		was, now := m.devices[i], fmt.Sprintf("d%d", m.made)
		m.made++
		if err := m.host.Run("ip", "link", "set", was, "name", now); err != nil {
			m.Fatal(err)
		}
		m.log = append(m.log, fmt.Sprintf("%s is renamed to %s", was, now))
		m.devices[i] = now
		for i := range m.attached {
			if m.attached[i][1] == was {
				m.attached[i][1] = now
			}
		}
		if random.IntN(2) == 0 {
			if err := m.host.Run("ip", "link", "add", was, "type", "veth", "peer", "name", now+"peer"); err != nil {
				m.Fatal(err)
			}
			m.devices = append(m.devices, was)
		}
	case m.pid == 0:
		m.again(random)
	case what < 4 && iface == "nosuch":
		m.must(1, "nosuch", "attach", "--socket", m.socket, program+"="+iface)
	case what < 4:
		m.must(0, "", "attach", "--socket", m.socket, program+"="+iface)
		if !there {
			m.attached = append(m.attached, at)
		}
	case what < 6 && there:
		m.must(0, "", "detach", "--socket", m.socket, program+"="+iface)
		m.attached = slices.DeleteFunc(m.attached, func(b [2]string) bool { return b == at })
	case what < 6:
		m.must(1, "isn't attached to", "detach", "--socket", m.socket, program+"="+iface)
	case what == 6 || what == 10 || what == 11:
		m.kill()
	case what == 7:
		m.hangUp()
	case what == 12:
		row := fmt.Sprint(random.IntN(1 << 16))
		if slices.Contains(m.rows, row) || len(m.rows) == m.size {
			return
		}
		m.must(0, "", "set", "--socket", m.socket, "known", "number="+row, "packets=1")
		m.rows = append(m.rows, row)
	case what == 8:
		m.must(1, "end it first", "remove", "machine", "--pin", m.pin, "--socket", m.socket)
		m.must(1, fmt.Sprintf("process %d (fastrelay-gen)", m.pid), "remove", "machine", "--pin", m.pin, "--socket",
			m.socket+"2")
	default:
		m.must(0, "", "stop", "--socket", m.socket)
		m.pid, m.pinned, m.attached, m.rows = 0, false, nil, nil
	}
}

// run starts a relay, which takes over what the last one has left: what is asked for is attached then, and nothing
// else.
func (m *machine) run(random *rand.Rand, more ...string) {
	var want [][2]string
	args := append([]string{"run", m.spec, "--detach", "--control", m.socket, "--pin", m.pin, "--http", "127.0.0.1:0"},
		more...)
	for i, p := range []string{"one", "two"} {
		for _, d := range m.devices {
			if random.IntN(3) == 0 || i == 1 && d == m.devices[len(m.devices)-1] && len(want) == 0 {
				want = append(want, [2]string{p, d})
				args = append(args, "--attach", p+"="+d)
			}
		}
	}
	says := m.must(0, "", args...)
	for _, at := range m.attached {
		text := at[0] + " is detached from " + at[1] + ":"
		if gone := !slices.Contains(want, at); gone != strings.Contains(says, text) {
			m.Errorf("it says %q: %v, want %v:\n%s", text, !gone, gone, says)
		}
	}
	var info struct{ PID int }
	m.json(&info, "show", "--socket", m.socket, "--format", "json")
	m.page = regexp.MustCompile(`http://127\.0\.0\.1:[0-9]+/`).FindString(says)
	m.pid, m.pinned, m.attached = info.PID, true, want
	var rows []struct{ ID string }
	m.json(&rows, "show", "rows", "known", "--socket", m.socket, "--format", "json")
	var ids []string
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	slices.Sort(ids)
	if slices.Sort(m.rows); !slices.Equal(ids, m.rows) {
		m.Errorf("it has rows %v, want %v", ids, m.rows)
	}
}

// again runs the relay once more, or makes a mistake: then all is as it was.
func (m *machine) again(random *rand.Rand) {
	fails := func(words string, spec string, attach ...string) {
		m.must(1, words, append([]string{"run", spec, "--detach", "--control", m.socket, "--pin", m.pin}, attach...)...)
	}
	first := "one=" + m.devices[0]
	switch what := random.IntN(8); {
	case what == 0: // before anything is adopted
		fails("nosuch", m.spec, "--attach", first, "--attach", "two=nosuch")
	case what == 1: // and after
		fails("no Ethernet header", m.spec, "--attach", first, "--attach", "two=noeth")
	case what == 2 && m.pinned:
		fails("it is another one", m.other, "--attach", first)
	case what == 3:
		m.remove()
	case what < 6 && m.pinned: // it grows if that is asked for, and doesn't shrink
		m.resize(m.size + 16)
		fails("grow it (run --grow", m.spec, "--attach", first)
		m.run(random, "--grow")
		m.kill()
		m.resize(m.size - 16)
		fails("laid out otherwise", m.spec, "--grow", "--attach", first)
		m.resize(m.size + 16)
	default:
		m.run(random)
	}
}

// remove removes what a relay that was killed has left, if there is one.
func (m *machine) remove() {
	args := []string{"remove", "machine", "--pin", m.pin, "--socket", m.socket}
	if !m.pinned {
		m.must(1, "there is nothing of a relay machine", args...)
		return
	}
	says := m.must(0, "what was pinned at "+m.pin+" is removed", args...)
	for _, at := range m.attached {
		if text := fmt.Sprintf("program %s is detached from %s\n", at[0], at[1]); !strings.Contains(says, text) {
			m.Errorf("it doesn't say %q:\n%s", text, says)
		}
	}
	m.pinned, m.attached, m.rows = false, nil, nil
	for _, path := range []string{m.socket, m.socket + ".lock"} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			m.Errorf("%s is left: %v", path, err)
		}
	}
}

// hangUp renames the log, and has the relay open it anew, as logrotate does.
func (m *machine) hangUp() {
	log := strings.TrimSuffix(m.socket, ".sock") + ".log"
	if err := os.Rename(log, log+".1"); err != nil {
		m.Fatal(err)
	}
	m.log = append(m.log, "its log is renamed, and SIGHUP sent")
	if err := unix.Kill(m.pid, unix.SIGHUP); err != nil {
		m.Fatal(err)
	}
	if err := testnet.Until(time.Minute, "its log is opened anew", func() bool {
		if m.ended() {
			m.Fatal("it has ended")
		}
		text, err := os.ReadFile(log)
		return err == nil && strings.Contains(string(text), "the log is opened anew")
	}); err != nil {
		m.Fatal(err)
	}
}

// ended says whether all threads of its process have: the first one may be dead before others, which still have its
// files.
func (m *machine) ended() bool {
	fd, err := unix.PidfdOpen(m.pid, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer unix.Close(fd)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// kill has the process end without a chance to clean up.
func (m *machine) kill() {
	m.log = append(m.log, "it is killed")
	if err := unix.Kill(m.pid, unix.SIGKILL); err != nil {
		m.Fatal(err)
	}
	if err := testnet.Until(time.Minute, "its process has ended", m.ended); err != nil {
		m.Fatal(err)
	}
	m.pid = 0
}

func (m *machine) json(into any, args ...string) {
	m.Helper()
	if err := json.Unmarshal([]byte(m.must(0, "", args...)), into); err != nil {
		m.Fatal(err)
	}
}

// check compares what is attached with what has to be: as the kernel has it at once, as the relay says it when it has
// heard of a new name.
func (m *machine) check() {
	m.Helper()
	want := placesText(m.attached)
	if got := m.kernel(); got != want {
		m.Errorf("the kernel has %s, want %s", got, want)
	}
	if _, err := os.Stat(m.pin); (err == nil) != m.pinned {
		m.Errorf("pins: %v, want some: %v", err, m.pinned)
	}
	if m.pid == 0 {
		return
	}
	var ps, metrics string
	if err := testnet.Until(10*time.Second, "the relay says what the kernel has", func() bool {
		ps, metrics = m.ps(), m.metrics()
		return ps == want && metrics == want
	}); err != nil {
		m.Errorf("%v: ps says %s, metrics say %s, want %s", err, ps, metrics, want)
	}
}

func placesText(places [][2]string) string {
	var all []string
	for _, p := range places {
		all = append(all, p[0]+"="+p[1])
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// kernel asks the kernel for the programs of each interface.
func (m *machine) kernel() string {
	var all [][2]string
	err := m.host.Do(func() error {
		for _, d := range m.devices {
			dev, err := net.InterfaceByName(d)
			if err != nil {
				return err
			}
			found, err := link.QueryPrograms(link.QueryOptions{Target: dev.Index, Attach: ebpf.AttachTCXIngress})
			if err != nil {
				return err
			}
			for _, p := range found.Programs {
				prog, err := ebpf.NewProgramFromID(p.ID)
				if err != nil {
					return err
				}
				info, err := prog.Info()
				prog.Close()
				if err != nil {
					return err
				}
				all = append(all, [2]string{info.Name[strings.LastIndexByte(info.Name, '_')+1:], d})
			}
		}
		return nil
	})
	if err != nil {
		m.Fatal(err)
	}
	return placesText(all)
}

func (m *machine) ps() string {
	var all []struct{ Attached string }
	m.json(&all, "ps", "--socket", m.socket, "--format", "json")
	m.log = m.log[:len(m.log)-1]
	return sorted(all[0].Attached)
}

func sorted(places string) string {
	all := strings.Fields(places)
	slices.Sort(all)
	return strings.Join(all, " ")
}

var attachedMetric = regexp.MustCompile(
	`^fastrelay_attached\{relay="machine",program="(\w+)",interface="(\w+)",.*\} 1$`)

func (m *machine) metrics() string {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(_ context.Context, _, address string) (c net.Conn, err error) {
			err = m.host.Do(func() error {
				c, err = net.Dial("tcp", address)
				return err
			})
			return c, err
		}}}
	res, err := client.Get(m.page + "metrics")
	if err != nil {
		m.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		m.Fatal(err)
	}
	var all [][2]string
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if f := attachedMetric.FindStringSubmatch(lines.Text()); f != nil {
			all = append(all, [2]string{f[1], f[2]})
		} else if strings.HasPrefix(lines.Text(), "fastrelay_attached{") {
			m.Errorf("metrics: %s", lines.Text())
		}
	}
	return placesText(all)
}
