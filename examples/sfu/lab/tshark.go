package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Seen is an RTP packet as tshark read it.
type Seen struct {
	Sequence    uint16
	Timestamp   uint32
	SSRC        uint32
	PayloadType uint8
}

// Tshark reads the RTP packets among frames that go to a port.
func Tshark(frames []testnet.Frame, port uint16) ([]Seen, error) {
	file, err := os.CreateTemp("", "sfu-*.pcap")
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name())
	if err := errors.Join(dissect.WritePcap(file, frames), file.Close()); err != nil {
		return nil, err
	}
	cmd := exec.Command("tshark", "-n", "-r", file.Name(), "-d", fmt.Sprintf("udp.port==%d,rtp", port), "-o",
		"rtp.heuristic_rtp:FALSE",
		"-Y", fmt.Sprintf("rtp && udp.dstport == %d", port), "-T", "fields", "-e", "rtp.seq", "-e", "rtp.timestamp",
		"-e", "rtp.ssrc", "-e", "rtp.p_type")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("tshark: %w: %s", err, said.String())
	}
	var list []Seen
	for line := range strings.Lines(string(out)) {
		var n [4]uint64
		fields := strings.Fields(line)
		if len(fields) != len(n) {
			return nil, fmt.Errorf("tshark says %q", line)
		}
		for i, f := range fields {
			if n[i], err = strconv.ParseUint(f, 0, 32); err != nil {
				return nil, fmt.Errorf("tshark says %q", line)
			}
		}
		list = append(list, Seen{uint16(n[0]), uint32(n[1]), uint32(n[2]), uint8(n[3])})
	}
	return list, nil
}

// Gap returns the first place where a number doesn't follow the one in front of it, or an empty string.
func Gap(list []Seen) string {
	for i := 1; i < len(list); i++ {
		if a, b := list[i-1], list[i]; b.Sequence != a.Sequence+1 || b.SSRC != a.SSRC ||
			b.PayloadType != a.PayloadType {
			return fmt.Sprintf("packet %d is %+v, after %+v", i, b, a)
		}
	}
	return ""
}
