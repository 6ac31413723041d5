package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A process' CPU time grows with what it does.
func TestCPU(t *testing.T) {
	before := cpu(os.Getpid())
	for sum := 0; cpu(os.Getpid()) < before+2*tick; sum++ {
	}
	if cpu(1<<30) != 0 {
		t.Error("a process that isn't there has used CPU time")
	}
}

// Reports are read as moq-load-sim writes them.
func TestRows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.csv")
	if _, err := rows(file); err == nil {
		t.Error("a report that isn't there is read")
	}
	text := "t,namespace,track,live,target,rx_mbps,p90_ms,joins,leaves,fails\n" +
		"1,bench,track,3,8,0.00,0.0,,,\n7,bench,track,8,8,65.50,4.5,,,\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := rows(file)
	if err != nil || !slices.Equal(all, []row{{}, {65.5e6, 4.5}}) {
		t.Error(all, err)
	}
}

// The median is that of a value.
func TestMedian(t *testing.T) {
	if m := median([]row{{3, 1}, {1, 9}, {2, 5}}, func(r row) float64 { return r.bits }); m != 2 {
		t.Error(m)
	}
}
