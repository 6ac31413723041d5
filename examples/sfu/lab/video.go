package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// What the test video is like. Its layers are those of libvpx's pattern for three layers (0, 2, 1, 2): with the base
// layer alone a quarter of the frames is left, with two layers half of them.
const (
	FramesPerSecond = 30
	KeyInterval     = 32 // a multiple of the pattern's length, so that a key frame is of the base layer
	Clock           = 90000
)

var pattern = [...]uint8{0, 2, 1, 2}

// Frame is an encoded frame.
type Frame struct {
	Data   []byte
	Number int // from 0 on
	Layer  uint8
	Key    bool
}

// Video is an encoded video, and what a decoder makes of it.
type Video struct {
	Frames []Frame
	Sums   []string // of the pictures, if all frames are decoded
}

// Encode makes a video with libvpx, and decodes it for comparison. A layer's frames need no frame of a higher layer,
// and so the base layer alone decodes to the same pictures.
func Encode(ctx context.Context, frames int) (*Video, error) {
	dir, err := os.MkdirTemp("", "sfu-video-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "video.ivf")
	args := []string{
		"-f", "lavfi", "-i", fmt.Sprintf("testsrc2=size=320x240:rate=%d", FramesPerSecond), "-frames:v",
		fmt.Sprint(frames),
		"-c:v", "libvpx", "-deadline", "realtime", "-cpu-used", "8", "-threads", "1", "-error-resilient", "1",
		"-auto-alt-ref", "0", "-lag-in-frames", "0",
		"-g", fmt.Sprint(KeyInterval), "-keyint_min", fmt.Sprint(KeyInterval), "-b:v", "800k", "-minrate", "800k",
		"-maxrate", "800k", "-bufsize", "800k",
		"-ts-parameters", "ts_number_layers=3:ts_target_bitrate=300,500,800:ts_rate_decimator=4,2,1:" +
			"ts_periodicity=4:ts_layer_id=0,2,1,2:ts_layering_mode=3",
		"-f", "ivf", file,
	}
	if _, err := ffmpeg(ctx, args...); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	v := &Video{}
	if v.Frames, err = readIVF(data); err != nil {
		return nil, err
	}
	if len(v.Frames) != frames {
		return nil, fmt.Errorf("the encoder made %d frames of %d", len(v.Frames), frames)
	}
	if v.Sums, err = decode(ctx, file); err != nil {
		return nil, err
	}
	if len(v.Sums) != frames {
		return nil, fmt.Errorf("the decoder made %d pictures of %d frames", len(v.Sums), frames)
	}
	return v, nil
}

func ffmpeg(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "ffmpeg",
		append([]string{"-hide_banner", "-loglevel", "warning", "-nostdin", "-y"}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ffmpeg %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// decode returns the sums of the pictures that ffmpeg makes of a file. A frame that is damaged is an error.
func decode(ctx context.Context, file string) ([]string, error) {
	sums := file + ".sums"
	said, err := ffmpeg(ctx, "-err_detect", "explode", "-threads", "1", "-i", file, "-fps_mode", "passthrough", "-f",
		"framemd5", sums)
	if err != nil {
		return nil, err
	}
	if said != "" {
		return nil, fmt.Errorf("the decoder objects: %s", said)
	}
	data, err := os.ReadFile(sums)
	return readSums(data), err
}

// readSums reads the sums that ffmpeg's framemd5 wrote: the last column of each line.
func readSums(data []byte) (sums []string) {
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "#") && strings.HasSuffix(line, "\n") {
			sums = append(sums, strings.TrimSpace(line[strings.LastIndexByte(line, ',')+1:]))
		}
	}
	return sums
}

// IVF is libvpx's container: a header of 32 bytes, then frames, each after its size (u32) and its time (u64), little
// endian.
const ivfHeader, ivfFrame = 32, 12

func readIVF(data []byte) ([]Frame, error) {
	if len(data) < ivfHeader || string(data[:4]) != "DKIF" {
		return nil, errors.New("not an IVF file")
	}
	var frames []Frame
	for data = data[ivfHeader:]; len(data) > 0; {
		if len(data) < ivfFrame || uint64(len(data)-ivfFrame) < uint64(binary.LittleEndian.Uint32(data)) {
			return nil, errors.New("the IVF file ends inside a frame")
		}
		size := int(binary.LittleEndian.Uint32(data))
		n := len(frames)
		frame := data[ivfFrame : ivfFrame+size]
		frames = append(frames, Frame{
			Data: frame, Number: n, Layer: pattern[n%len(pattern)], Key: len(frame) > 0 && frame[0]&1 == 0,
		})
		data = data[ivfFrame+size:]
	}
	return frames, nil
}

func writeIVF(frames [][]byte) []byte {
	le := binary.LittleEndian
	out := append([]byte("DKIF"), 0, 0, ivfHeader, 0)
	out = append(out, "VP80"...)
	out = le.AppendUint16(le.AppendUint16(out, 320), 240)
	out = le.AppendUint32(le.AppendUint32(out, FramesPerSecond), 1)
	out = le.AppendUint32(le.AppendUint32(out, uint32(len(frames))), 0)
	for i, f := range frames {
		out = le.AppendUint32(out, uint32(len(f)))
		out = le.AppendUint64(out, uint64(i))
		out = append(out, f...)
	}
	return out
}

// Decode decodes frames that a receiver put together and returns the sums of the pictures. A frame that is damaged is
// an error.
func Decode(ctx context.Context, frames [][]byte) ([]string, error) {
	dir, err := os.MkdirTemp("", "sfu-frames-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "frames.ivf")
	if err := os.WriteFile(file, writeIVF(frames), 0o644); err != nil {
		return nil, err
	}
	return decode(ctx, file)
}
