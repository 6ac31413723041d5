package main

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func TestMain(m *testing.M) {
	measure.Main()
	relayMain()
	m.Run()
}

// Every variant delivers each object once to every subscriber, and each copy's delay is seen.
func TestVariantsDeliver(t *testing.T) {
	needs.Root(t)
	const subscribers, objects = 2, 5
	for _, v := range variants {
		t.Run(string(v), func(t *testing.T) {
			net, l, err := newLine()
			check(t, err)
			defer net.Close()
			p, err := start(l, v, "")
			check(t, err)
			defer p.stop()
			a, err := subscribe(l, subscribers)
			check(t, err)
			defer a.close()
			in, err := l.RelayIn.Capture()
			check(t, err)
			out, err := l.RelayOut.Capture()
			check(t, err)
			load, err := publish(l, 200, objects)
			check(t, err)
			defer load.dialled.close()
			check(t, testnet.Until(10*time.Second, "some objects", func() bool {
				return load.sent.Load() >= 20*objects
			}))
			check(t, load.close())
			sent := int64(load.sent.Load())
			check(t, testnet.Until(5*time.Second, "all streams", func() bool {
				return a.streams.Load() >= subscribers*sent/objects
			}))
			if got, want := a.bytes.Load(), subscribers*sent*objectSize; got != want {
				t.Errorf("%d bytes were delivered, want %d", got, want)
			}
			came, err := in.Stop()
			check(t, err)
			left, err := out.Stop()
			check(t, err)
			if n := len(delaysOf(came, left)); n != int(subscribers*sent) {
				t.Errorf("%d delays of %d copies", n, subscribers*sent)
			}
			share, err := p.share()
			check(t, err)
			if (share > 50) != (v == Kernel) {
				t.Errorf("the kernel's share is %.0f%%", share)
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDelays(t *testing.T) {
	start := time.Now()
	part := func(outgoing bool, port uint16, at time.Duration, of []byte) testnet.Frame {
		data := make([]byte, 60)
		binary.BigEndian.PutUint16(data[destination:], port)
		return testnet.Frame{Data: append(data, of...), At: start.Add(at), Outgoing: outgoing}
	}
	frame := func(outgoing bool, port uint16, at time.Duration, numbers ...uint64) testnet.Frame {
		var data []byte
		for _, n := range numbers {
			data = append(data, object(n)...)
		}
		return part(outgoing, port, at, data)
	}
	came := []testnet.Frame{
		frame(false, 1, 0, 0), frame(false, 1, 10, 1, 2),
		frame(false, 1, 500, 1), // again
		frame(true, 1, 12, 7),   // an answer
		part(false, 1, 20, object(11)[:10]), part(false, 1, 21, object(11)[10:]),
	}
	left := []testnet.Frame{
		frame(true, 2, 3, 0), frame(true, 3, 4, 0), frame(true, 2, 15, 1, 2),
		frame(true, 2, 90, 1),  // again
		frame(false, 2, 95, 1), // not the relay's
		frame(true, 3, 95, 9),  // came before
		part(true, 2, 25, object(11)[:400]), part(true, 2, 26, object(11)[400:]),
	}
	if got, want := delaysOf(came, left), (measure.Delays{3, 4, 4, 5, 5}); !slices.Equal(got, want) {
		t.Errorf("delays %v, want %v", got, want)
	}
}
