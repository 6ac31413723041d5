//go:build linux

package bpftest

import (
	"bytes"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// A thread that is signalled all the time runs a program as often as it should.
func TestRunIsExact(t *testing.T) {
	Rights(t)
	const text = `
__u64 runs;
SEC("tc") int count(struct __sk_buff *skb)
{
	__sync_fetch_and_add(&runs, 1);
	return 7;
}
char _license[] SEC("license") = "GPL";
`
	object, err := CompileText("count.bpf.c", text)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer coll.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread, stop := unix.Gettid(), make(chan struct{})
	var signals sync.WaitGroup
	signals.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG)
			}
		}
	})
	end := sync.OnceFunc(func() { close(stop); signals.Wait() })
	defer end()
	const calls, repeat = 100, 1000
	for range calls {
		if verdict, err := Run(coll.Programs["count"],
			ebpf.RunOptions{Data: make([]byte, 64), Repeat: repeat}); err != nil || verdict != 7 {
			t.Fatalf("%d, %v", verdict, err)
		}
	}
	end()
	var runs uint64
	if err := coll.Variables["runs"].Get(&runs); err != nil || runs != calls*repeat {
		t.Errorf("%d runs of %d, %v", runs, calls*repeat, err)
	}
}

// What clang has to say names the file as it is called.
func TestCompileError(t *testing.T) {
	_, err := CompileText("wrong.bpf.c", "\nint x = NUMBER + y;\n", "NUMBER=1")
	if err == nil || !strings.Contains(err.Error(), "wrong.bpf.c:2:") || !strings.Contains(err.Error(),
		"undeclared identifier 'y'") {
		t.Errorf("%v", err)
	}
}
