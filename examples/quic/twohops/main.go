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
	names := []string{"publisher"}
	for i := range subscribers {
		names = append(names, fmt.Sprintf("subscriber %d", i+1))
	}
	var hosts []*testnet.Host
	var links []*testlink.Link
	way := testlink.Direction{
		Delay: 5 * time.Millisecond, Loss: d.loss / 2, Bursts: testlink.Bursts{Loss: d.loss / 2, Length: 3},
		Reordering: testlink.Reordering{Share: 0.01, By: 2},
	}
	for i := range names {
		host, err := network.Host(fmt.Sprint("host", i))
		if err != nil {
			return err
		}
		link, err := testlink.Join(network, host, "eth0", relayHost, fmt.Sprint("eth", i),
			testlink.Config{Seed: d.seed + uint64(i), FromA: way, FromB: way})
		if err != nil {
			return err
		}
		defer link.Close()
		err = errors.Join(
			link.A.AddAddr(fmt.Sprintf("10.0.%d.2/24", i)), link.B.AddAddr(fmt.Sprintf("10.0.%d.1/24", i)))
		if err != nil {
			return err
		}
		if d.large && i > 0 {
			const mtu = 1350 // the library begins with packets of 1,280 bytes, and finds larger ones where it can
			if err := errors.Join(link.A.SetMTU(mtu), link.B.SetMTU(mtu)); err != nil {
				return err
			}
		}
		hosts, links = append(hosts, host), append(links, link)
	}
	fmt.Fprintf(out, "%d objects; each link delays packets by %v, loses %.1f%% of them and reorders 1%%, each way\n",
		d.objects, way.Delay, 100*d.loss)

	r, err := newRelay(relayHost, d.protected)
	if err != nil {
		return err
	}
	defer r.close()
	dial := func(i int) (*peer, error) {
		p, err := connect(ctx, hosts[i], &net.UDPAddr{IP: net.IPv4(10, 0, byte(i), 1), Port: port}, d)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", names[i], err)
		}
		return p, nil
	}
	var readers sync.WaitGroup
	got := make([]received, subscribers)
	for i := range subscribers {
		subscriber, err := dial(i + 1)
		if err != nil {
			return err
		}
		defer subscriber.close()
		if err := r.subscribe(ctx); err != nil {
			return err
		}
		readers.Go(func() { got[i] = receive(ctx, subscriber.conn, d.objects+notes) })
	}
	publisher, err := dial(0)
	if err != nil {
		return err
	}
	defer publisher.close()
	if err := r.publish(ctx); err != nil {
		return err
	}

	began, bytes := time.Now(), 0
	want := map[[sha256.Size]byte]int{}
	for n := range d.objects {
		data := d.objectData(n)
		if err := send(ctx, publisher.conn, data); err != nil {
			return fmt.Errorf("%s: %w", names[0], err)
		}
		want[sha256.Sum256(data)]++
		bytes += len(data)
	}
	readers.Wait()
	fmt.Fprintf(out, "publisher: sent %d streams, %d bytes; all subscribers had them after %v\n",
		d.objects, bytes, time.Since(began).Round(time.Millisecond))

	failed := 0
	for i, g := range got {
		whole := 0
		for hash, n := range want {
			whole += min(n, g.hashes[hash])
		}
		fmt.Fprintf(out, "%s: %d of %d streams are whole, and %d of %d that the relay's library sent\n",
			names[i+1], whole, d.objects, g.notes, notes)
		if g.err != nil {
			fmt.Fprintf(out, "%s: %v\n", names[i+1], g.err)
		}
		if whole != d.objects || g.notes != notes {
			failed++
		}
	}
	r.report(out)
	for i, link := range links {
		if err := link.Close(); err != nil {
			return err
		}
		s, err := link.Stats()
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "link of %s: %d of %d packets lost to the relay, %d of %d from it\n", names[i],
			s.FromA.Lost+s.FromA.LostInBursts, s.FromA.Received, s.FromB.Lost+s.FromB.LostInBursts, s.FromB.Received)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d subscribers didn't get everything", failed, subscribers)
	}
	return nil
}
