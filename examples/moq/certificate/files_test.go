package certificate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// files writes a new pair, each file in place of the one that there was, as ACME clients do.
func files(t *testing.T, cert, key string, both bool) tls.Certificate {
	t.Helper()
	pair, err := Development(netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	replace := func(file, kind string, b []byte) {
		t.Helper()
		text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b})
		if err := os.WriteFile(file+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	replace(cert, "CERTIFICATE", pair.Certificate[0])
	if both {
		replace(key, "PRIVATE KEY", private)
	}
	return pair
}

// A pair that is renewed is used from the next handshake on; one that isn't whole, or gone, isn't.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if _, err := Load(cert, key); err == nil {
		t.Fatal("files that aren't there are loaded")
	}
	want := files(t, cert, key, true)
	f, err := Load(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	has := func(what string, want tls.Certificate) {
		t.Helper()
		for range 2 {
			got, err := f.GetCertificate(nil)
			if err != nil || !bytes.Equal(got.Certificate[0], want.Certificate[0]) {
				t.Errorf("%s: another certificate, %v", what, err)
			}
		}
	}
	has("as it was loaded", want)
	was := want
	want = files(t, cert, key, true)
	has("renewed", want)
	if bytes.Equal(was.Certificate[0], want.Certificate[0]) {
		t.Error("the certificates are the same")
	}
	files(t, cert, key, false)
	has("without its key", want)
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	has("gone", want)
	want = files(t, cert, key, true)
	has("there again", want)
}
