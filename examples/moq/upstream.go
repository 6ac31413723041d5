package main

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
	"github.com/fastrelay/fastrelay-gen/examples/moq/relay"
)

// upstreamFlags adds the flags about upstream relays; the function that it returns says what they ask for, once they
// are parsed.
func upstreamFlags(flags *flag.FlagSet) func() ([]relay.Upstream, error) {
	var uris, hashes []string
	flags.Func("upstream", "`URI` of a relay to connect to, moqt://host:port/path or https://host:port/path "+
		"(WebTransport), for what no client of this relay publishes; may be repeated", func(v string) error {
		uris = append(uris, v)
		return nil
	})
	ca := flags.String("upstream-ca", "", "`file` with certificates, PEM, that verify upstream relays (default: the "+
		"system's)")
	flags.Func("upstream-hash", "SHA-256 of an upstream relay's certificate, in `hexadecimal`, instead of "+
		"-upstream-ca; may be repeated", func(v string) error {
		v = strings.ToLower(v)
		if b, err := hex.DecodeString(v); err != nil || len(b) != sha256.Size {
			return fmt.Errorf("write %d hexadecimal digits", 2*sha256.Size)
		}
		hashes = append(hashes, v)
		return nil
	})
	return func() (all []relay.Upstream, err error) {
		var verify *tls.Config
		switch {
		case *ca != "" && len(hashes) > 0:
			return nil, errors.New("give -upstream-ca or -upstream-hash, not both")
		case *ca != "":
			if verify, err = authorities(*ca); err != nil {
				return nil, fmt.Errorf("-upstream-ca: %w", err)
			}
		case len(hashes) > 0:
			verify = certificate.Pinned(hashes...)
		}
		if verify != nil && len(uris) == 0 {
			return nil, errors.New("-upstream-hash and -upstream-ca say how -upstream is verified: give that as well")
		}
		for _, uri := range uris {
			all = append(all, relay.Upstream{URI: uri, TLS: verify})
		}
		return all, nil
	}
}

// authorities verifies servers by the certificates of a file.
func authorities(file string) (*tls.Config, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	return &tls.Config{RootCAs: pool}, nil
}
