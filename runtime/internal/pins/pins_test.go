package pins

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
)

// A lock that a process holds is waited for a moment, not for ever, and the error names the process.
func TestHeldLock(t *testing.T) {
	bpftest.Rights(t)
	path := fmt.Sprintf("/sys/fs/bpf/fastrelay_pins_test_%d", os.Getpid())
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(path)
	holder, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if err := unix.Flock(int(holder.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, err = Open(path)
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())+" (") ||
		!strings.Contains(err.Error(), "of user root (0)") {
		t.Errorf("error %v", err)
	}
	if d := time.Since(began); d < lockPatience || d > lockDying {
		t.Errorf("it took %v", d)
	}
	h := &lockHolder{pid: os.Getpid()}
	if h.dying() {
		t.Error("this process is dying")
	}
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if found, _, err := p.Maps(nil, nil, false); found != nil || err != nil {
		t.Errorf("an empty folder has %v, %v", found, err)
	}
	for l, err := range p.Links() {
		if err == nil || l != nil {
			t.Errorf("an empty folder has link %v", l)
		}
	}
	p.Abandon()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty folder stays: %v", err)
	}
}

// Another relay is one that has another name, or nothing in common with the pinned one.
func TestAnotherRelay(t *testing.T) {
	desc := func(name, program, table string) *abi.Desc {
		return &abi.Desc{Name: name, Programs: []abi.Program{{Name: program}}, Tables: []abi.Table{{Name: table}}}
	}
	old := layoutOf(desc("one", "p", "t"))
	for _, tt := range []struct {
		now  *abi.Desc
		want string
	}{
		{desc("one", "p", "t"), ""},
		{desc("one", "other", "t"), ""},
		{desc("one", "p", "other"), ""},
		{desc("one", "other", "other"),
			`it is another one (found "one" with programs p and tables t, ` +
				`want "one" with programs other and tables other)`},
		{desc("two", "p", "t"),
			`it is another one (found "one" with programs p and tables t, want "two" with programs p and tables t)`},
	} {
		err := compare("/pins", old, layoutOf(tt.now))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v, want %q", tt.now, err, tt.want)
		}
	}
}
