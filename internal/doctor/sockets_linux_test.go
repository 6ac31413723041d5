package doctor

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// TestMerging opens a socket that merges datagrams.
func TestMerging(t *testing.T) {
	needs.Root(t)
	c, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(os.Args[0])[:8]
	for _, on := range []int{1, 0} {
		var option error
		if err := raw.Control(func(fd uintptr) {
			option = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, on)
		}); err != nil || option != nil {
			t.Fatal(err, option)
		}
		check := Merging()
		if found := strings.Contains(check.Found, name); found != (on == 1) || found && check.Status != Warning {
			t.Errorf("UDP_GRO %d: %+v", on, check)
		}
	}
}
