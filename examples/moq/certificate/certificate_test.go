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
	if d := c.NotAfter.Sub(c.NotBefore); d > 14*24*time.Hour || d < 13*24*time.Hour {
		t.Errorf("it is valid for %v", d)
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
