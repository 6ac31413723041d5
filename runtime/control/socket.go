package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/runtime/metrics"
)

// Server serves a relay on a unix socket; see [runtime.Options.Control]. It serves one relay, once.
type Server struct {
	// Path of the socket, or the name of the relay, for [api.PathOf]; "": the relay's own name.
	Path string
	// Metrics is an address, such as 127.0.0.1:9464, where anyone who may connect reads /metrics; "": there is none.
	// The socket has /metrics as well.
	Metrics string
	// Stop, if it is set, is called when an operator asks for the end of the relay's process.
	Stop func()
	// OwnGroups has requests be refused that open, change or close groups: the receivers are connections of the
	// process, which wouldn't learn of it.
	OwnGroups bool
	// Patience is how long a client may send or take nothing; 0: ten seconds.
	Patience time.Duration

	path     string // that is in use
	lock     *os.File
	listener *net.UnixListener
	inode    uint64 // of the socket
	http     *http.Server
	metrics  *port // nil: there is none
	relay    *runtime.Relay
	rates    *rates
	ctx      context.Context // ends with the server
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	closing  sync.Once
	patching sync.Mutex // one change of a row's values at a time, since it reads what it doesn't change
}

// Socket returns a server at a path, or with a relay's name.
func Socket(path string) *Server { return &Server{Path: path} }

// MetricsAddr returns the address of Metrics, as soon as the server listens; nil: there is none.
func (s *Server) MetricsAddr() net.Addr {
	if s.metrics == nil {
		return nil
	}
	return s.metrics.listener.Addr()
}

// ErrTaken is wrapped if another process has the socket.
var ErrTaken = errors.New("another relay has this socket")

// taken is how long Listen waits for a process that is about to end.
const taken = 500 * time.Millisecond

// Listen implements [runtime.Control]. The socket is made with mode 0600. What a process that was killed has left
// behind is replaced; a lock beside the socket says that it is in use.
func (s *Server) Listen(desc *abi.Desc) error { return s.listen(desc.Name) }

// listen listens for a relay with a name.
func (s *Server) listen(name string) error {
	s.path = api.PathOf(cmp.Or(s.Path, name))
	fail := func(err error) error {
		s.unlock()
		return fmt.Errorf("control socket %s: %w", s.path, err)
	}
	if len(s.path) > 107 { // sun_path in struct sockaddr_un
		return fail(fmt.Errorf("its name has %d bytes, and the kernel takes 107; use a shorter one", len(s.path)))
	}
	if filepath.Dir(s.path) == api.Folder() {
		if err := os.MkdirAll(api.Folder(), 0o755); err != nil {
			return fail(err)
		}
	}
	if err := s.takeLock(); err != nil {
		return fail(err)
	}
	if err := s.removeDead(); err != nil {
		return fail(err)
	}
	// The mode is that of the socket before it has a name, so that there is no moment with another one.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	port, err := listenMetrics(s.Metrics)
	if err != nil {
		s.unlock()
		return err
	}
	l, err := config.Listen(context.Background(), "unix", s.path)
	if err != nil {
		port.close()
		return fail(err)
	}
	s.metrics = port
	s.listener = l.(*net.UnixListener)
	s.listener.SetUnlinkOnClose(false) // by then the name may be another one's
	s.inode = inode(s.path)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return nil
}

// removeDead removes the socket of a process that has ended. The lock is held.
func (s *Server) removeDead() error {
	switch st, err := os.Lstat(s.path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.Mode().Type() != fs.ModeSocket:
		return errors.New("something else has this name; choose another one, or remove it")
	}
	// The process that made it held the lock, and has ended; unless it is none of ours.
	if c, err := net.Dial("unix", s.path); err == nil {
		c.Close()
		return errors.New("another program listens on it; choose another path")
	}
	return os.Remove(s.path)
}

