// The gate command is a gate in front of a QUIC server. It serves a folder over HTTP/3 itself, and announces its
// connection IDs (-root); or it watches another server on this host, such as Caddy, which knows nothing of it (-watch).
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/gate/gate"
	"github.com/fastrelay/fastrelay-gen/examples/gate/quicgo"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

func main() {
	var c gate.Config
	interfaces := flag.String("interface", "eth0", "where packets come in, `names` separated by commas")
	c.Port = 443
	flag.Func("port", "the server's `port` (default 443)", func(s string) (err error) {
		c.Port, err = port(s)
		return err
	})
	flag.BoolVar(&c.Watch, "watch", false, "watch a server that doesn't announce its connection IDs")
	flag.IntVar(&c.IDLength, "id-length", 4, "`bytes` of the watched server's connection IDs; 4 is quic-go's default")
	flag.DurationVar(&c.Idle, "idle", 6*time.Minute, "how long a watched connection may be silent")
	flag.BoolVar(&c.Closed, "closed", false, "refuse new connections while this process is dead; needs -pin")
	flag.StringVar(&c.PinPath, "pin", "", "`folder` in a BPF file system where a successor finds the gate")
	flag.BoolVar(&c.First, "first", false, "attach before the programs that interfaces have, such as Cilium's")
	flag.TextVar(&c.Hook, "hook", runtime.HookTC,
		"`hook` that packets come to: tc, auto (XDP first, if that is right for the device) or xdp")
	c.Control.Define(flag.CommandLine)
	root := flag.String("root", ".", "`folder` to serve, without -watch")
	certificate := flag.String("certificate", "certificate.pem", "the server's certificate, without -watch")
	key := flag.String("key", "key.pem", "its private key")
	flag.Parse()
	c.Interfaces = strings.Split(*interfaces, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, c, *root, *certificate, *key); err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(1)
	}
}

func port(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, errors.New("want a number from 1 to 65535")
	}
	return uint16(n), nil
}

func run(ctx context.Context, c gate.Config, root, certificate, key string) (err error) {
	g, err := gate.Start(c)
	if err != nil {
		return err
	}
	defer func() {
		counts, counting := g.Count()
		fmt.Println(counts)
		err = errors.Join(err, counting, g.Close())
	}()
	if c.Watch {
		<-ctx.Done()
		return nil
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	socket, err := net.ListenUDP("udp", &net.UDPAddr{Port: int(c.Port)})
	if err != nil {
		return err
	}
	defer socket.Close()
	transport := &quic.Transport{Conn: socket}
	hooks := quicgo.New(g, c.Logger)
	hooks.Install(transport)
	listener, err := transport.ListenEarly(http3.ConfigureTLSConfig(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
	}), hooks.Config(nil))
	if err != nil {
		return err
	}
	server := &http3.Server{Handler: http.FileServer(http.Dir(root))}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ServeListener(listener); ctx.Err() == nil {
		return err
	}
	return transport.Close()
}
