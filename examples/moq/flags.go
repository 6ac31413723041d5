package main

import (
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
	"github.com/fastrelay/fastrelay-gen/examples/moq/relay"
	"github.com/fastrelay/fastrelay-gen/examples/moq/restart"
	"github.com/fastrelay/fastrelay-gen/examples/quic/acks"
	"github.com/fastrelay/fastrelay-gen/examples/quic/resetkey"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
)

// options are what the flags ask for.
type options struct {
	address, cert, key, resetKey, successor, fewer, interfaces string
	every, grace, keep, wait                                   time.Duration
	cache, backlog                                             int
	inSegments                                                 bool
	null                                                       []netip.Prefix
	watch, inKernel                                            control.Flags
	upstreams                                                  func() ([]relay.Upstream, error)
}

// define defines the flags.
func define(f *flag.FlagSet) *options {
	o := &options{}
	f.StringVar(&o.address, "address", "", "where to listen, such as 192.0.2.1:4433 or [::]:4433")
	f.StringVar(&o.cert, "cert", "", "`file` with the certificate and its chain, PEM, which may be renewed while the "+
		"relay runs; without one, a certificate for development is made, and its hash printed")
	f.StringVar(&o.key, "key", "", "`file` with the certificate's key, PEM")
	f.StringVar(&o.resetKey, "reset-key", "", "`file` with the key that the next relay at this address has to have, "+
		"so that peers learn that this one was killed when they send more than a PING; it is made if it isn't there")
	f.StringVar(&o.successor, "successor", "", "`file` that relays at one address lock, which makes it possible to "+
		"start the next one before this one is drained; it is made if it isn't there")
	o.watch.Define(f)
	f.DurationVar(&o.every, "stats", 10*time.Second, "how often counters are printed; 0: never")
	f.DurationVar(&o.grace, "grace", 10*time.Second, "how long peers have to leave at SIGTERM; 0: they haven't")
	f.DurationVar(&o.keep, "keep", 10*time.Second, "how long objects are kept, for subscribers that are slow or late")
	sizeFlag(f, &o.cache, "cache", 256<<20, 1<<20, "how many `bytes` of objects are kept, such as 256MiB")
	sizeFlag(f, &o.backlog, "backlog", 2<<20, 64<<10, "how many `bytes` wait for a subscriber's session at most, "+
		"such as 2MiB")
	f.StringVar(&o.fewer, "acks", "10,20", "`packets,milliseconds` after which subscribers that offer that are asked "+
		"for an ACK (ACK_FREQUENCY); 0: they aren't")
	f.DurationVar(&o.wait, "wait", 0, "how long what a publisher sends waits at most, while two packets or more come "+
		"in that time: what is made of several at once costs less (default 2ms; negative: it never waits)")
	f.BoolVar(&o.inSegments, "segments", false, "send packets to many subscribers as segments of few datagrams, "+
		"by two virtual devices: it costs less with dozens of them, and needs CAP_NET_ADMIN, "+
		"CAP_NET_RAW, CAP_BPF and CAP_PERFMON")
	prefixesFlag(f, &o.null, "null", "`prefix` of addresses of relays, above and below, with which packets aren't "+
		"protected after the handshake if these relays have the flag as well, such as 192.0.2.0/24: for a network "+
		"that protects itself; may be repeated")
	f.StringVar(&o.interfaces, "interfaces", "", "`devices`, separated by commas, by which relays of -null are "+
		"reached: there, the kernel copies what comes from -upstream to relays below")
	f.StringVar(&o.inKernel.Socket, "kernel-control", "", "path of a control socket for -interfaces' programs, or a "+
		"name: that of one in /run/fastrelay")
	f.StringVar(&o.inKernel.Metrics, "kernel-metrics", "", "address:port for their /metrics; with a control socket "+
		"of the name moq-kernel, unless -kernel-control names another")
	o.upstreams = upstreamFlags(f)
	return o
}

