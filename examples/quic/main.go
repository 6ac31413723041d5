// Quic runs a QUIC relay: see package server. Its certificate is its own, made anew each time.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/big"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/congestion/control"
	"github.com/fastrelay/fastrelay-gen/examples/quic/acks"
	"github.com/fastrelay/fastrelay-gen/examples/quic/resetkey"
	"github.com/fastrelay/fastrelay-gen/examples/quic/server"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	relaycontrol "github.com/fastrelay/fastrelay-gen/runtime/control"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "quic:", err)
		os.Exit(1)
	}
}

func run(args []string) (err error) {
	flags := flag.NewFlagSet("quic", flag.ContinueOnError)
	address := flags.String("address", "", "where to listen, such as 192.0.2.1:4433")
	interfaces := flags.String("null-protection-on", "", "interfaces on which unprotected connections are relayed in "+
		"the kernel, separated by commas: the network has to protect itself. Clients that ask for it get no "+
		"protection, by whichever interface they come, so others must not lead to -address")
	pins := flags.String("pins", "", "a folder in a BPF file system, for a successor")
	resetKey := flags.String("reset-key", "", "`file` with the key that a successor has to have, so that clients "+
		"learn that this server was killed when they send more than a PING; it is made if it isn't there")
	algorithms := strings.Join(slices.Sorted(maps.Keys(control.Algorithms)), ", ")
	algorithm := flags.String("control", "", "the congestion control of the kernel's subscribers, one of "+algorithms+
		"; the library's by default")
	var watch relaycontrol.Flags // --control is a name here
	flags.StringVar(&watch.Socket, "socket", "",
		"path of the relay's control socket, or a name: that of one in /run/fastrelay")
	flags.StringVar(&watch.Metrics, "metrics", "", "address:port where anyone may read /metrics")
	inSegments := flags.Bool("segments", false, "send packets to many subscribers as segments of few datagrams, "+
		"by two virtual devices: it costs less with dozens of them, and needs CAP_NET_ADMIN, "+
		"CAP_NET_RAW, CAP_BPF and CAP_PERFMON")
	wait := flags.Duration("wait", 0, "how long what a publisher sends waits at most, while two packets or more come "+
		"in that time: what is made of several at once costs less (default 1ms; negative: it never waits)")
	policy := flags.String("acks", "10,20", "`packets,milliseconds` after which subscribers that offer it are asked "+
		"for an ACK: fewer cost less; 0: none is asked")
	every := flags.Duration("stats", 10*time.Second, "how often counters are printed; 0: never")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is no flag; a switch is written -segments, without a value", flags.Arg(0))
	}
	if *interfaces == "" && (watch != relaycontrol.Flags{} || *pins != "" || *algorithm != "") {
		return errors.New("-socket, -metrics, -pins and -control are about the programs in the kernel: give " +
			"-null-protection-on as well")
	}
	config := server.Config{Pins: *pins, Control: control.Algorithms[*algorithm], Watch: watch,
		Wait: *wait, Segments: *inSegments}
	if config.ACKs, err = acks.Parse(*policy); err != nil {
		return fmt.Errorf("-acks: %w", err)
	}
	if *algorithm != "" && config.Control == nil {
		return fmt.Errorf("-control: there is no algorithm %q; there are %s", *algorithm, algorithms)
	}
	if config.Address, err = netip.ParseAddrPort(*address); err != nil {
		return fmt.Errorf("-address: %q isn't an IP address and a port, such as 192.0.2.1:4433", *address)
	}
	for name := range strings.SplitSeq(*interfaces, ",") {
		if name = strings.TrimSpace(name); name != "" {
			config.Interfaces = append(config.Interfaces, name)
		}
	}
	if *resetKey != "" {
		key, err := resetkey.File(*resetKey)
		if err != nil {
			return fmt.Errorf("-reset-key: %w", err)
		}
		config.ResetKey = (*quic.StatelessResetKey)(key)
	}
	if config.TLS, err = certificate(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	s, err := server.Start(config)
	if err != nil {
		return err
	}
	fmt.Println("listening on", config.Address)
	return serve(ctx, s, *every)
}

// serve prints counters until ctx ends.
func serve(ctx context.Context, s *server.Server, every time.Duration) error {
	for {
		var tick <-chan time.Time
		if every > 0 {
			tick = time.After(every)
		}
		select {
		case <-ctx.Done():
			return s.Close()
		case <-tick:
			for _, f := range s.Stats() {
				sum := f.Sum()
				fmt.Printf("%s: %d bytes to %d subscribers; sent by the kernel: %d bytes, by user space: %d, "+
					"dropped: %d\n",
					f.Name, f.Bytes, len(f.Subscribers), sum.KernelBytes, sum.UserBytes, sum.DroppedBytes)
			}
		}
	}
}

// certificate makes a certificate, for any name.
func certificate() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().AddDate(1, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		NextProtos:   []string{"fastrelay"},
	}, nil
}
