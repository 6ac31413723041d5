// Package script runs a connection by a script, in upstream's tree and in the fork, and writes down all that happens.
// TestSameAsUpstream copies it into both trees. Time is not real (testing/synctest), random numbers come from a seed:
// on one processor, two runs differ only if the programs differ.
package script

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlogwriter"
	"github.com/quic-go/quic-go/qlogwriter/jsontext"
	"github.com/quic-go/quic-go/testutils/simnet"
)

// record is what each end did, in its order. What both do at the same time has no order.
type record struct {
	mutex sync.Mutex
	start time.Time
	ends  map[string]*bytes.Buffer
}

func (r *record) add(who, format string, args ...any) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.ends[who] == nil {
		r.ends[who] = &bytes.Buffer{}
	}
	fmt.Fprintf(r.ends[who], "%s %v ", who, time.Since(r.start))
	fmt.Fprintf(r.ends[who], format+"\n", args...)
}

// recorder writes down the events of one end: packets with their frames, metrics, timers.
type recorder struct {
	r   *record
	who string
}

func (e recorder) AddProducer() qlogwriter.Recorder { return e }
func (e recorder) SupportsSchemas(string) bool      { return true }
func (e recorder) Close() error                     { return nil }
func (e recorder) RecordEvent(event qlogwriter.Event) {
	var b bytes.Buffer
	if err := event.Encode(jsontext.NewEncoder(&b), time.Now()); err != nil {
		e.r.add(e.who, "%s: %v", event.Name(), err)
		return
	}
	e.r.add(e.who, "%s %s", event.Name(), bytes.TrimSpace(b.Bytes()))
}

func (r *record) trace(who string) func(context.Context, bool, quic.ConnectionID) qlogwriter.Trace {
	return func(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return recorder{r, who} }
}

// router writes down each datagram, and loses some.
type router struct {
	simnet.PerfectRouter
	r     *record
	mutex sync.Mutex
	sent  map[string]int
}

func (o *router) SendPacket(p simnet.Packet) error {
	from := p.From.String()
	o.mutex.Lock()
	o.sent[from]++
	n := o.sent[from]
	o.mutex.Unlock()
	lost := n > 30 && n%23 == 0
	o.r.add(from, "datagram %d, lost %v: %x", n, lost, p.Data)
	if lost {
		return nil
	}
	return o.PerfectRouter.SendPacket(p)
}

func secrets() (*tls.Config, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		NextProtos:   []string{"script"}, InsecureSkipVerify: true,
	}, nil
}

