package monitoring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// The configuration and the rules are valid, and the rules do what they say.
func TestFiles(t *testing.T) {
	needs.All(t)
	for _, args := range [][]string{
		{"check", "config", "prometheus.yml"}, {"check", "rules", "rules.yml"}, {"test", "rules", "rules_test.yml"},
	} {
		if out, err := exec.Command("promtool", args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// series are the names in a text.
var series = regexp.MustCompile(`\b(?:fastrelay|process|go)_[a-z_]+`)

// The dashboard and the rules ask for series that there are, and docs/operate.md#metrics describes all of them.
func TestNames(t *testing.T) {
	read := func(path string) []string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all := series.FindAllString(string(text), -1)
		slices.Sort(all)
		return slices.Compact(all)
	}
	there := append(read("../../runtime/metrics/metrics.go"), read("../../runtime/metrics/process.go")...)
	described := read("../../docs/operate.md")
	for _, name := range there {
		if !slices.Contains(described, name) {
			t.Errorf("docs/operate.md doesn't describe %s", name)
		}
	}
	for _, file := range []string{"dashboard.json", "rules.yml", "rules_test.yml", "../../docs/operate.md"} {
		for _, name := range read(file) {
			if !slices.Contains(there, name) {
				t.Errorf("%s: there is no %s", file, name)
			}
		}
	}
}

// empty are queries of the dashboard that have no answer here, and why.
var empty = map[string]string{
	"Alerts":            "nothing is wrong for as long as an alert takes",
	"Dropped after XDP": "the relay has no program at XDP",
}

// prometheus is one that scrapes.
type prometheus struct {
	*testing.T
	address string
	client  http.Client
}

// ask asks for values.
func (p *prometheus) ask(path string, values url.Values, into any) error {
	res, err := p.client.Get("http://" + p.address + path + "?" + values.Encode())
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("%s: %s: %w", path, text, err)
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return json.Unmarshal(answer.Data, into)
}

// results asks for the present values of an expression.
func (p *prometheus) results(expr string) (n int, err error) {
	var data struct{ Result []json.RawMessage }
	err = p.ask("/api/v1/query", url.Values{"query": {expr}}, &data)
	return len(data.Result), err
}

// some says whether an expression has a value.
func (p *prometheus) some(expr string) func() error {
	return func() error {
		n, err := p.results(expr)
		if err == nil && n == 0 {
			err = errors.New("no data")
		}
		return err
	}
}

// until waits until something holds.
func (p *prometheus) until(what string, holds func() error) {
	p.Helper()
	var last error
	if err := testnet.Until(20*time.Second, what, func() bool { last = holds(); return last == nil }); err != nil {
		p.Errorf("%v: %v", err, last)
	}
}

// start starts a Prometheus on a host as prometheus.yml and rules.yml say, but once a second; what is wrong is an alert
// after a second, or patiently, as long as the rules say.
func start(t *testing.T, host *testnet.Host, patiently bool) *prometheus {
	t.Helper()
	text, err := os.ReadFile("prometheus.yml")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile("rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	if !patiently {
		rules = regexp.MustCompile(`for: \w+`).ReplaceAll(rules, []byte("for: 1s"))
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"config.yml": strings.ReplaceAll(string(text), "15s", "1s"),
		"rules.yml":  string(rules),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := &prometheus{T: t, address: "127.0.0.1:9090"}
	dial := func(ctx context.Context, network, to string) (c net.Conn, err error) {
		err = host.Do(func() (err error) {
			c, err = (&net.Dialer{}).DialContext(ctx, network, to)
			return err
		})
		return c, err
	}
	p.client.Transport = &http.Transport{DialContext: dial}
	cmd := host.Command(t.Context(), "prometheus", "--config.file="+filepath.Join(dir, "config.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+p.address, "--log.level=warn")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := testnet.StartChild(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("prometheus:\n%s", text)
		}
		log.Close()
	})
	return p
}

// lab is a relay that has all that there are series of: sessions, groups, credits, events, counters. It serves its
// metrics.
func lab(t *testing.T, host *testnet.Host, metrics string) *runtime.Relay {
	t.Helper()
	built, list, err := build.Spec(t.Context(), "../../internal/test/control/testdata/spec.cue", build.Options{})
	if err != nil || list.Len() > 0 {
		t.Fatal(err, list)
	}
	if err := host.Run("ip", "route", "add", "unreachable", "203.0.113.99"); err != nil {
		t.Fatal(err)
	}
	desc := glue.Desc(built.Plan)
	var relay *runtime.Relay
	if err := host.Do(func() (err error) {
		relay, err = runtime.Load(&desc, built.Object(), runtime.Options{
			Logger:  slog.New(slog.DiscardHandler),
			Control: &control.Server{Path: filepath.Join(t.TempDir(), "lab.sock"), Metrics: metrics},
		})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { relay.Close() })
	if err := relay.Program("calls").Attach("eth0"); err != nil {
		t.Fatal(err)
	}
	ep := netip.MustParseAddrPort
	for i := range 100 {
		if _, err := relay.Open("call", ep("198.51.100.7:40001"), ep("192.0.2.1:7000"), i, ep("192.0.2.1:50000"),
			ep("203.0.113.9:7000")); err != nil {
			t.Fatal(err)
		}
	}
	group, err := relay.GroupKind("viewers").Open(t.Context(), ep("198.51.100.7:40001"), 9)
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"203.0.113.9:6001", "203.0.113.99:6001"} {
		if _, err := group.Add(t.Context(), ep("192.0.2.1:7000"), ep(to), 77); err != nil {
			t.Fatal(err)
		}
	}
	return relay
}

// A Prometheus scrapes a relay under load: each query of the dashboard has an answer, and the rules can be evaluated.
func TestDashboard(t *testing.T) {
	needs.All(t)
	needs.Root(t)
	host := testnet.Stub(t).Host
	relay := lab(t, host, "127.0.0.1:8080")
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	load.Go(func() { // no event is lost, which is something wrong
		for _, err := range relay.Events(ctx) {
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	for program, number := range map[string]byte{"calls": 7, "spread": 9} {
		load.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-ctx.Done():
					return
				case <-time.After(time.Millisecond):
				}
				packet := frame(number + byte(i%2)*200) // every second one is of nothing that is open
				if err := host.Do(func() error {        // copies leave by a device of the host
					_, err := bpftest.Run(relay.Program(program).Kernel(), ebpf.RunOptions{Data: packet})
					return err
				}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	defer load.Wait()
	defer stop()
	p := start(t, host, true)
	p.until("it scrapes the relay",
		p.some(`up{job="fastrelay"} == 1 and on () sum(rate(fastrelay_packets_total[5s])) > 0`))
	text, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	asked := 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			expr := strings.NewReplacer("$relay", ".*", "$__rate_interval", "5s").Replace(target.Expr)
			asked++
			if empty[panel.Title] == "" {
				p.until(panel.Title+": "+expr, p.some(expr))
			} else if n, err := p.results(expr); err != nil || n > 0 {
				t.Errorf("%s: %d results, %v, though %s; lost events: %d", panel.Title, n, err, empty[panel.Title],
					relay.Lost(1))
			}
		}
	}
	if asked < 20 {
		t.Errorf("only %d queries were asked", asked)
	}
	p.until("the rules are evaluated", func() error {
		var data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
		if err := p.ask("/api/v1/rules", nil, &data); err != nil {
			return err
		}
		for _, g := range data.Groups {
			for _, r := range g.Rules {
				if r.Health != "ok" {
					return fmt.Errorf("%s: %s: %s", r.Name, r.Health, r.LastError)
				}
			}
		}
		if len(data.Groups) != 1 || len(data.Groups[0].Rules) < 10 {
			return errors.New("rules are missing")
		}
		return nil
	})
}

// A server that is shipped is watched by the alerts that are shipped: it serves its metrics, its relay loses an
// interface, and it is killed again and again.
func TestAlerts(t *testing.T) {
	needs.All(t)
	needs.Root(t)
	turn := filepath.Join(t.TempDir(), "turn")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", turn, "../turn")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	host := machine(t)
	socket := filepath.Join(t.TempDir(), "turn.sock")
	serve := func(devices string) (kill func()) {
		t.Helper()
		cmd := host.Command(t.Context(), turn, "--listen", "127.0.0.1:3478", "--user", "alice=secret",
			"--interfaces", devices, "--control", socket, "--metrics", "127.0.0.1:8080")
		if err := testnet.StartChild(cmd); err != nil {
			t.Fatal(err)
		}
		return func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed
		}
	}
	p := start(t, host, false)
	alert := func(name string) {
		t.Helper()
		p.until(name, p.some(`ALERTS{alertstate="firing",alertname="`+name+`"}`))
	}
	kill := serve("in0,out0")
	p.until("the server is scraped", p.some(`fastrelay_build_info and on (instance) process_open_fds `+
		`and on (instance) fastrelay_attached == 1 and on (instance) up{job="fastrelay"} == 1`))
	if err := host.Run("ip", "link", "del", "in0"); err != nil {
		t.Fatal(err)
	}
	alert("RelayDetached")
	kill()
	alert("RelayDown")
	for n := range 3 { // each of which has to be scraped
		kill = serve("lo")
		p.until("it is scraped again",
			p.some(fmt.Sprintf(`changes(process_start_time_seconds{job="fastrelay"}[15m]) > %d`, n)))
		kill()
	}
	alert("RelayRestarts")
}

// machine is a host with two interfaces.
func machine(t *testing.T) *testnet.Host {
	t.Helper()
	host, err := testnet.Start(t).Host("relay")
	if err == nil {
		err = host.Run("ip", "link", "add", "in0", "type", "veth", "peer", "name", "out0")
	}
	if err != nil {
		t.Fatal(err)
	}
	return host
}

// Each example that loads a relay has flags for its control socket and its metrics.
func TestServers(t *testing.T) {
	servers, err := filepath.Glob("../*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	loads, checked := regexp.MustCompile(`relay\.Load\(`), 0
	for _, file := range servers {
		dir := filepath.Dir(file)
		var all []byte
		for _, pattern := range []string{"/*.go", "/*/*.go"} {
			files, err := filepath.Glob(dir + pattern)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				text, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, text...)
			}
		}
		if !loads.Match(all) {
			continue // it has no relay in the kernel
		}
		checked++
		if !regexp.MustCompile(`\.Define\(f(lag.*)?\)|&watch\.Metrics`).Match(all) || !regexp.MustCompile(
			`Control: +[\w.]+\.(Control|OwnGroups)\(\)`).Match(all) {
			t.Errorf("%s: no flags for the control socket and the metrics", file)
		}
	}
	if checked < 8 {
		t.Errorf("%d examples load a relay", checked)
	}
}

// frame is a packet of a call or a stream.
func frame(number byte) []byte {
	f := make([]byte, 14, 64)
	f[12] = 8
	f = append(f, 0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 198, 51, 100, 7, 192, 0, 2, 1)
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(f[i])<<8 | uint32(f[i+1])
	}
	sum = ^(sum + sum>>16)
	f[24], f[25] = byte(sum>>8), byte(sum)
	f = append(f, 0x9c, 0x41, 0x1b, 0x58, 0, 10, 0, 0, 0, number) // from port 40001 to 7000
	return append(f, make([]byte, 16)...)
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
