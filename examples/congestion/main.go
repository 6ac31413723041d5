// The congestion command is a congestion control in user space: it registers a name with the kernel, and decides the
// windows of all flows that choose it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/congestion/congestionrelay"
	"github.com/fastrelay/fastrelay-gen/examples/congestion/control"
	relaycontrol "github.com/fastrelay/fastrelay-gen/runtime/control"
)

func main() {
	names := strings.Join(slices.Sorted(maps.Keys(control.Algorithms)), ", ")
	algorithm := flag.String("algorithm", "cubic", "one of "+names)
	name := flag.String("name", "", "what sockets choose it by; by default fr_ and the algorithm")
	interval := flag.Duration("interval", 10*time.Millisecond, "between two signals of a flow, at least")
	pins := flag.String("pins", "", "a folder in a BPF file system, for a successor")
	lease := flag.Duration("lease", 0, "how long flows are decided for without this process, as until its successor\n"+
		"is there; by default a second")
	var watch relaycontrol.Flags
	watch.Define(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, *algorithm, *name, *pins, *interval, *lease, watch); err != nil {
		fmt.Fprintln(os.Stderr, "congestion:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, algorithm, name, pins string, interval, lease time.Duration,
	watch relaycontrol.Flags) error {
	a := control.Algorithms[algorithm]
	if a == nil {
		return fmt.Errorf("there is no algorithm %q", algorithm)
	}
	if name == "" {
		name = "fr_" + algorithm
	}
	if interval < 0 || interval > time.Minute {
		return fmt.Errorf("-interval %v: want 0 to %v", interval, time.Minute)
	}
	microseconds := uint32(interval / time.Microsecond)
	relay, err := congestionrelay.Load(congestionrelay.Options{
		Algorithm: name, PinPath: pins, Lease: lease, Control: watch.Control(),
		Settings: congestionrelay.Settings{Interval: &microseconds},
	})
	if err != nil {
		return err
	}
	if err := relay.Register(); err != nil {
		return errors.Join(err, relay.Close())
	}
	fmt.Printf("registered %s; a socket chooses it by TCP_CONGESTION, as iperf3 -C %s does\n", name, name)
	return errors.Join(serve(ctx, relay, a), relay.Close())
}
