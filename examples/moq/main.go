// Moq runs a relay for Media over QUIC Transport: see package relay.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
	"github.com/fastrelay/fastrelay-gen/examples/moq/operate"
	"github.com/fastrelay/fastrelay-gen/examples/moq/relay"
	"github.com/fastrelay/fastrelay-gen/examples/moq/restart"
	"github.com/fastrelay/fastrelay-gen/examples/quic/acks"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "moq:", err)
		os.Exit(1)
	}
}

func run(args []string) (err error) {
	flags := flag.NewFlagSet("moq", flag.ContinueOnError)
	address := flags.String("address", "", "where to listen, such as 192.0.2.1:4433 or [::]:4433")
	cert := flags.String("cert", "", "`file` with the certificate and its chain, PEM, which may be renewed while the "+
		"relay runs; without one, a certificate for development is made, and its hash printed")
	key := flags.String("key", "", "`file` with the certificate's key, PEM")
	resetKey := flags.String("reset-key", "", "`file` with the key that the next relay at this address has to have, "+
		"so that peers learn that this one was killed when they send more than a PING; it is made if it isn't there")
	successor := flags.String("successor", "", "`file` that relays at one address lock, which makes it possible to "+
		"start the next one before this one is drained; it is made if it isn't there")
	var watch control.Flags
	watch.Define(flags)
	every := flags.Duration("stats", 10*time.Second, "how often counters are printed; 0: never")
	grace := flags.Duration("grace", 10*time.Second, "how long peers have to leave at SIGTERM; 0: they haven't")
	keep := flags.Duration("keep", 10*time.Second, "how long objects are kept, for subscribers that are slow or late")
	cache := sizeFlag(flags, "cache", 256<<20, 1<<20, "how many `bytes` of objects are kept, such as 256MiB")
	backlog := sizeFlag(flags, "backlog", 2<<20, 64<<10, "how many `bytes` wait for a subscriber's session at most, "+
		"such as 2MiB")
	fewer := flags.String("acks", "10,20", "`packets,milliseconds` after which subscribers that offer that are asked "+
		"for an ACK (ACK_FREQUENCY); 0: they aren't")
	wait := flags.Duration("wait", 0, "how long what a publisher sends waits at most while it comes by the thousand "+
		"packets a second: what is made of several at once costs less (default 2ms; negative: it never waits)")
	inSegments := flags.Bool("segments", false, "send packets to many subscribers as segments of few datagrams, "+
		"by two virtual devices: it costs less with dozens of them, and needs CAP_NET_ADMIN and CAP_BPF")
	null := prefixesFlag(flags, "null", "`prefix` of addresses of relays, above and below, with which packets aren't "+
		"protected after the handshake if these relays have the flag as well, such as 192.0.2.0/24: for a network "+
		"that protects itself; may be repeated")
	interfaces := flags.String("interfaces", "", "`devices`, separated by commas, by which relays of -null are "+
		"reached: there, the kernel copies what comes from -upstream to relays below")
	var inKernel control.Flags
	flags.StringVar(&inKernel.Socket, "kernel-control", "", "path of a control socket for -interfaces' programs, or a "+
		"name: that of one in /run/fastrelay")
	flags.StringVar(&inKernel.Metrics, "kernel-metrics", "", "address:port for their /metrics; with a control socket "+
		"of the name moq-kernel, unless -kernel-control names another")
	upstreams := upstreamFlags(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := agree(flags); err != nil {
		return err
	}
	config := relay.Config{
		Grace: *grace, Keep: *keep, Cache: *cache, Backlog: *backlog, Wait: *wait, Segments: *inSegments, Null: *null,
		Watch: inKernel,
	}
	switch {
	case *grace < 0 || *keep <= 0 || *every < 0:
		return errors.New("-grace, -keep and -stats are durations, such as 10s: none is negative, and -keep isn't 0")
	case *grace == 0:
		config.Grace = -1
	}
	if config.Address, err = netip.ParseAddrPort(*address); err != nil {
		return fmt.Errorf("-address: %q isn't an IP address and a port, such as 192.0.2.1:4433 or [::]:4433", *address)
	}
	if *interfaces != "" {
		config.Interfaces = devices(*interfaces)
		if config.Address.Addr().IsUnspecified() {
			return fmt.Errorf("-interfaces: -address has to be the one address that relays below connect to, not %v",
				config.Address.Addr())
		}
	}
	if inKernel.Metrics != "" && inKernel.Socket == "" {
		config.Watch.Socket = "moq-kernel" // this process has that of the name moq, too
	}
	if config.ACKs, err = acks.Parse(*fewer); err != nil {
		return fmt.Errorf("-acks: %w", err)
	}
	if config.TLS, err = certificates(*cert, *key, config.Address.Addr()); err != nil {
		return err
	}
	if config.Upstreams, err = upstreams(); err != nil {
		return err
	}
	if err := follow(&config, *resetKey, *successor); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	r, err := relay.Start(config)
	if err != nil {
		return err
	}
	fmt.Println("listening on", r.Addr())
	if watch != (control.Flags{}) {
		shown := operate.New("moq", r)
		server := &control.Server{Path: watch.Socket, Metrics: watch.Metrics, Stop: stop}
		if err := server.Show(shown); err != nil {
			if errors.Is(err, fs.ErrPermission) && watch.Socket == "" {
				err = fmt.Errorf("%w; -control PATH has the control socket be elsewhere", err)
			}
			return errors.Join(fmt.Errorf("-control and -metrics: %w", err), r.Close())
		}
		defer server.Close()
		looking, end := context.WithCancel(context.Background()) // also while it is drained
		defer end()
		go shown.Run(looking)
		if at := server.MetricsAddr(); at != nil {
			fmt.Println("metrics on", at)
		}
	}
	return serve(ctx, stop, r, *every)
}

// follow has a relay be one of those that follow each other at an address.
func follow(config *relay.Config, resetKey, successor string) (err error) {
	if resetKey != "" {
		if config.Key, err = restart.Key(resetKey); err != nil {
			return fmt.Errorf("-reset-key: %w", err)
		}
	}
	if successor != "" {
		if config.Generation, err = restart.Take(successor); err != nil {
			return fmt.Errorf("-successor: %w", err)
		}
	}
	return nil
}

// serve prints counters until ctx ends, and then drains the relay. A second signal ends the process.
func serve(ctx context.Context, stop func(), r *relay.Relay, every time.Duration) error {
	var tick <-chan time.Time
	if every > 0 {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			stop()
			fmt.Println("draining: peers are asked to leave")
			return r.Drain(context.Background())
		case <-tick:
			print(r.Stats())
		}
	}
}

