//go:build linux

package cli_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/cli"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Live traffic, captured by the tools that people use, on a device and on all devices: try finds the same in each
// capture, and Wireshark reads what try writes, with right checksums.
func TestTryLive(t *testing.T) {
	needs.Root(t)
	n, err := testnet.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	line, err := n.Line()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../examples/turn/spec.cue")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	spec := filepath.Join(dir, "spec.cue")
	changed := strings.ReplaceAll(string(text), `client: "198.51.100.7:40001"`, `client: "192.0.2.2:40001"`)
	if err := os.WriteFile(spec, []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, command := range map[string][]string{
		"tcpdump":        {"tcpdump", "-Z", "root", "-i", "eth0", "-c", "3", "-w", "FILE", "udp dst port 3478"},
		"tcpdump of all": {"tcpdump", "-Z", "root", "-i", "any", "-c", "3", "-w", "FILE", "udp dst port 3478"},
		"dumpcap":        {"dumpcap", "-q", "-i", "eth0", "-c", "3", "-w", "FILE", "-f", "udp dst port 3478"},
		"tshark":         {"tshark", "-q", "-i", "eth0", "-c", "3", "-w", "FILE", "-f", "udp dst port 3478"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".capture")
			for i := range command {
				command[i] = strings.ReplaceAll(command[i], "FILE", file)
			}
			sendUntil(t, line, line.Relay.Command(t.Context(), command[0], command[1:]...))
			out := file + ".pcapng"
			got := try(t, spec, file, "--program", "to_peer", "--kernel", "--write", out)
			for _, want := range []string{
				"    1  sent ", "- channel_data ", "3 packets, to_peer, in the model and the kernel: 0 differ",
				"       3 sent",
			} {
				if !strings.Contains(got, want) {
					t.Errorf("%q is missing in\n%s", want, got)
				}
			}
			fields, err := exec.CommandContext(t.Context(), "tshark", "-r", out, "-o", "udp.check_checksum:TRUE",
				"-o", "ip.check_checksum:TRUE", "-T", "fields", "-e", "frame.interface_name", "-e", "frame.comment",
				"-e", "ip.dst", "-e", "udp.dstport", "-e", "ip.checksum.status", "-e", "udp.checksum.status").Output()
			if err != nil {
				t.Fatal(err)
			}
			const first = "sent\tpacket 1: sent\t203.0.113.9\t7000\t1\t1\n"
			if !strings.HasPrefix(string(fields), first) || strings.Count(string(fields), "\n") != 3 {
				t.Errorf("tshark shows\n%s", fields)
			}
		})
	}
}

// sendUntil sends channel data from the client until a command, which captures it, has ended.
func sendUntil(t *testing.T, line *testnet.Line, capture *exec.Cmd) {
	t.Helper()
	var said bytes.Buffer
	capture.Stderr = &said
	if err := capture.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	ended := make(chan error, 1)
	go func() {
		ended <- capture.Wait()
		cancel()
	}()
	err := line.Client.Do(func() error {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.2:40001")),
			net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:3478")))
		if err != nil {
			return err
		}
		defer c.Close()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			// Errors say that no process listens on the port, which is right.
			_, _ = c.Write([]byte("\x40\x01\x00\x05hello"))
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Fatalf("%v captures nothing\n%s", capture.Args, &said)
	}
	if err := <-ended; err != nil {
		t.Fatalf("%v: %v\n%s", capture.Args, err, &said)
	}
}

func try(t *testing.T, args ...string) string {
	t.Helper()
	var out, said bytes.Buffer
	if status := cli.Do(append([]string{"try"}, args...), strings.NewReader(""), &out, &said); status != 0 {
		t.Fatalf("try %q: status %d\n%s%s", args, status, &out, &said)
	}
	return out.String()
}
