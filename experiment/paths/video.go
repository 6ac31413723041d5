package paths

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/fastrelay/fastrelay-gen/examples/paths/lab"
	"github.com/fastrelay/fastrelay-gen/examples/paths/router"
	"github.com/fastrelay/fastrelay-gen/experiment/trial"
	"github.com/fastrelay/fastrelay-gen/internal/test/browser"
	"github.com/fastrelay/fastrelay-gen/internal/test/caddy"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// variant is one kind of run.
type variant struct {
	http  int // 2 or 3
	use   lab.Use
	cross bool // other traffic
	fails bool // the fast link, half way
}

// hostName is the server's name in its certificate.
const hostName = "video.test"

// crossRate is the rate of the other traffic, in bit/s of payload. With its headers it leaves less than a million of
// the slow link.
const crossRate = 4_000_000

// report is what the page says in the end.
type report struct {
	Startup  float64   `json:"startup"`
	Stalls   []float64 `json:"stalls"`
	Segments []struct {
		Start   float64 `json:"start"`
		Bitrate float64 `json:"bitrate"`
		Loaded  float64 `json:"loaded"`
	} `json:"segments"`
	Protocols []string `json:"protocols"`
	Took      float64  `json:"took"`
	Error     string   `json:"error,omitempty"`
}