// config is what they ask of a relay.
func (o *options) config() (config relay.Config, err error) {
	config = relay.Config{
		Grace: o.grace, Keep: o.keep, Cache: o.cache, Backlog: o.backlog, Wait: o.wait, Segments: o.inSegments,
		Null: o.null, Watch: o.inKernel,
	}
	switch {
	case o.grace < 0 || o.keep <= 0 || o.every < 0:
		return config, errors.New("-grace, -keep and -stats are durations, such as 10s: none is negative, and -keep " +
			"isn't 0")
	case o.grace == 0:
		config.Grace = -1
	}
	if config.Address, err = netip.ParseAddrPort(o.address); err != nil {
		return config, fmt.Errorf("-address: %q isn't an IP address and a port, such as 192.0.2.1:4433 or [::]:4433",
			o.address)
	}
	if o.interfaces != "" {
		config.Interfaces = devices(o.interfaces)
		if config.Address.Addr().IsUnspecified() {
			return config, fmt.Errorf("-interfaces: -address has to be the one address that relays below connect to, "+
				"not %v", config.Address.Addr())
		}
	}
	if o.inKernel.Metrics != "" && o.inKernel.Socket == "" {
		config.Watch.Socket = "moq-kernel" // this process has that of the name moq, too
	}
	if config.ACKs, err = acks.Parse(o.fewer); err != nil {
		return config, fmt.Errorf("-acks: %w", err)
	}
	if config.TLS, err = certificates(o.cert, o.key, config.Address.Addr()); err != nil {
		return config, err
	}
	if config.Upstreams, err = o.upstreams(); err != nil {
		return config, err
	}
	err = follow(&config, o.resetKey, o.successor)
	return config, err
}

// agree says what is wrong with what was given together.
func agree(flags *flag.FlagSet) error {
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is no flag, and flags after it wouldn't count; a switch is written -segments, without a "+
			"value", flags.Arg(0))
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for _, c := range []struct{ flag, needs, why string }{
		{"interfaces", "null", "the kernel copies between relays without protection"},
		{"interfaces", "upstream", "the kernel copies what comes from a relay above"},
		{"kernel-control", "interfaces", "it shows what the kernel does there"},
		{"kernel-metrics", "interfaces", "it shows what the kernel does there"},
	} {
		if given[c.flag] && !given[c.needs] {
			return fmt.Errorf("-%s needs -%s: %s", c.flag, c.needs, c.why)
		}
	}
	if given["interfaces"] && given["successor"] {
		return errors.New("-interfaces and -successor exclude each other: the kernel's programs are for one process " +
			"at an address; without -successor, start the next relay when this one has ended")
	}
	return nil
}

// devices are the names of a list.
func devices(list string) (names []string) {
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// units are those that sizes may have.
var units = []struct {
	name string
	size int
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}}

// sizeFlag adds a flag for a number of bytes.
func sizeFlag(flags *flag.FlagSet, size *int, name string, value, least int, usage string) {
	*size = value
	usage += fmt.Sprintf(" (default %dMiB)", value>>20)
	flags.Func(name, usage, func(v string) error {
		unit := 1
		for _, u := range units {
			if rest, is := strings.CutSuffix(v, u.name); is {
				v, unit = rest, u.size
			}
		}
		n, err := strconv.Atoi(v)
		switch {
		case err != nil || n > 1<<50/unit:
			return errors.New("write a number of bytes, or one of KiB, MiB or GiB, such as 64MiB")
		case n*unit < least:
			return fmt.Errorf("it has to be %dKiB at least", least>>10)
		}
		*size = n * unit
		return nil
	})
}

// prefixesFlag adds a flag that is a prefix, and may be repeated.
func prefixesFlag(flags *flag.FlagSet, all *[]netip.Prefix, name, usage string) {
	flags.Func(name, usage, func(v string) error {
		p, err := netip.ParsePrefix(v)
		switch {
		case err != nil:
			return errors.New("write an address and how many of its bits count, such as 192.0.2.0/24 or 192.0.2.1/32")
		case p != p.Masked():
			return fmt.Errorf("it has bits after its length; write %v", p.Masked())
		}
		*all = append(*all, p)
		return nil
	})
}

// follow has a relay be one of those that follow each other at an address.
func follow(config *relay.Config, resetKey, successor string) (err error) {
	if resetKey != "" {
		if config.Key, err = resetkey.File(resetKey); err != nil {
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