func print(s relay.Stats) {
	for _, t := range s.Tracks {
		dropped := uint64(0)
		for _, n := range t.Sent.DroppedStreams() {
			dropped += n
		}
		fmt.Printf("%s %s: %d publishers, %d subscribers; %d bytes received, %d sent, %d streams dropped\n",
			t.Scope, t.Name, t.Publishers, len(t.Subscriptions), t.Received.Bytes, t.Sent.Bytes, dropped)
	}
}

// certificates returns the certificate of two files, or one for development.
func certificates(cert, key string, address netip.Addr) (*tls.Config, error) {
	if (cert == "") != (key == "") {
		return nil, errors.New("-cert and -key belong together: give both, or none for a certificate for development")
	}
	if cert != "" {
		files, err := certificate.Load(cert, key)
		if err != nil {
			return nil, fmt.Errorf("-cert and -key: %w", err)
		}
		return &tls.Config{GetCertificate: files.GetCertificate}, nil
	}
	one, err := certificate.Development(address)
	if err != nil {
		return nil, err
	}
	fmt.Println("a certificate for development, valid for 14 days; its SHA-256 for serverCertificateHashes:")
	fmt.Println(certificate.Hash(one))
	return &tls.Config{Certificates: []tls.Certificate{one}}, nil
}
