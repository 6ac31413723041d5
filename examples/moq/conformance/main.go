// Conformance prints which cases of aiomoqt's interop client relays pass, in both drafts and on both transports, and
// how many of 200 datagrams they deliver, as a table in Markdown. It fails if ours doesn't pass them all.
//
//	cd examples/moq && endpoints/build && endpoints/build moq-relay && go run ./conformance
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/others"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError)
	only := flags.String("relays", "ours,moq-relay,aiomoqt", "relays")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "moq-conformance-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	relays, err := others.Relays(ctx, dir, strings.Split(*only, ",")...)
	if err != nil {
		return err
	}
	t := table{}
	for _, r := range relays {
		t.relays = append(t.relays, r.Name)
		for _, draft := range []string{"18", "22"} {
			if err := t.run(ctx, dir, &r, draft); err != nil {
				return fmt.Errorf("%s, draft %s: %w", r.Name, draft, err)
			}
		}
	}
	t.print(out)
	if failed := t.failed("ours"); len(failed) > 0 {
		return fmt.Errorf("ours failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// asked are the cases of the interop client that it runs only if it is asked to.
var asked = []string{"fetch", "join"}

// run has clients try a relay that speaks one draft.
func (t *table) run(ctx context.Context, dir string, r *others.Relay, draft string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	at, err := others.Free()
	if err != nil {
		return err
	}
	process, err := r.Start(ctx, at, dir, draft)
	if process != nil {
		defer func() {
			cancel()
			_ = process.Wait() // killed
		}()
	}
	if err != nil {
		return err
	}
	for transport, url := range map[string]string{"QUIC": "moqt://%v", "WebTransport": "https://%v/"} {
		url := fmt.Sprintf(url, at)
		add := func(result caseResult) {
			t.results = append(t.results, result.of(r.Name, draft+" "+transport))
		}
		for _, args := range append([][]string{nil}, each(asked, "-t")...) {
			results, err := interop(ctx, append(args, "-r", url, "--tls-disable-verify", "--draft", draft))
			if err != nil {
				return err
			}
			for _, result := range results {
				add(result)
			}
		}
		n, err := datagrams(ctx, at, url, draft)
		if err != nil {
			return err
		}
		add(caseResult{name: "datagrams", passed: n == count, note: fmt.Sprintf("%d of %d", n, count)})
	}
	return nil
}

// each puts a flag before each value.
func each(values []string, flag string) (all [][]string) {
	for _, v := range values {
		all = append(all, []string{flag, v})
	}
	return all
}

// interop runs aiomoqt's interop client, which fails if a case does.
func interop(ctx context.Context, args []string) ([]caseResult, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	program, err := others.Path("python", "bin", "moq-interop-client")
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, program, args...).Output()
	results := tap(string(out))
	if len(results) == 0 {
		return nil, fmt.Errorf("%s %v: %w\n%s", program, args, err, out)
	}
	return results, nil
}

// tap reads what the client prints of its cases (Test Anything Protocol).
func tap(text string) (all []caseResult) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if message, ok := strings.CutPrefix(line, "message: "); ok && len(all) > 0 && !all[len(all)-1].passed {
			message = strings.TrimPrefix(strings.Trim(message, `"`), "Failed: ")
			all[len(all)-1].note = strings.TrimPrefix(message, "MOQTRequestError: request error: ")
		}
		rest, passed := strings.CutPrefix(line, "ok ")
		failed := !passed && strings.HasPrefix(line, "not ok ")
		if _, name, ok := strings.Cut(rest, " - "); ok && (passed || failed) {
			name, _, _ = strings.Cut(name, " ")
			all = append(all, caseResult{name: name, passed: passed})
		}
	}
	return all
}

// count is how many datagrams are sent, a group of them every pace.
const (
	count = 200
	group = 10
	pace  = 50 * time.Millisecond
)

// datagrams counts what a subscriber gets of a publisher's datagrams. The publisher has datagrams on QUIC alone.
func datagrams(ctx context.Context, at netip.AddrPort, url, draft string) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	python, err := others.Path("python", "bin", "python")
	if err != nil {
		return 0, err
	}
	start := func(args ...string) (io.WriteCloser, *bufio.Scanner, error) {
		cmd := exec.CommandContext(ctx, python, append([]string{"endpoints/aiomoqt_peer.py"}, args...)...)
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err := errors.Join(err1, err2, cmd.Start()); err != nil {
			return nil, nil, err
		}
		context.AfterFunc(ctx, func() { _ = cmd.Wait() }) // killed
		lines := bufio.NewScanner(out)
		if lines.Scan(); lines.Text() != "ok" {
			return nil, nil, fmt.Errorf("%v: %q", args, lines.Text())
		}
		return in, lines, nil
	}
	name := strings.NewReplacer(":", "", "/", "", ".", "").Replace(url)
	in, published, err := start("moqt://"+at.String(), draft, "publish", name, "track", "0", "datagrams")
	if err != nil {
		return 0, err
	}
	_, got, err := start(url, draft, "subscribe", name, "track", fmt.Sprint(count))
	if err != nil {
		return 0, err
	}
	published.Scan() // it is subscribed to
	for range count / group {
		if _, err := fmt.Fprintln(in, group, 1000); err != nil {
			return 0, err
		}
		for range group {
			published.Scan()
		}
		time.Sleep(pace)
	}
	if _, err := fmt.Fprintln(in, "done"); err != nil {
		return 0, err
	}
	for got.Scan() && !strings.HasPrefix(got.Text(), "done") {
		n++
	}
	return n, got.Err()
}

// A caseResult says whether a relay passes a case, on a transport in a draft.
type caseResult struct {
	name, note string
	passed     bool
	relay, on  string
}

func (c caseResult) of(relay, on string) caseResult {
	c.relay, c.on = relay, on
	return c
}

// A table is what all relays have done.
type table struct {
	relays  []string
	results []caseResult
}

func (t *table) print(out io.Writer) {
	fmt.Fprintf(out, "| case | %s |\n|---|%s\n", strings.Join(t.relays, " | "), strings.Repeat("---|", len(t.relays)))
	var seen []string
	for _, c := range t.results {
		if slices.Contains(seen, c.name) {
			continue
		}
		seen = append(seen, c.name)
		fmt.Fprintf(out, "| %s |", c.name)
		for _, relay := range t.relays {
			fmt.Fprintf(out, " %s |", t.cell(c.name, relay))
		}
		fmt.Fprintln(out)
	}
}

// cell says in which drafts and on which transports a relay passes a case, and why not in others.
func (t *table) cell(name, relay string) string {
	var passed, notes []string
	all := 0
	for _, c := range t.results {
		if c.name != name || c.relay != relay {
			continue
		}
		all++
		switch {
		case c.passed:
			passed = append(passed, c.on)
		case !slices.Contains(notes, c.note):
			notes = append(notes, c.note)
		}
	}
	if len(passed) == all {
		return "yes"
	}
	slices.Sort(passed)
	where := cmp.Or(strings.Join(passed, ", "), "no")
	return strings.TrimSuffix(where+": "+strings.Join(notes, "; "), ": ")
}

// failed are the cases that a relay doesn't pass everywhere.
func (t *table) failed(relay string) (all []string) {
	for _, c := range t.results {
		if c.relay == relay && !c.passed {
			all = append(all, c.name+" "+c.on)
		}
	}
	return all
}
