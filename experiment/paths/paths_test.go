package paths

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/fastrelay/fastrelay-gen/experiment/trial"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// A segment has the size that its bitrate says, whatever the picture needs.
func TestEncode(t *testing.T) {
	needs.All(t)
	needs.Root(t) // for the programs that are installed then
	dir := filepath.Join(t.TempDir(), "video")
	if err := encode(dir, time.Second); err != nil {
		t.Fatal(err)
	}
	for i, kbit := range bitrates {
		file := fmt.Sprintf("chunk-stream%d-%05d.m4s", i, segments/2)
		info, err := os.Stat(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if want := float64(kbit) * 1000 / 8; math.Abs(float64(info.Size())/want-1) > 0.2 {
			t.Errorf("a second of %d kbit/s has %d bytes", kbit, info.Size())
		}
	}
	if _, err := os.Stat(filepath.Join(dir, fmt.Sprintf("chunk-stream0-%05d.m4s", segments+1))); err == nil {
		t.Errorf("there are more than %d segments", segments)
	}
}

// What the page reports becomes figures; a page that played something else is an error.
func TestResult(t *testing.T) {
	text := func(protocol string, count int) string {
		var list []string
		for i := range count {
			bitrate := 4.0
			if i == 0 {
				bitrate = 1
			}
			list = append(list, fmt.Sprintf(`{"start": %d, "bitrate": %v, "loaded": 1}`, i, bitrate))
		}
		return fmt.Sprintf(`{"startup": 0.2, "stalls": [0.5, 0.25], "protocols": [%q], "segments": [%s]}`,
			protocol, strings.Join(list, ","))
	}
	r, err := result(variant{http: 3}, text("h3", segments), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{
		"bitrate": 3.9, "switches": 1, "stalls": 2, "stalled": 0.75, "start": 0.2,
	} {
		if got := r.Figures[name]; math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if c := r.Curves["bitrate"]; len(c) != segments || c[1] != (trial.Point{X: 1, Y: 4}) {
		t.Error(c)
	}
	for _, wrong := range []string{text("h2", segments), text("h3", segments-1), "no page"} {
		if _, err := result(variant{http: 3}, wrong, nil); err == nil {
			t.Errorf("this is taken for a report: %.60s", wrong)
		}
	}
}

// frame is a packet of the server, from a port, so much later than the link's failure.
func frame(t *testing.T, from layers.UDPPort, at time.Time, after time.Duration) testnet.Frame {
	t.Helper()
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP,
		SrcIP: net.IPv4(203, 0, 113, 2), DstIP: net.IPv4(198, 51, 100, 2)}
	udp := &layers.UDP{SrcPort: from, DstPort: 40000}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	b := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4},
		ip, udp, gopacket.Payload(make([]byte, 1200)))
	if err != nil {
		t.Fatal(err)
	}
	return testnet.Frame{Data: b.Bytes(), At: at.Add(after)}
}

// An outage begins with the first gap after the failure; other traffic doesn't end it.
func TestOutage(t *testing.T) {
	at := time.Now()
	const ms = time.Millisecond
	frames := []testnet.Frame{
		frame(t, 443, at, -50*ms), frame(t, 443, at, 20*ms), frame(t, 443, at, 60*ms), frame(t, 5201, at, 200*ms),
		frame(t, 443, at, 460*ms), frame(t, 443, at, 900*ms),
	}
	if d, err := outage(frames, at); err != nil || d != 400*ms {
		t.Error(d, err)
	}
	if _, err := outage(frames[:4], at); err == nil {
		t.Error("a video that doesn't go on is taken for one that does")
	}
}

// All tables and plots of results are written, also if variants are missing.
func TestSummarize(t *testing.T) {
	b, err := trial.New(t.TempDir(), 2, false, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	variants := []string{"HTTP/3 unloaded", "HTTP/3 both paths", "HTTP/3 fast path", routing, relay}
	err = b.Alternate(t.Context(), variants, func(_ context.Context, name string, run int) (trial.Result, error) {
		r := trial.Result{Figures: map[string]float64{"bitrate": float64(len(name) + run)}}
		if name == routing || name == relay {
			r.Figures = map[string]float64{"processor": float64(500 + run)}
		}
		return r, nil
	})
	if err := b.Finish(errors.Join(err, summarize(b))); err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(filepath.Join(b.Dir, "table.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"HTTP/3: both paths / unloaded: 1.129; both paths over fast path: p = 0.15; ",
		"| relay | 2 | 500 [500–501] |", "relay / plain routing: 1.00."} {
		if !strings.Contains(string(table), want) {
			t.Errorf("no %q in:\n%s", want, table)
		}
	}
	if _, err := os.Stat(filepath.Join(b.Dir, "bitrate.png")); err != nil {
		t.Error(err)
	}
}
