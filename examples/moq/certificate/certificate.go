// Package certificate has certificates of files that may be renewed, and makes ones for development.
package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"time"
)

// Development makes a certificate for localhost and an address, which signs itself. Browsers take it by its hash: it
// is for ECDSA on P-256, and valid for less than 14 days (W3C WebTransport, section 6.9: serverCertificateHashes).
func Development(address netip.Addr) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return tls.Certificate{}, err
	}
	before := time.Now().Add(-time.Hour) // clocks differ
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "localhost"},
		NotBefore: before, NotAfter: before.Add(14 * 24 * time.Hour).Add(-time.Second),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	if !address.IsUnspecified() && !address.IsLoopback() {
		template.IPAddresses = append(template.IPAddresses, address.AsSlice())
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// Hash is the SHA-256 of a certificate, in hexadecimal.
func Hash(c tls.Certificate) string {
	sum := sha256.Sum256(c.Certificate[0])
	return hex.EncodeToString(sum[:])
}

// Pinned verifies a server by its certificate's SHA-256, in hexadecimal: it has to be one of some.
func Pinned(hashes ...string) *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true, // of names and authorities: the hash is enough
		VerifyConnection: func(s tls.ConnectionState) error {
			sum := sha256.Sum256(s.PeerCertificates[0].Raw)
			if got := hex.EncodeToString(sum[:]); !slices.Contains(hashes, got) {
				return fmt.Errorf("the SHA-256 of the certificate is %s, which isn't expected", got)
			}
			return nil
		},
	}
}
