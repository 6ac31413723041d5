// Bottleneck sends a video of 3 Mbit/s in two layers, each of which is a track, through a MoQ relay and over a link of
// 2 Mbit/s: ours beside moq-relay. It prints how much of each layer arrives, and how late. Publisher and subscriber
// are aiomoqt's, each on a host of its own (a network namespace), so it needs root.
//
//	cd examples/moq && endpoints/build && endpoints/build moq-relay && go run ./bottleneck
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/fastrelay/fastrelay-gen/examples/moq/others"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const (
	bitrate = 2_000_000    // of the link
	queue   = bitrate / 80 // bytes that wait at it: 100 ms
	frames  = 25           // a second, of each layer: what endpoints/layers.py publishes
)

// A variant is what a subscriber asks for.
type variant struct {
	name              string
	base, enhancement int // priorities
	timeout           int // ms, of the enhancement layer's objects; 0: none
}

var variants = []variant{
	{"one priority", 128, 128, 0},
	{"two priorities", 10, 200, 0},
	{"and a timeout", 10, 200, 500},
}

// A result has the delays of all objects that came, in ms.
type result struct {
	Base        []float64 `json:"base"`
	Enhancement []float64 `json:"enhancement"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bottleneck:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, stdout io.Writer, args []string) error {
	flags := flag.NewFlagSet("bottleneck", flag.ContinueOnError)
	only := flags.String("relays", "ours,moq-relay-cubic,moq-relay", "relays")
	draft := flags.String("draft", "22", "draft")
	groups := flags.Int("groups", 20, "how many groups of one second are published")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "moq-bottleneck-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	compared, err := others.Relays(ctx, dir, strings.Split(*only, ",")...)
	if err != nil {
		return err
	}
	out := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "relay\tthe subscriber asks for\tbase layer\tp50 ms\tp99 ms\tenhancement\tp50 ms\tp99 ms\t")
	for _, v := range variants {
		for i := range compared {
			r, err := send(ctx, dir, &compared[i], *draft, *groups, v)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", compared[i].Name, v.name, err)
			}
			fmt.Fprintf(out, "%s\t%s\t%s\t%s\t\n", compared[i].Name, v.name,
				row(r.Base, *groups), row(r.Enhancement, *groups))
		}
	}
	return out.Flush()
}

// row says how much of a layer came, and how late.
func row(delays []float64, groups int) string {
	share := 100 * float64(len(delays)) / float64(groups*frames)
	if len(delays) == 0 {
		return fmt.Sprintf("%.1f%%\t-\t-", share)
	}
	slices.SortFunc(delays, cmp.Compare)
	at := func(p int) float64 { return delays[min(len(delays)*p/100, len(delays)-1)] }
	return fmt.Sprintf("%.1f%%\t%.0f\t%.0f", share, at(50), at(99))
}

// send has all groups sent through a relay, on a network of its own.
func send(
	ctx context.Context, dir string, r *others.Relay, draft string, groups int, v variant,
) (got result, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n, err := testnet.New()
	if err != nil {
		return got, err
	}
	defer n.Close()
	l, err := n.Line()
	if err != nil {
		return got, err
	}
	if err := l.RelayOut.SetRate(bitrate, queue); err != nil {
		return got, err
	}
	address := netip.AddrPortFrom(l.RelayOutAddr.V4, 4433)
	placed := *r
	placed.Run = l.Relay.Command
	process, err := placed.Start(ctx, address, dir, draft)
	defer others.End(process)
	if err != nil {
		return got, err
	}
	python, err := others.Path("python", "bin", "python")
	if err != nil {
		return got, err
	}
	client := func(host *testnet.Host, role string, args ...string) (*exec.Cmd, *bytes.Buffer) {
		args = append([]string{"endpoints/layers.py", role, "moqt://" + address.String(), draft}, args...)
		cmd, said := host.Command(ctx, python, args...), &bytes.Buffer{}
		cmd.Stderr = said
		return cmd, said
	}
	publisher, said := client(l.Client, "publish", strconv.Itoa(groups))
	begun, err := publisher.StdoutPipe()
	if err != nil {
		return got, err
	}
	if err := testnet.StartChild(publisher); err != nil {
		return got, err
	}
	defer others.End(publisher)
	if _, err := bufio.NewReader(begun).ReadString('\n'); err != nil {
		return got, fmt.Errorf("the publisher: %w\n%s", err, said)
	}
	subscriber, said := client(l.Peer, "subscribe",
		strconv.Itoa(v.timeout), strconv.Itoa(v.base), strconv.Itoa(v.enhancement))
	printed, err := subscriber.Output()
	if err == nil {
		err = json.Unmarshal(printed, &got)
	}
	if err != nil {
		return got, fmt.Errorf("the subscriber: %w\n%s", err, said)
	}
	return got, nil
}
