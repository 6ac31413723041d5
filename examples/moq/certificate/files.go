package certificate

import (
	"crypto/tls"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"
)

// Files are a certificate with its chain, and its key, in two PEM files, which may be replaced while they are in use.
type Files struct {
	cert, key string

	mu     sync.Mutex
	loaded *tls.Certificate
	seen   [2]version // of what was read last
}

// version is what changes with a file.
type version struct {
	inode    uint64
	size     int64
	modified time.Time
}

// Load reads the files.
func Load(cert, key string) (*Files, error) {
	f := &Files{cert: cert, key: key}
	seen, err := f.versions()
	if err != nil {
		return nil, err
	}
	one, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	f.loaded, f.seen = &one, seen
	return f, nil
}

func (f *Files) versions() (all [2]version, err error) {
	for i, name := range []string{f.cert, f.key} {
		info, err := os.Stat(name)
		if err != nil {
			return all, err
		}
		all[i] = version{info.Sys().(*syscall.Stat_t).Ino, info.Size(), info.ModTime()}
	}
	return all, nil
}

// GetCertificate returns what the files have now; see [tls.Config]. If they can't be read, or don't belong together, as
// while they are written, it logs that once, and returns what they had before.
func (f *Files) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen, err := f.versions()
	if err == nil && seen == f.seen {
		return f.loaded, nil
	}
	changed := seen != f.seen
	f.seen = seen
	if err == nil {
		var one tls.Certificate
		if one, err = tls.LoadX509KeyPair(f.cert, f.key); err == nil {
			f.loaded = &one
			slog.Info("a certificate is renewed", "file", f.cert, "until", one.Leaf.NotAfter)
			return f.loaded, nil
		}
	}
	if changed {
		slog.Error("a certificate can't be renewed; the one from before is used",
			"error", err, "certificate", f.cert, "key", f.key)
	}
	return f.loaded, nil
}