func TestScript(t *testing.T) {
	cryptotest.SetGlobalRandom(t, 1)
	var text []byte
	synctest.Test(t, func(t *testing.T) {
		r := &record{start: time.Now(), ends: map[string]*bytes.Buffer{}}
		if err := script(t.Context(), r); err != nil {
			t.Error(err)
		}
		for _, who := range slices.Sorted(maps.Keys(r.ends)) {
			text = append(text, r.ends[who].Bytes()...)
		}
	})
	if err := os.WriteFile(os.Getenv("FASTRELAY_SCRIPT_RECORD"), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// script has both ends open streams of both kinds, with windows that are soon full, and send datagrams in between. The
// server resets streams, and stops others. Packets are lost, keys are updated, path MTUs are found. Then it is quiet
// until keep-alives have been sent, and the client closes the connection.
func script(ctx context.Context, r *record) error {
	secrets, err := secrets()
	if err != nil {
		return err
	}
	network := &simnet.Simnet{Router: &router{r: r, sent: map[string]int{}}}
	near := network.NewEndpoint(&net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}, one(7_000_019, 50_021))
	other := network.NewEndpoint(&net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 2}, one(11_000_003, 60_013))
	if err := network.Start(); err != nil {
		return err
	}
	config := func(who string) *quic.Config {
		return &quic.Config{
			InitialStreamReceiveWindow: 8 << 10, MaxStreamReceiveWindow: 32 << 10,
			InitialConnectionReceiveWindow: 16 << 10, MaxConnectionReceiveWindow: 64 << 10,
			MaxIncomingUniStreams: 10, MaxIncomingStreams: 10, EnableDatagrams: true,
			KeepAlivePeriod: 5 * time.Second, Tracer: r.trace(who),
		}
	}
	serverTransport, clientTransport := &quic.Transport{Conn: other}, &quic.Transport{Conn: near}
	listener, err := serverTransport.Listen(secrets, config("server"))
	if err != nil {
		return err
	}
	client, err := clientTransport.Dial(ctx, other.LocalAddr(), secrets, config("client"))
	if err != nil {
		return err
	}
	server, err := listener.Accept(ctx)
	if err != nil {
		return err
	}
	synctest.Wait()
	// One step after another: where several goroutines can go on, their order isn't ours.
	for step := range 12 {
		for name, ends := range ordered(client, server) {
			if err := exchange(ctx, ends[0], ends[1], step); err != nil {
				return fmt.Errorf("step %d, %s: %w", step, name, err)
			}
			synctest.Wait()
		}
	}
	for range 2 {
		s, err := client.OpenStreamSync(ctx)
		if err != nil {
			return err
		}
		if _, err := s.Write(make([]byte, 100)); err != nil {
			return err
		}
		in, err := server.AcceptStream(ctx)
		if err != nil {
			return err
		}
		in.CancelRead(5)
		in.CancelWrite(6)
		var reset *quic.StreamError
		if _, err := s.Read(make([]byte, 1)); !errors.As(err, &reset) {
			return fmt.Errorf("a stream that was reset: %w", err)
		}
		synctest.Wait()
	}
	time.Sleep(17 * time.Second)
	synctest.Wait()
	if err := client.CloseWithError(7, "done"); err != nil {
		return err
	}
	<-server.Context().Done()
	synctest.Wait()
	r.add("client", "%+v", client.ConnectionStats())
	r.add("server", "%+v", server.ConnectionStats())
	return errors.Join(listener.Close(), clientTransport.Close(), serverTransport.Close(), near.Close(), other.Close(),
		network.Close())
}

// one delivers datagrams one by one, at moments (in nanoseconds) at which nothing else happens: of two events at one
// time, either may be handled first.
func one(latency, apart time.Duration) simnet.NodeBiDiLinkSettings {
	var last time.Time
	return simnet.NodeBiDiLinkSettings{LatencyFunc: func(simnet.Packet) time.Duration {
		at := time.Now().Add(latency)
		if next := last.Add(apart); at.Before(next) {
			at = next
		}
		last = at
		return time.Until(at)
	}}
}

func ordered(client, server *quic.Conn) func(func(string, [2]*quic.Conn) bool) {
	return func(yield func(string, [2]*quic.Conn) bool) {
		_ = yield("client", [2]*quic.Conn{client, server}) && yield("server", [2]*quic.Conn{server, client})
	}
}

// exchange sends a unidirectional stream, a datagram, and a request that is answered.
func exchange(ctx context.Context, from, to *quic.Conn, step int) error {
	data := bytes.Repeat([]byte{byte(step)}, 3000*(step+1))
	sent := make(chan error, 1)
	go func() {
		out, err := from.OpenUniStreamSync(ctx)
		if err == nil {
			_, err = out.Write(data)
			err = errors.Join(err, out.Close())
		}
		sent <- err
	}()
	in, err := to.AcceptUniStream(ctx)
	if err != nil {
		return err
	}
	got, err := io.ReadAll(in)
	if err := errors.Join(err, <-sent); err != nil || !bytes.Equal(got, data) {
		return fmt.Errorf("%d of %d bytes: %w", len(got), len(data), err)
	}
	if err := from.SendDatagram(data[:50*(step+1)]); err != nil {
		return err
	}
	request, err := from.OpenStreamSync(ctx)
	if err != nil {
		return err
	}
	if _, err := request.Write(data[:100]); err != nil {
		return err
	}
	if err := request.Close(); err != nil {
		return err
	}
	go func() {
		s, err := to.AcceptStream(ctx)
		if err == nil {
			_, err = io.Copy(io.Discard, s)
		}
		if err == nil {
			_, err = s.Write(data[:len(data)/2])
			err = errors.Join(err, s.Close())
		}
		sent <- err
	}()
	answer, err := io.ReadAll(request)
	if err := errors.Join(err, <-sent); err != nil || len(answer) != len(data)/2 {
		return fmt.Errorf("an answer of %d bytes: %w", len(answer), err)
	}
	return nil
}
