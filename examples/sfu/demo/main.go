// The demo command shows what the SFU does: on hosts that it makes for the purpose, a real encoder's video goes to four
// receivers through the kernel, each wanting something else, and each decoding what it gets.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/sfu/lab"
	"github.com/fastrelay/fastrelay-gen/examples/sfu/server"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func main() {
	lab.Main()
	if err := run(os.Stdout, 8); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

const topology = `
                              ┌──── anna    wants everything
    publisher ──── sfu ───────┼──── bert    wants the base layer
    VP8 in three layers       ├──── carl    can take %d kbit/s
                              └──── dora    loses one packet in twenty, and asks for it

Six network namespaces, joined by veth pairs. ffmpeg has made %d seconds of video, and decodes what each receiver gets.

`

// guest is a receiver and what it asks for.
type guest struct {
	name  string
	wants string
	ask   server.Subscribe
	lose  func(uint16) bool
	*lab.Receiver
}

const bandwidth = 600_000 // bits a second

func guests() []*guest {
	return []*guest{
		{name: "anna", wants: "all layers"},
		{name: "bert", wants: "layer 0", ask: server.Subscribe{Layer: new(uint8(0))}},
		{name: "carl", wants: fmt.Sprintf("%d kbit/s", bandwidth/1000),
			ask: server.Subscribe{Bandwidth: new(bandwidth)}},
		{name: "dora", wants: "all layers", lose: func(n uint16) bool { return n%20 == 7 }},
	}
}

// run shows about so many seconds of video.
func run(w io.Writer, seconds int) error {
	if os.Geteuid() != 0 {
		return testnet.ErrNotRoot
	}
	ctx := context.Background()
	frames := (seconds*lab.FramesPerSecond/lab.KeyInterval + 1) * lab.KeyInterval
	video, err := lab.Encode(ctx, frames)
	if err != nil {
		return err
	}
	network, err := testnet.New()
	if err != nil {
		return err
	}
	defer network.Close()
	all := guests()
	star, err := lab.NewStar(network, len(all))
	if err != nil {
		return err
	}
	sfu, err := lab.Serve(star.SFU, "--address", star.SFUAddr.V4.String(), "--interfaces", "pub")
	if err != nil {
		return err
	}
	defer sfu.Kill()
	fmt.Fprintf(w, topology, bandwidth/1000, seconds)

	cam, err := sfu.Publish(server.Publish{Name: "cam"})
	if err != nil {
		return err
	}
	publisher, err := lab.NewPublisher(star.Publisher, cam.Server, 1)
	if err != nil {
		return err
	}
	defer publisher.Close()
	for i, g := range all {
		if g.Receiver, err = lab.NewReceiver(star.Receivers[i].Host, star.Receivers[i].Addr.V4); err != nil {
			return err
		}
		defer g.Close()
		g.Lose(g.lose)
		g.ask.Name, g.ask.Publisher, g.ask.Address = g.name, new("cam"), &g.Addr
		if _, err := sfu.Subscribe(g.ask); err != nil {
			return err
		}
	}
	if err := publisher.Play(ctx, video.Frames); err != nil {
		return err
	}
	for _, g := range all {
		if err := testnet.Until(2*time.Second, g.name+" has got everything", func() bool {
			return g.AskAgain() == 0
		}); err != nil {
			return err
		}
	}
	st, err := sfu.Stats()
	if err != nil {
		return err
	}
	if err := table(ctx, w, all, st); err != nil {
		return err
	}
	if err := sfu.Stop(); err != nil {
		return err
	}
	fmt.Fprint(w, `
Try next: sudo go run ./examples/sfu --address ADDRESS-OF-THIS-HOST, and examples/sfu/README.md for what to send to it.
`)
	return nil
}

// table prints what each receiver got.
func table(ctx context.Context, w io.Writer, all []*guest, st server.Stats) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\twants\tpictures\tby layer\tpackets\tby the kernel\tlost\tsent again\tgaps\t")
	var errs []error
	for i, g := range all {
		pictures := g.Pictures()
		var frames [][]byte
		var layers [3]int
		for _, p := range pictures {
			frames = append(frames, p.Data)
			layers[p.Layer]++
		}
		sums, err := lab.Decode(ctx, frames)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", g.name, err))
		}
		n, u := g.Tally(), st.Subscribers[i]
		fmt.Fprintf(tw, "%s\t%s\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t\n", g.name, g.wants, len(sums),
			strings.Trim(fmt.Sprint(layers), "[]"), n.Packets, u.InKernel, n.Lost, u.Resent, n.Missing)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	cam := st.Publishers[0]
	fmt.Fprintf(w, "\nThe publisher sent %d packets; it was asked for a key frame %d times. Pictures begin with the "+
		"first key frame after the beginning.\n", cam.Packets, cam.AskedKey)
	return errors.Join(errs...)
}
