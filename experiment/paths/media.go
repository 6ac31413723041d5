package paths

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// bitrates of the video, in kbit/s.
var bitrates = []int{400, 800, 1500, 2500, 4000}

const segments = 30 // as in the paper

// page is the player: dash.js, and what it reports.
//
//go:embed page.html
var page []byte

// player is the version of dash.js, from npm.
const player = "dashjs@5.2.1"

// prepare makes the folder that the server serves: the video, in segments of that length, and the player. It makes what
// isn't there yet.
func prepare(cache string, segment time.Duration) (dir string, err error) {
	dir, err = filepath.Abs(filepath.Join(cache, "video-"+segment.String()))
	if err != nil {
		return "", err
	}
	_, err = os.Stat(dir)
	if errors.Is(err, os.ErrNotExist) {
		err = encode(dir+".new", segment)
		if err == nil {
			err = fetchPlayer(dir + ".new")
		}
		if err == nil {
			err = os.Rename(dir+".new", dir)
		}
	}
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "index.html"), page, 0o644)
}

// encode makes a video in all bitrates. Each is constant (filler included), so that a bitrate says what a segment has
// to carry; the picture is small, since it isn't looked at.
func encode(dir string, segment time.Duration) error {
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	const rate = 25
	frames := strconv.Itoa(int(segment.Seconds() * rate))
	args := []string{
		"-hide_banner", "-loglevel", "error", "-nostdin", "-y", "-f", "lavfi", "-i", "testsrc2=size=320x180:rate=25",
		"-t", strconv.FormatFloat(segments*segment.Seconds(), 'f', -1, 64),
	}
	for range bitrates {
		args = append(args, "-map", "0:v")
	}
	args = append(args, "-c:v", "libx264", "-preset", "veryfast", "-threads", "1", "-g", frames, "-keyint_min", frames,
		"-sc_threshold", "0", "-x264-params", "nal-hrd=cbr:force-cfr=1")
	for i, b := range bitrates {
		for _, option := range []string{"b", "minrate", "maxrate", "bufsize"} {
			args = append(args, fmt.Sprintf("-%s:v:%d", option, i), fmt.Sprintf("%dk", b))
		}
	}
	args = append(args, "-seg_duration", strconv.FormatFloat(segment.Seconds(), 'f', -1, 64),
		"-use_template", "1", "-use_timeline", "0", "-adaptation_sets", "id=0,streams=v",
		"-f", "dash", filepath.Join(dir, "video.mpd"))
	if out, err := exec.Command("ffmpeg", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ffmpeg: %w: %s", err, out)
	}
	return nil
}

// fetchPlayer gets dash.js by npm, which verifies what it gets.
func fetchPlayer(dir string) error {
	temp, err := os.MkdirTemp("", "dashjs-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	pack := exec.Command("npm", "pack", "--silent", player)
	pack.Dir = temp
	name, err := pack.Output()
	if err != nil {
		return fmt.Errorf("npm pack %s: %w", player, err)
	}
	const script = "package/dist/modern/umd/dash.all.min.js"
	unpack := exec.Command("tar", "xzf", strings.TrimSpace(string(name)), script)
	unpack.Dir = temp
	if out, err := unpack.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", player, err, out)
	}
	text, err := os.ReadFile(filepath.Join(temp, script))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "dash.js"), text, 0o644)
}
