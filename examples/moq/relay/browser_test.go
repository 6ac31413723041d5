package relay

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
	"github.com/fastrelay/fastrelay-gen/internal/test/browser"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// picture is in the documentation: what the browser shows. It is made anew if FASTRELAY_UPDATE is set.
const picture = "../../../docs/moq.png"

// TestBrowser shows a video: ffmpeg makes it, aiomoqt publishes it as CMAF, in draft 22, and the player of moq-dev
// shows it in Chromium, in draft 18. Each picture that is shown is one of those that were published, decoded to the
// same pixels, at its time, and with its number, which the page reads off the canvas.
func TestBrowser(t *testing.T) {
	needs.Root(t)
	others(t)
	others(t, "player")
	host, err := testnet.Start(t).Host("media")
	if err != nil {
		t.Fatal(err)
	}
	var hash, page string
	var r *Relay
	_ = host.Do(func() error {
		r = start(t, func(c *Config) { hash = certificate.Hash(c.TLS.Certificates[0]) })
		page = serve(t, "../../../.cache/moq/player/site")
		return nil
	})
	clip := filepath.Join(t.TempDir(), "clip.mp4")
	published := encode(t, clip)
	relay := urls(r)["webtransport"]
	publisher := host.Command(t.Context(), made+"python", "-m", "aiomoqt.tools.pub_media", relay, "-k", "--draft", "22",
		"--pub-ns", "-N", broadcast, "--no-audio", "--mp4", clip, "--packaging", "cmaf", "--loop", "-t", "3600")
	var said bytes.Buffer
	publisher.Stdout, publisher.Stderr = &said, &said
	if err := testnet.StartChild(publisher); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = publisher.Wait() // it is killed when the test ends
		if t.Failed() {
			t.Logf("the publisher:\n%s", said.Bytes())
		}
	})
	query := url.Values{"url": {relay}, "hash": {hash}, "name": {broadcast}}
	b, err := browser.Start(t.Context(), host, page+"?"+query.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	compare(t, watch(t, b), published)
	if os.Getenv("FASTRELAY_UPDATE") != "" {
		shot, err := b.Screenshot(640, 395)
		if err := errors.Join(err, os.WriteFile(picture, shot, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// broadcast is the namespace of the video. By its suffix, the player knows the format of the catalog.
const broadcast = "clip.msf"

// serve serves a folder, and returns its URL.
func serve(t *testing.T, dir string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.FileServer(http.Dir(dir))}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return fmt.Sprintf("http://%v/", listener.Addr())
}

const (
	clipFrames = 200 // fewer than the number in them, of 8 bits, can say
	clipRate   = 25  // a second
)

// encode makes a clip, and returns the number of each of its pictures by the SHA-256 of its pixels. The number is in
// squares along the lower edge: white is 1, the least significant bit comes first.
func encode(t *testing.T, file string) (numbers map[string]int) {
	t.Helper()
	number := "drawbox=y=ih-20:w=160:h=20:t=fill"
	for bit := range 8 {
		number += fmt.Sprintf(",drawbox=c=white:x=%d:y=ih-20:w=20:h=20:t=fill:enable='bitand(n,%d)'", 20*bit, 1<<bit)
	}
	ffmpeg(t, "-f", "lavfi", "-i", fmt.Sprintf("testsrc2=size=640x360:rate=%d", clipRate),
		"-frames:v", fmt.Sprint(clipFrames), "-vf", number, "-pix_fmt", "yuv420p", "-c:v", "libx264",
		"-preset", "veryfast", "-g", fmt.Sprint(clipRate), "-bf", "0", file)
	numbers = map[string]int{}
	hashes := string(ffmpeg(t, "-i", file, "-f", "framehash", "-hash", "sha256", "-"))
	for _, line := range strings.Split(strings.TrimSpace(hashes), "\n") { // stream, dts, pts, duration, size, hash
		if !strings.HasPrefix(line, "#") {
			numbers[strings.TrimSpace(line[strings.LastIndex(line, ",")+1:])] = len(numbers)
		}
	}
	if len(numbers) != clipFrames {
		t.Fatalf("the clip has %d different pictures, not %d", len(numbers), clipFrames)
	}
	return numbers
}

func ffmpeg(t *testing.T, args ...string) []byte {
	t.Helper()
	args = append([]string{"-hide_banner", "-loglevel", "error", "-nostdin", "-y"}, args...)
	cmd := exec.CommandContext(t.Context(), "ffmpeg", args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("ffmpeg: %v\n%s", err, said.Bytes())
	}
	return out
}

// A drawing is a picture that the player has drawn.
type drawing struct {
	Number    int     `json:"number"`    // that the page has read
	Timestamp float64 `json:"timestamp"` // in µs
	Hash      string  `json:"hash"`
}

// watch returns what the player shows: so many pictures.
func watch(t *testing.T, b *browser.Browser) (shown []drawing) {
	t.Helper()
	const enough = 2 * clipRate
	if err := testnet.Until(2*time.Minute, fmt.Sprint(enough, " pictures are shown"), func() bool {
		if err := b.Evaluate("window.shown", &shown); err != nil {
			t.Fatal(err)
		}
		return len(shown) >= enough
	}); err != nil {
		var said string
		_ = b.Evaluate("window.said.join('\\n')", &said)
		t.Fatalf("%v: %d\n%s", err, len(shown), said)
	}
	return shown
}

// compare compares what is shown with what was published.
func compare(t *testing.T, shown []drawing, published map[string]int) {
	t.Helper()
	first := -1 // what number the picture of time 0 has
	for _, d := range shown {
		number, ok := published[d.Hash]
		if !ok {
			t.Fatalf("the picture at %v µs, with the number %d, has not been published", d.Timestamp, d.Number)
		}
		if number != d.Number {
			t.Fatalf("the canvas shows picture %d, and the player says %d", d.Number, number)
		}
		zero := (number + clipFrames - int(math.Round(d.Timestamp*clipRate/1e6))%clipFrames) % clipFrames
		if first < 0 {
			first = zero
		}
		if zero != first {
			t.Fatalf("picture %d is shown at %v µs, as if it were %d pictures later", number, d.Timestamp, zero-first)
		}
	}
}
