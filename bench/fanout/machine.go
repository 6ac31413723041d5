package fanout

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
)

// backlog is how many packets may wait for a processor (netdev_max_backlog) while the bench runs, so that what bounds a
// rate is the relay and not the receivers' queue: a machine as it comes drops what exceeds 1,000, which is 250 µs of
// copies.
const (
	backlog     = 16_384
	backlogFile = "/proc/sys/net/core/netdev_max_backlog"
)

// PrepareMachine sets what is the machine's and not a host's: the backlog, and that the kernel's threads that handle
// packets in turn with processes (ksoftirqd) don't wait for what measures. It returns what undoes it, which an
// interrupt does as well.
func PrepareMachine() (undo func() error, err error) {
	threads, err := kernelThreads("ksoftirqd/"+strconv.Itoa(measure.LoadCPU),
		"ksoftirqd/"+strconv.Itoa(measure.RelayCPU))
	if err != nil {
		return nil, err
	}
	old, err := os.ReadFile(backlogFile)
	if err != nil {
		return nil, err
	}
	set := func(backlog []byte, priority int) error {
		err := os.WriteFile(backlogFile, backlog, 0)
		for _, pid := range threads {
			err = errors.Join(err, measure.SetRealTime(pid, priority))
		}
		return err
	}
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt, unix.SIGTERM)
	go func() {
		if s, interrupted := <-interrupts; interrupted {
			_ = set(old, 0)
			os.Exit(128 + int(s.(unix.Signal)))
		}
	}()
	undo = sync.OnceValue(func() error {
		signal.Stop(interrupts)
		close(interrupts)
		return set(old, 0)
	})
	if err := set([]byte(strconv.Itoa(backlog)), relayPriority); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// kernelThreads returns the process with each name.
func kernelThreads(names ...string) (pids []int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		found := false
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil || strings.TrimSpace(string(text)) != name {
				continue // or it has ended
			}
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			if err != nil {
				return nil, err
			}
			pids, found = append(pids, pid), true
		}
		if !found {
			return nil, fmt.Errorf("no kernel thread %s", name)
		}
	}
	return pids, nil
}
