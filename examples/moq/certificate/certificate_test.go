package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"net/netip"
	"testing"
	"time"
)

// TestDevelopment looks at what browsers want of a certificate that they take by its hash.
func TestDevelopment(t *testing.T) {
	pair, err := Development(netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if key, ok := c.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		t.Errorf("the key is a %T", c.PublicKey)
	}
	const day = 24 * time.Hour
	if c.NotAfter.After(c.NotBefore.Add(14*day)) || c.NotAfter.Before(c.NotBefore.Add(13*day)) {
		t.Errorf("it is valid from %v to %v", c.NotBefore, c.NotAfter)
	}
	for _, name := range []string{"localhost", "127.0.0.1", "::1", "192.0.2.1"} {
		if err := c.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	if h := Hash(pair); len(h) != 64 {
		t.Errorf("the hash is %q", h)
	}
}
