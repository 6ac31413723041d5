package measure

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// Load returns the share (0 to 1) of all processors' time that was in use during the next d: by processes,
// interrupts, and other guests of the host that this machine runs on.
func Load(d time.Duration) (float64, error) {
	usedBefore, allBefore, err := processorTime()
	if err != nil {
		return 0, err
	}
	time.Sleep(d)
	used, all, err := processorTime()
	if err != nil || all == allBefore {
		return 0, err
	}
	return float64(used-usedBefore) / float64(all-allBefore), nil
}

// processorTime returns the ticks of all processors since boot, and those of them in which they were in use (proc(5)).
func processorTime() (used, all uint64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var user, nice, system, idle, iowait, irq, softirq, steal uint64
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d",
		&user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal); err != nil {
		return 0, 0, fmt.Errorf("/proc/stat: %w", err)
	}
	used = user + nice + system + irq + softirq + steal
	return used, used + idle + iowait, nil
}
