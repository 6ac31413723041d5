// Moq runs a relay for Media over QUIC Transport: see package relay.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
	"github.com/fastrelay/fastrelay-gen/examples/moq/relay"
	"github.com/fastrelay/fastrelay-gen/examples/quic/acks"
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
	cert := flags.String("cert", "", "`file` with the certificate and its chain, PEM; without one, a certificate for "+
		"development is made, and its hash printed")
	key := flags.String("key", "", "`file` with the certificate's key, PEM")
	metrics := flags.String("metrics", "", "address:port where anyone may read /metrics")
	every := flags.Duration("stats", 10*time.Second, "how often counters are printed; 0: never")
	grace := flags.Duration("grace", 0, "how long peers have to leave at SIGTERM (default 10s)")
	keep := flags.Duration("keep", 0, "how long objects are kept, for subscribers that are slow or late (default 10s)")
	cache := flags.Int("cache", 0, "how many `bytes` of objects are kept (default 256 MiB)")
	backlog := flags.Int("backlog", 0, "how many `bytes` wait for a subscriber's session at most (default 2 MiB)")
	fewer := flags.String("acks", "10,20", "`packets,milliseconds` after which subscribers that offer that are asked "+
		"for an ACK (ACK_FREQUENCY); 0: they aren't")
	upstreams := upstreamFlags(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	config := relay.Config{Grace: *grace, Keep: *keep, Cache: *cache, Backlog: *backlog}
	if config.Address, err = netip.ParseAddrPort(*address); err != nil {
		return fmt.Errorf("-address: %w", err)
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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	r, err := relay.Start(config)
	if err != nil {
		return err
	}
	fmt.Println("listening on", r.Addr())
	failed := make(chan error, 1)
	if *metrics != "" {
		listener, err := net.Listen("tcp", *metrics)
		if err != nil {
			return errors.Join(fmt.Errorf("-metrics: %w", err), r.Close())
		}
		fmt.Println("metrics on", listener.Addr())
		server := &http.Server{Handler: handler(r), ReadHeaderTimeout: 10 * time.Second}
		defer server.Close()
		go func() { failed <- server.Serve(listener) }()
	}
	return serve(ctx, stop, r, *every, failed)
}

// serve prints counters until ctx ends, and then drains the relay. A second signal ends the process.
func serve(ctx context.Context, stop func(), r *relay.Relay, every time.Duration, failed <-chan error) error {
	var tick <-chan time.Time
	if every > 0 {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case err := <-failed:
			return errors.Join(err, r.Close())
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

func handler(r *relay.Relay) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		s := r.Stats()
		_ = s.WriteMetrics(w) // whose reader may be gone
	})
	return mux
}

// certificates returns the certificate of two files, or one for development.
func certificates(cert, key string, address netip.Addr) (*tls.Config, error) {
	if (cert == "") != (key == "") {
		return nil, errors.New("-cert and -key belong together: give both, or none for a certificate for development")
	}
	if cert != "" {
		one, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("-cert and -key: %w", err)
		}
		return &tls.Config{Certificates: []tls.Certificate{one}}, nil
	}
	one, err := certificate.Development(address)
	if err != nil {
		return nil, err
	}
	fmt.Println("a certificate for development, valid for 14 days; its SHA-256 for serverCertificateHashes:")
	fmt.Println(certificate.Hash(one))
	return &tls.Config{Certificates: []tls.Certificate{one}}, nil
}
