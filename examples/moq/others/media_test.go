package others

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

var moqCLI = []string{"../endpoints/build", "moq-cli"}

// TestMedia has moq-dev's programs publish and play a film through our relay: what is played are the film's frames,
// from one that a player can begin with to the last.
func TestMedia(t *testing.T) {
	build(t, moqCLI)
	f := newFilm(t)
	for _, from := range transports {
		for _, to := range transports {
			t.Run(from.String()+" to "+to.String(), func(t *testing.T) {
				r, _ := inside(t, local)
				f.play(t, from.url(r.Addr()), from.draft, to.url(r.Addr()), to.draft)
			})
		}
	}
}

// transports are both of them, one in each draft.
var transports = []client{{"moq", "18", true}, {"moq", "22", false}}

// A film is a file of MPEG-TS, and the hashes of its frames.
type film struct {
	bytes  []byte
	frames []string
}

func newFilm(t *testing.T) film {
	t.Helper()
	file := filepath.Join(t.TempDir(), "film.ts")
	out, err := exec.CommandContext(t.Context(), "ffmpeg", "-v", "error", "-f", "lavfi",
		"-i", "testsrc2=size=320x180:rate=25", "-t", "8", "-c:v", "libx264", "-preset", "ultrafast", "-bf", "0",
		"-g", "25", "-f", "mpegts", "-pes_payload_size", "0", "-muxdelay", "0", file).CombinedOutput()
	if err != nil {
		t.Fatalf("ffmpeg: %v\n%s", err, out)
	}
	return film{must(os.ReadFile(file)), frames(t, file)}
}

// frames returns the hashes of the pictures of a file.
func frames(t *testing.T, file string) (all []string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ffmpeg", "-v", "fatal", "-i", file, "-map", "0:v", "-f", "framemd5",
		"-").Output()
	check(t, err)
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "#") {
			fields := strings.Fields(line)
			all = append(all, fields[len(fields)-1])
		}
	}
	return all
}

// play has a program publish the film at a relay, and another one play it.
func (f film) play(t *testing.T, from, fromDraft, to, toDraft string) {
	t.Helper()
	moq := func(url, draft string, args ...string) *exec.Cmd {
		args = append([]string{"--connect", url, "--connect-tls-insecure",
			"--connect-version", "moq-transport-" + draft, "--broadcast", "film.hang"}, args...)
		cmd := exec.CommandContext(t.Context(), must(Path("rust", "bin", "moq")), args...)
		var said bytes.Buffer
		cmd.Stderr = &said
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed
			if t.Failed() {
				t.Logf("moq %v:\n%s", args, said.Bytes())
			}
		})
		return cmd
	}
	publisher := moq(from, fromDraft, "import", "ts")
	in := must(publisher.StdinPipe())
	check(t, publisher.Start())
	file := must(os.Create(filepath.Join(t.TempDir(), "played.ts")))
	defer file.Close()
	player := moq(to, toDraft, "export", "ts")
	player.Stdout = file
	check(t, player.Start())
	half := len(f.bytes) / 2
	must(io.Copy(in, bytes.NewReader(f.bytes[:half])))
	check(t, testnet.Until(patience, "the player has something to play", func() bool {
		return must(file.Stat()).Size() > 0
	}))
	must(io.Copy(in, bytes.NewReader(f.bytes[half:])))
	check(t, in.Close())
	check(t, player.Wait())
	got := frames(t, file.Name())
	if n := len(f.frames) - len(got); len(got) < len(f.frames)/2 || n < 0 || !slices.Equal(got, f.frames[n:]) {
		t.Errorf("%d frames were played that aren't the last ones of %d", len(got), len(f.frames))
	}
}
