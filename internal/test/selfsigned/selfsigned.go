// Package selfsigned makes the certificates of servers in tests, labs and benchmarks, which no client has to trust.
// The module examples/quicfork can't import it, and has its own; so has the program examples/quic, which is there to
// be copied.
package selfsigned

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"time"
)

// Certificate returns a certificate for the name of a server, with an ECDSA key. It is valid for a week.
func Certificate(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(7 * 24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// Config returns what a server needs to speak one protocol. Its clients may use it as well: it has them check nothing.
func Config(protocol string) (*tls.Config, error) {
	certificate, err := Certificate("localhost")
	return &tls.Config{
		Certificates: []tls.Certificate{certificate}, NextProtos: []string{protocol}, InsecureSkipVerify: true,
	}, err
}
