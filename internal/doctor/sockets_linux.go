package doctor

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Merging looks for what has the kernel merge datagrams that it receives: sockets with UDP_GRO, and devices that are
// told to. That happens before a program at tc/ingress sees them, and a relay that would change each of them passes
// what is merged to the stack.
func Merging() Check {
	c := Check{Name: "merged datagrams", Status: OK, Found: "no socket (UDP_GRO) and no device asks for them"}
	programs, err := mergingSockets()
	devices := mergingDevices()
	var found, do []string
	if len(programs) > 0 {
		found = append(found, fmt.Sprintf("sockets of %s ask for them (UDP_GRO)", strings.Join(programs, ", ")))
		do = append(do, "a server whose packets are relayed turns UDP_GRO off")
	}
	for _, d := range devices {
		found = append(found, fmt.Sprintf("%s makes them (%s)", d.name, strings.Join(d.features, ", ")))
		for _, f := range d.features {
			do = append(do, fmt.Sprintf("ethtool -K %s %s off", d.name, f))
		}
	}
	switch {
	case len(found) > 0:
		c.Status = Warning
		c.Found = strings.Join(found, "; ") + ": a relay passes them to the stack"
		c.Do = strings.Join(do, "; ")
	case err != nil:
		c.Status, c.Found = Info, "unknown: "+err.Error()
	}
	return c
}

// mergingSockets returns the names of programs in this network namespace that have sockets with UDP_GRO.
func mergingSockets() (programs []string, err error) {
	udp, err := udpSockets()
	if err != nil {
		return nil, errors.New(reasonOf(err))
	}
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
			return nil, errors.New("only root may look at the sockets of other programs")
		}
		if on {
			name, _ := os.ReadFile(filepath.Join("/proc", parts[2], "comm"))
			programs = append(programs, strings.TrimSpace(string(name)))
		}
	}
	slices.Sort(programs)
	return slices.Compact(programs), nil
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