// play plays the video once, on a network of its own.
func play(ctx context.Context, v variant, dir string, segment time.Duration) (trial.Result, error) {
	n, err := testnet.New()
	if err != nil {
		return trial.Result{}, err
	}
	defer n.Close()
	l, err := lab.New(n, runtime.HookTC)
	if err != nil {
		return trial.Result{}, err
	}
	// Caddy's QUIC uses Reno; so does TCP here.
	for _, h := range []*testnet.Host{l.Client, l.Server} {
		if err := h.Sysctl("net/ipv4/tcp_congestion_control", "reno"); err != nil {
			return trial.Result{}, err
		}
	}
	routers, err := l.Start(v.use, router.Config{
		Hello: 50 * time.Millisecond, Dead: 250 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return trial.Result{}, err
	}
	defer func() { _ = errors.Join(routers[0].Close(), routers[1].Close()) }()
	server, err := caddy.Start(ctx, l.Server, hostName, l.ServerAddr.V4, dir)
	if err != nil {
		return trial.Result{}, err
	}
	defer server.Close()
	if v.cross {
		stop, err := startCross(ctx, l)
		if err != nil {
			return trial.Result{}, err
		}
		defer stop()
	}
	return watch(ctx, l, v, server, segment)
}

// startCross has iperf3 send to the client until it is stopped.
func startCross(ctx context.Context, l *lab.Lab) (stop func(), err error) {
	listener := l.Client.Command(ctx, "iperf3", "-s", "-p", "5201")
	sender := l.Server.Command(ctx, "iperf3", "-c", l.ClientAddr.V4.String(), "-p", "5201", "-u",
		"-b", strconv.Itoa(crossRate), "-l", "1200", "-t", "3600")
	if err := testnet.StartChild(listener); err != nil {
		return nil, err
	}
	end := func() {
		_ = listener.Process.Kill()
		_ = listener.Wait()
	}
	err = testnet.Until(5*time.Second, "iperf3 listens", func() bool { return l.Client.Listens(5201) })
	if err == nil {
		err = testnet.StartChild(sender)
	}
	if err != nil {
		end()
		return nil, err
	}
	stop = func() {
		_ = sender.Process.Kill()
		_ = sender.Wait()
		end()
	}
	before, err := l.ClientDev.Received()
	if err == nil {
		err = testnet.Until(5*time.Second, "other traffic arrives", func() bool {
			now, err := l.ClientDev.Received()
			return err == nil && now > before+200
		})
	}
	if err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// watch plays the video in a browser, and returns what came of it.
func watch(
	ctx context.Context, l *lab.Lab, v variant, server *caddy.Server, segment time.Duration,
) (r trial.Result, err error) {
	flags := []string{
		"--ignore-certificate-errors-spki-list=" + server.Key,
		fmt.Sprintf("--host-resolver-rules=MAP %s %v", hostName, l.ServerAddr.V4),
	}
	if v.http == 3 {
		flags = append(flags, "--enable-quic", "--origin-to-force-quic-on="+hostName+":443")
	} else {
		flags = append(flags, "--disable-quic")
	}
	url := fmt.Sprintf("https://%s/?segment=%v", hostName, segment.Seconds())
	b, err := browser.Start(ctx, l.Client, url, flags...)
	if err != nil {
		return r, err
	}
	defer b.Close()
	length := segments * segment
	var failed *failure
	deadline := time.Now().Add(3*length + time.Minute)
	text := ""
	for text == "" {
		if time.Now().After(deadline) {
			return r, fmt.Errorf("the video of %v has not ended", length)
		}
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
		if err := b.Evaluate("window.result", &text); err != nil {
			return r, err
		}
		at := 0.0
		if err := b.Evaluate("document.querySelector('video')?.currentTime", &at); err != nil {
			return r, err
		}
		if v.fails && failed == nil && at >= length.Seconds()/2 {
			if failed, err = fail(l); err != nil {
				return r, err
			}
			defer failed.stop()
		}
	}
	return result(v, text, failed)
}

// result reads what the page says.
func result(v variant, text string, failed *failure) (r trial.Result, err error) {
	var p report
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return r, err
	}
	protocol := []string{fmt.Sprintf("h%d", v.http)}
	if p.Error != "" || len(p.Segments) < segments || !slices.Equal(p.Protocols, protocol) {
		return r, fmt.Errorf("%d segments over %v: %s", len(p.Segments), p.Protocols, p.Error)
	}
	curve, sum, switches := trial.Curve{}, 0.0, 0
	for i, s := range p.Segments {
		sum += s.Bitrate
		curve = append(curve, trial.Point{X: s.Start, Y: s.Bitrate})
		if i > 0 && s.Bitrate != p.Segments[i-1].Bitrate {
			switches++
		}
	}
	stalled := 0.0
	for _, s := range p.Stalls {
		stalled += s
	}
	r = trial.Result{
		Figures: map[string]float64{
			"bitrate": sum / float64(len(p.Segments)), "switches": float64(switches), "start": p.Startup,
			"stalls": float64(len(p.Stalls)), "stalled": stalled,
		},
		Curves: map[string]trial.Curve{"bitrate": curve},
		Detail: p,
	}
	if failed != nil {
		outage, err := outage(failed.capture.Frames(), failed.at)
		if err != nil {
			return r, err
		}
		r.Figures["video again after"] = outage.Seconds()
	}
	return r, nil
}

// failure is a link that has failed, and what the client received since.
type failure struct {
	capture *testnet.Capture
	at      time.Time
}

// fail has the fast link lose everything, in both directions and with its carrier on, while video comes in.
func fail(l *lab.Lab) (*failure, error) {
	capture, err := l.ClientDev.Capture()
	if err != nil {
		return nil, err
	}
	f := &failure{capture: capture}
	err = testnet.Until(5*time.Second, "video comes in", func() bool {
		frames := capture.Frames()
		return len(frames) > 0 && video(frames[len(frames)-1])
	})
	f.at = time.Now()
	for _, r := range l.Routers {
		err = errors.Join(err, r.FastQueue.SetRate(lab.FastRate, 1))
	}
	if err != nil {
		f.stop()
		return nil, err
	}
	return f, nil
}

func (f *failure) stop() { _, _ = f.capture.Stop() }

// outage returns how long no video came in after the link had failed. If the player didn't ask for any meanwhile,
// that counts as well.
func outage(frames []testnet.Frame, failed time.Time) (time.Duration, error) {
	last := failed
	for _, frame := range frames {
		if !video(frame) || frame.At.Before(failed) {
			continue
		}
		// What was on its way when the link failed still arrives, without such a gap.
		if gap := frame.At.Sub(last); gap > within {
			return gap, nil
		}
		last = frame.At
	}
	return 0, errors.New("no video came in after the link failed")
}

// within is longer than the packets of a segment are apart, and shorter than routers take to notice a failure.
const within = 100 * time.Millisecond

// video reports whether a frame is one of the server's, at the port of the video.
func video(f testnet.Frame) bool {
	if f.Outgoing {
		return false
	}
	p := dissect.Packet(f)
	if udp, ok := p.Layer(layers.LayerTypeUDP).(*layers.UDP); ok {
		return udp.SrcPort == 443 && len(udp.Payload) > 500
	}
	tcp, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
	return ok && tcp.SrcPort == 443 && len(tcp.Payload) > 500
}
