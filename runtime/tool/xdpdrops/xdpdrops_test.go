package xdpdrops

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
)

// What is pinned is gone on with if it is whole. Of a process that has died while it pinned, nothing is left.
func TestPins(t *testing.T) {
	bpftest.Rights(t)
	path := fmt.Sprintf("/sys/fs/bpf/fr-drops-test-%d", os.Getpid())
	t.Cleanup(func() { _ = os.RemoveAll(path) })
	for i, c := range []struct {
		lost string // a pin that isn't there
		want []Device
	}{
		{"", nil},
		{"", []Device{{7, 0}}},
		{"", []Device{{7, 0}, {7, 1}}},
		{tracepoints[1].name, nil},
		{countsSpec.Name, nil},
		{"", []Device{{7, 4}}},
	} {
		if c.lost != "" {
			if err := os.Remove(filepath.Join(path, c.lost)); err != nil {
				t.Fatal(err)
			}
		}
		counter, err := Count(path)
		if err != nil {
			t.Fatal(err)
		}
		var got []Device
		err = counter.Keep(func(d Device) bool { got = append(got, d); return true })
		slices.SortFunc(got, func(a, b Device) int { return int(a.Index) - int(b.Index) })
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%d: it counts for %v, want %v: %v", i, got, c.want, err)
		}
		if err := counter.Add(Device{7, uint32(i)}); err != nil {
			t.Fatal(err)
		}
		if drops, err := counter.Drops(); err != nil || len(drops) > 0 {
			t.Errorf("%d: %v, %v", i, drops, err)
		}
		if err := counter.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A device that isn't kept isn't counted for any more.
func TestKeep(t *testing.T) {
	bpftest.Rights(t)
	c, err := Count("")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range uint32(4) {
		if err := c.Add(Device{i % 2, i}); err != nil {
			t.Fatal(err)
		}
	}
	odd := func(d Device) bool { return d.Namespace == 1 }
	var got []Device
	err1 := c.Keep(odd)
	err2 := c.Keep(func(d Device) bool { got = append(got, d); return true })
	if err1 != nil || err2 != nil || len(got) != 2 || !odd(got[0]) || !odd(got[1]) {
		t.Errorf("%v, %v, %v", got, err1, err2)
	}
}

// A kernel whose tracepoint is missing, or has other arguments, is told from one that has it.
func TestOtherKernels(t *testing.T) {
	bpftest.Rights(t)
	k, err := newKernel()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ tracepoint, argument, want string }{
		{"xdp_devmap_xmit", "drops", ""},
		{"xdp_devmap_xmit", "lost", "has other arguments"},
		{"xdp_no_such", "drops", "has no tracepoint xdp_no_such"},
	} {
		_, err := k.arguments(c.tracepoint, map[string]asm.Register{c.argument: asm.R2})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %s: %v", c.tracepoint, c.argument, err)
		}
	}
}