// Remove takes away the socket, by its path or the name of its relay, and the lock beside it that a process which is
// dead has left, and says in words what that was. The error wraps [fs.ErrNotExist] if there is neither, and
// [ErrTaken] if the process lives.
func Remove(path string) (removed []string, err error) {
	s := &Server{path: api.PathOf(path)}
	for _, path := range []string{s.path, s.lockPath()} {
		if _, err := os.Lstat(path); err == nil {
			removed = append(removed, path+" is removed")
		}
	}
	if len(removed) == 0 {
		return nil, fmt.Errorf("control socket %s: %w", s.path, fs.ErrNotExist)
	}
	if err = s.takeLock(); err == nil {
		err = s.removeDead()
		s.unlock()
	}
	if err != nil {
		return nil, fmt.Errorf("control socket %s: %w", s.path, err)
	}
	return removed, nil
}

func (s *Server) lockPath() string { return s.path + ".lock" }

// takeLock locks the file beside the socket, for as long as the server is there.
func (s *Server) takeLock() error {
	for deadline := time.Now().Add(taken); ; time.Sleep(10 * time.Millisecond) {
		f, err := os.OpenFile(s.lockPath(), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		var mine, there unix.Stat_t
		if err == nil && (unix.Fstat(int(f.Fd()), &mine) != nil || unix.Stat(s.lockPath(), &there) != nil ||
			mine.Ino != there.Ino) {
			err = unix.EWOULDBLOCK // its last holder has just removed it
		}
		if err == nil {
			s.lock = f
			return nil
		}
		f.Close()
		switch {
		case !errors.Is(err, unix.EWOULDBLOCK):
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("%w%s; end that one first, or choose another path", ErrTaken, s.holder())
		}
	}
}

// holder names the process that listens, if it can be asked.
func (s *Server) holder() string {
	c, err := net.Dial("unix", s.path)
	if err != nil {
		return ""
	}
	defer c.Close()
	peer, err := peerOf(c.(*net.UnixConn))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (process %d)", peer.Pid)
}

func (s *Server) unlock() {
	if s.lock != nil {
		_ = os.Remove(s.lockPath()) // it is removed while it is locked, and looked for again by who waits
		s.lock.Close()
		s.lock = nil
	}
}

func inode(path string) uint64 {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// peerOf returns who is at the other end: who connected, or who listens.
func peerOf(c *net.UnixConn) (peer *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	err2 := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return peer, errors.Join(err, err2)
}

// Serve implements [runtime.Control].
func (s *Server) Serve(r *runtime.Relay) {
	s.relay = r
	s.serve(s.routes(), countsOf(r), metrics.Handler(r))
}

// serve begins to serve routes, with the rates of what is counted.
func (s *Server) serve(all map[string]route, counts counts, metrics http.Handler) {
	s.rates = newRates(counts)
	if s.Patience == 0 {
		s.Patience = usualPatience
	}
	s.http = &http.Server{
		Handler:           s.handler(all),
		ReadHeaderTimeout: s.Patience,
		ReadTimeout:       s.Patience,
		IdleTimeout:       5 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ConnContext:       withPeer,
		BaseContext:       func(net.Listener) context.Context { return s.ctx },
		ErrorLog:          slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn),
	}
	s.metrics.serve(metrics, s.Patience)
	s.wg.Add(2)
	go func() {
		defer s.wg.Done()
		_ = s.http.Serve(&entrance{UnixListener: s.listener}) // until Close
	}()
	go func() {
		defer s.wg.Done()
		s.rates.run(s.ctx)
	}()
}

// Close implements [runtime.Control]. Requests that are being served end with the relay.
func (s *Server) Close() error {
	s.closing.Do(func() {
		if s.listener == nil {
			return
		}
		s.cancel()
		s.metrics.close()
		if s.inode == inode(s.path) {
			_ = os.Remove(s.path) // if it is gone already, so much the better
		}
		if s.http != nil {
			_ = s.http.Close()
		}
		s.listener.Close()
		s.wg.Wait()
		s.unlock()
	})
	return nil
}
