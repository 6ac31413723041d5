// Twohops has a publisher send objects to two subscribers, through a relay, over QUIC, with losses on all links.
//
//	publisher ——— relay ——— subscriber 1
//	                ├—————— subscriber 2
//
// The relay runs in user space, but sends as one in the kernel does: each STREAM frame of the publisher's goes to both
// subscribers at once, in packets that quic-go doesn't send, with packet numbers that it shares (examples/quicfork in
// this repository). The hosts are network namespaces, so this needs root, and changes nothing outside of them.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/testlink"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func main() {
	testlink.Main()
	d := demo{}
	flag.IntVar(&d.objects, "objects", 200, "how many objects the publisher sends, each on a stream of its own")
	flag.Float64Var(&d.loss, "loss", 0.02, "the share of packets that each link loses, in each direction")
	flag.BoolVar(&d.protected, "protected", false, "protect packets, and don't ask for null protection")
	flag.BoolVar(&d.large, "large", false,
		"let the publisher send packets that are too large for the subscribers' paths: the library sends their data")
	flag.Uint64Var(&d.seed, "seed", 1, "for losses and sizes of objects")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := d.run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "twohops:", err)
		os.Exit(1)
	}
}

// demo is what the flags say.
type demo struct {
	objects   int
	loss      float64
	protected bool
	large     bool
	seed      uint64
}

const (
	subscribers = 2
	port        = 4433
	notes       = 10 // streams of the relay's own to each subscriber, which the library sends
)

// objectData returns the n'th object: 1 to 40,000 bytes. It depends on the seed alone.
func (d demo) objectData(n int) []byte {
	random := rand.NewChaCha8(sha256.Sum256(fmt.Append(nil, d.seed, n)))
	data := make([]byte, 1+random.Uint64()%40_000)
	_, _ = random.Read(data)
	return data
}

func (d demo) run(ctx context.Context, out io.Writer) error {
	network, err := testnet.New()
	if err != nil {
		return err
	}
	defer network.Close()
	relayHost, err := network.Host("relay")
	if err != nil {
		return err
	}
	ends := make([]*end, 1+subscribers)
	for i := range ends {
		if ends[i], err = d.join(network, relayHost, i); err != nil {
			return err
		}
		defer ends[i].link.Close()
	}
	direction := d.direction()
	fmt.Fprintf(out, "%d objects; each link delays packets by %v, loses %.1f%% of them and reorders 1%%, each way\n",
		d.objects, direction.Delay, 100*d.loss)

	r, err := newRelay(relayHost, d.protected)
	if err != nil {
		return err
	}
	defer r.close()
	var readers sync.WaitGroup
	got := make([]received, subscribers)
	for i := range subscribers {
		subscriber, err := ends[i+1].dial(ctx, d)
		if err != nil {
			return err
		}
		defer subscriber.close()
		if err := r.subscribe(ctx); err != nil {
			return err
		}
		readers.Go(func() { got[i] = receive(ctx, subscriber.conn, d.objects+notes) })
	}
	publisher, err := ends[0].dial(ctx, d)
	if err != nil {
		return err
	}
	defer publisher.close()
	if err := r.publish(ctx); err != nil {
		return err
	}

	began := time.Now()
	want, bytes, err := d.send(ctx, publisher)
	if err != nil {
		return fmt.Errorf("%s: %w", ends[0].name, err)
	}
	readers.Wait()
	fmt.Fprintf(out, "publisher: sent %d streams, %d bytes; all subscribers had them after %v\n",
		d.objects, bytes, time.Since(began).Round(time.Millisecond))

	failed := 0
	for i, g := range got {
		if !d.whole(out, ends[i+1].name, g, want) {
			failed++
		}
	}
	r.report(out)
	for _, e := range ends {
		if err := e.report(out); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d subscribers didn't get everything", failed, subscribers)
	}
	return nil
}

// end is the publisher's host, or a subscriber's, and its link to the relay's.
type end struct {
	name  string
	host  *testnet.Host
	relay net.Addr // as the host reaches it
	link  *testlink.Link
}

// direction is what the links do with packets in each direction.
func (d demo) direction() testlink.Direction {
	return testlink.Direction{
		Delay: 5 * time.Millisecond, Loss: d.loss / 2, Bursts: testlink.Bursts{Loss: d.loss / 2, Length: 3},
		Reordering: testlink.Reordering{Share: 0.01, By: 2},
	}
}

// join makes the host of the publisher (0) or of a subscriber (from 1 on), with a link to the relay's.
func (d demo) join(network *testnet.Net, relay *testnet.Host, i int) (_ *end, err error) {
	e := &end{name: "publisher", relay: &net.UDPAddr{IP: net.IPv4(10, 0, byte(i), 1), Port: port}}
	if i > 0 {
		e.name = fmt.Sprintf("subscriber %d", i)
	}
	if e.host, err = network.Host(fmt.Sprint("host", i)); err != nil {
		return nil, err
	}
	e.link, err = testlink.Join(network, e.host, "eth0", relay, fmt.Sprint("eth", i),
		testlink.Config{Seed: d.seed + uint64(i), FromA: d.direction(), FromB: d.direction()})
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		e.link.A.AddAddr(fmt.Sprintf("10.0.%d.2/24", i)), e.link.B.AddAddr(fmt.Sprintf("10.0.%d.1/24", i)))
	if err == nil && d.large && i > 0 {
		const mtu = 1350 // the library begins with packets of 1,280 bytes, and finds larger ones if it can
		err = errors.Join(e.link.A.SetMTU(mtu), e.link.B.SetMTU(mtu))
	}
	if err != nil {
		e.link.Close()
		return nil, err
	}
	return e, nil
}

// dial connects the host with the relay.
func (e *end) dial(ctx context.Context, d demo) (*peer, error) {
	p, err := connect(ctx, e.host, e.relay, d)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.name, err)
	}
	return p, nil
}

// report ends the link, and prints what it did.
func (e *end) report(out io.Writer) error {
	if err := e.link.Close(); err != nil {
		return err
	}
	s, err := e.link.Stats()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "link of %s: %d of %d packets lost to the relay, %d of %d from it\n", e.name,
		s.FromA.Lost+s.FromA.LostInBursts, s.FromA.Received, s.FromB.Lost+s.FromB.LostInBursts, s.FromB.Received)
	return nil
}

// send sends all objects. It returns how often each was sent, by its hash, and how many bytes they have.
func (d demo) send(ctx context.Context, publisher *peer) (sent map[[sha256.Size]byte]int, bytes int, err error) {
	sent = map[[sha256.Size]byte]int{}
	for n := range d.objects {
		data := d.objectData(n)
		if err := send(ctx, publisher.conn, data); err != nil {
			return nil, 0, err
		}
		sent[sha256.Sum256(data)]++
		bytes += len(data)
	}
	return sent, bytes, nil
}

// whole prints what a subscriber received, and reports whether it is all that was sent.
func (d demo) whole(out io.Writer, name string, g received, sent map[[sha256.Size]byte]int) bool {
	whole := 0
	for hash, n := range sent {
		whole += min(n, g.hashes[hash])
	}
	fmt.Fprintf(out, "%s: %d of %d streams are whole, and %d of %d that the relay's library sent\n",
		name, whole, d.objects, g.notes, notes)
	if g.err != nil {
		fmt.Fprintf(out, "%s: %v\n", name, g.err)
	}
	return whole == d.objects && g.notes == notes
}
