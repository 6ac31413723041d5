package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Decoder is ffmpeg, which receives a stream and decodes it.
type Decoder struct {
	cmd   *exec.Cmd
	dir   string
	ended chan error

	mu       sync.Mutex
	out, log bytes.Buffer
}

// locked is a buffer that is written while it is read.
type locked struct {
	mu  *sync.Mutex
	buf *bytes.Buffer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// StartDecoder starts ffmpeg on a host, to make a number of pictures of the stream that it gets at an address. It
// listens when this returns.
func StartDecoder(host *testnet.Host, at netip.AddrPort, payloadType uint8, pictures int) (*Decoder, error) {
	dir, err := os.MkdirTemp("", "sfu-decoder-*")
	if err != nil {
		return nil, err
	}
	d := &Decoder{dir: dir, ended: make(chan error, 1)}
	version := 4
	if at.Addr().Is6() {
		version = 6
	}
	sdp := fmt.Sprintf("v=0\r\no=- 0 0 IN IP%d %v\r\ns=sfu\r\nc=IN IP%d %v\r\nt=0 0\r\nm=video %d RTP/AVP %d\r\n"+
		"a=rtpmap:%d VP8/%d\r\n",
		version, at.Addr(), version, at.Addr(), at.Port(), payloadType, payloadType, Clock)
	file := filepath.Join(dir, "stream.sdp")
	if err := os.WriteFile(file, []byte(sdp), 0o644); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	d.cmd = host.Command(context.Background(), "ffmpeg", "-hide_banner", "-loglevel", "warning", "-nostdin", "-y",
		"-protocol_whitelist", "file,udp,rtp", "-analyzeduration", "200000", "-err_detect", "explode", "-threads", "1",
		"-i", file,
		"-frames:v", strconv.Itoa(pictures), "-fps_mode", "passthrough", "-f", "framemd5", "-flush_packets", "1",
		"pipe:1")
	d.cmd.Stdout, d.cmd.Stderr = locked{&d.mu, &d.out}, locked{&d.mu, &d.log}
	if err := testnet.StartChild(d.cmd); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	go func() { d.ended <- d.cmd.Wait() }()
	err = testnet.Until(10*time.Second, "ffmpeg listens", func() bool { return taken(host, at.Port()) })
	if err != nil {
		d.Kill()
	}
	return d, err
}

// taken reports whether a socket on the host has the UDP port (proc_net(5)).
func taken(host *testnet.Host, port uint16) bool {
	var sockets []byte
	err := host.Do(func() error {
		for _, name := range []string{"udp", "udp6"} {
			data, err := os.ReadFile("/proc/thread-self/net/" + name)
			if err != nil {
				return err
			}
			sockets = append(sockets, data...)
		}
		return nil
	})
	for line := range strings.Lines(string(sockets)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			return err == nil
		}
	}
	return false
}

// Kill ends the decoder at once.
func (d *Decoder) Kill() {
	_ = d.cmd.Process.Kill()
	os.RemoveAll(d.dir)
}

// Wait waits until ffmpeg has made its pictures and ended. It returns their sums, and all that ffmpeg objected to.
func (d *Decoder) Wait(limit time.Duration) (sums []string, said string, err error) {
	select {
	case err = <-d.ended:
	case <-time.After(limit):
		err = errors.New("ffmpeg waits for more")
	}
	d.Kill()
	d.mu.Lock()
	defer d.mu.Unlock()
	sums = readSums(d.out.Bytes())
	if err != nil {
		err = fmt.Errorf("%w, after %d pictures; it says: %s", err, len(sums), d.log.String())
	}
	return sums, d.log.String(), err
}
