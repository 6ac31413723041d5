package fanout

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/internal/turnlab"
)

// prepareMachine has the kernel's threads that handle packets in turn with processes (ksoftirqd) not wait for what measures,
// and returns what undoes it.
func prepareMachine() (undo func() error, err error) {
	threads, err := kernelThreads("ksoftirqd/"+strconv.Itoa(turnlab.LoadCPU), "ksoftirqd/"+strconv.Itoa(turnlab.RelayCPU))
	if err != nil {
		return nil, err
	}
	set := func(priority int) (errs error) {
		for _, pid := range threads {
			errs = errors.Join(errs, turnlab.SetRealTime(pid, priority))
		}
		return errs
	}
	undo = func() error { return set(0) }
	if err := set(relayPriority); err != nil {
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
