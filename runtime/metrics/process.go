package metrics

import (
	"cmp"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// version is that of a binary that is shipped, which the linker sets; "": that of its main module.
var version string

// started is when the process began, but for its first milliseconds.
var started = time.Now()

// process returns what is known of this process, under the names that Prometheus's libraries have for it.
func process() []*family {
	build := &family{name: "fastrelay_build_info", typ: "gauge", help: "1; what the server was built from."}
	labels := map[string]string{}
	main := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		main = info.Main.Version
		for _, s := range info.Settings {
			labels[s.Key] = s.Value
		}
	}
	build.add(1, "version", cmp.Or(version, main), "revision", labels["vcs.revision"], "goversion", runtime.Version())
	all := []*family{build}
	add := func(name, typ, help string, v float64) {
		f := &family{name: name, typ: typ, help: help}
		f.series.WriteString(name + " " + strconv.FormatFloat(v, 'f', -1, 64) + "\n")
		all = append(all, f)
	}
	add("process_start_time_seconds", "gauge", "When the process began, in Unix time.",
		float64(started.UnixMilli())/1000)
	add("go_goroutines", "gauge", "Goroutines that exist.", float64(runtime.NumGoroutine()))
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) == nil {
		add("process_cpu_seconds_total", "counter", "CPU time of user space and kernel.",
			time.Duration(usage.Utime.Nano()+usage.Stime.Nano()).Seconds())
	}
	if text, err := os.ReadFile("/proc/self/statm"); err == nil {
		if fields := strings.Fields(string(text)); len(fields) > 1 {
			pages, _ := strconv.Atoi(fields[1]) // the kernel's
			add("process_resident_memory_bytes", "gauge", "Memory in use.", float64(pages*os.Getpagesize()))
		}
	}
	var files unix.Rlimit
	open, err := os.ReadDir("/proc/self/fd")
	if err == nil && unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		add("process_open_fds", "gauge", "Open files.", float64(len(open)))
		add("process_max_fds", "gauge", "How many files may be open.", float64(files.Cur))
	}
	return all
}
