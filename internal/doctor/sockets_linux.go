package doctor

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// merging looks for sockets with UDP_GRO. The kernel merges the datagrams that such a socket receives before a program
// at tc/ingress sees them, and a relay passes merged datagrams to the stack.
func merging() Check {
	c := Check{Name: "merged datagrams", Status: OK, Found: "no socket asks for them (UDP_GRO)"}
	udp, err := udpSockets()
	if err != nil {
		c.Status, c.Found = Info, "unknown: "+reasonOf(err)
		return c
	}
	var programs []string
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is right
	for _, path := range fds {
		target, err := os.Readlink(path)
		if err != nil || !udp[target] {
			continue
		}
		parts := strings.Split(path, "/")
		pid, _ := strconv.Atoi(parts[2])
		fd, _ := strconv.Atoi(parts[4])
		on, err := mergesDatagrams(pid, fd)
		if err == unix.EPERM {
			c.Status, c.Found = Info, "unknown: only root may look at the sockets of other programs"
			return c
		}
		if on {
			name, _ := os.ReadFile(filepath.Join("/proc", parts[2], "comm"))
			programs = append(programs, strings.TrimSpace(string(name)))
		}
	}
	if slices.Sort(programs); len(programs) > 0 {
		c.Status = Warning
		c.Found = fmt.Sprintf("sockets of %s ask for them (UDP_GRO): a relay passes them to the stack",
			strings.Join(slices.Compact(programs), ", "))
		c.Do = "a server whose packets are relayed turns UDP_GRO off"
	}
	return c
}

// udpSockets returns the UDP sockets of this network namespace, as links in /proc name them.
func udpSockets() (map[string]bool, error) {
	all := map[string]bool{}
	for _, name := range []string{"/proc/net/udp", "/proc/net/udp6"} {
		f, err := os.Open(name)
		if os.IsNotExist(err) {
			continue // no IPv6
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if columns := strings.Fields(lines.Text()); len(columns) > 9 {
				all["socket:["+columns[9]+"]"] = true
			}
		}
		f.Close()
		if err := lines.Err(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// mergesDatagrams asks for an option of another program's socket.
func mergesDatagrams(pid, fd int) (bool, error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(process)
	socket, err := unix.PidfdGetfd(process, fd, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(socket)
	on, err := unix.GetsockoptInt(socket, unix.IPPROTO_UDP, unix.UDP_GRO)
	return on != 0, err
}
