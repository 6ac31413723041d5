// The bench command measures what the SFU of package sfu spends on a packet that it delivers, for its three ways of
// sending. The README beside the SFU says how, and what the figures mean.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/examples/segments/sfu"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func main() {
	serverMain()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// role is the environment variable that makes a copy of this program an SFU; its value is the file of its profile, or
// "none".
const role = "FASTRELAY_SEGMENTS_BENCH"

// serverMain is the SFU's process. In others it returns.
func serverMain() {
	profile := os.Getenv(role)
	if profile == "" {
		return
	}
	if profile != "none" {
		f, err := os.Create(profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := sfu.Command(os.Args[1:], os.Stdout, os.Stderr)
	pprof.StopCPUProfile()
	os.Exit(code)
}

// options say what is measured.
type options struct {
	subscribers   []int
	rate, packets int // of the publisher: packets a second, and in a round
	frame         int // so many of them are sent at once
	rounds        int
	steer         bool
	profiles      string
}

func run() error {
	var o options
	list := flag.String("subscribers", "8,64", "`counts` of subscribers")
	flag.IntVar(&o.rate, "rate", 500, "packets a second that the publisher sends at most")
	flag.IntVar(&o.frame, "frame", 8, "packets of a frame, which the publisher sends at once")
	flag.IntVar(&o.packets, "packets", 1000, "packets that the publisher sends in a round")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds over which medians are taken")
	flag.BoolVar(&o.steer, "steer", true, "the peers' processor handles what subscribers receive; else the SFU's "+
		"does, up to their sockets")
	flag.StringVar(&o.profiles, "profiles", "", "`folder` that profiles of the SFU's processes are written into")
	flag.Parse()
	for _, text := range strings.Split(*list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 2 || n > 500 {
			return fmt.Errorf("-subscribers %s: want numbers from 2 to 500", *list)
		}
		o.subscribers = append(o.subscribers, n)
	}
	switch {
	case o.rate < 1 || o.frame < 1 || o.packets < 1 || o.rounds < 1:
		return errors.New("-rate, -frame, -packets and -rounds: want 1 or more")
	case os.Geteuid() != 0:
		return testnet.ErrNotRoot
	case runtime.NumCPU() < 2:
		return errors.New("two processors are needed: one for the peers, one for the SFU")
	}
	runtime.GOMAXPROCS(1)
	if err := measure.Prefer(os.Getpid(), measure.LoadCPU); err != nil {
		return err
	}
	var cells []cell
	for _, n := range o.subscribers {
		c, err := measureAll(o, n)
		if err != nil {
			return err
		}
		cells = append(cells, c)
	}
	print(os.Stdout, cells)
	return nil
}
