package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpfload"
)

// system looks at the kernel, at what this process may do, and at devices.
func system() []Check {
	checks := append([]Check{kernel(), rights(), files(), lockdown()}, featureChecks()...)
	checks = append(checks, btf(), jit(), bpffs(), memlock(), backlog(), Merging(), xfrm())
	checks = append(checks, interfaces()...)
	return append(checks, atXDP()...)
}

func rights() Check {
	c := Check{
		Name: "rights", Needed: "run", Status: OK, Found: "may load and attach programs",
		Do: "run with sudo, or give the program capabilities: " +
			"setcap cap_net_admin,cap_net_raw,cap_bpf,cap_perfmon+ep PROGRAM",
	}
	switch lacking := bpfload.Lacking(); {
	case len(lacking) > 0:
		c.Status, c.Found = Missing, "lacks "+strings.Join(lacking, ", ")
	case !bpfload.Has(unix.CAP_NET_RAW):
		c.Status = Warning
		c.Found += ", but lacks CAP_NET_RAW: only the kernel's path MTUs are known"
	default:
		c.Do = ""
	}
	return c
}

// files is about the limit of open files.
func files() Check {
	c := Check{Name: "open files", Needed: "run", Status: OK, Found: "there is room for 256 more"}
	var full *bpfload.Refusal
	if errors.As(bpfload.Room(256), &full) {
		c.Status, c.Found, c.Do = Warning, full.Cause, full.Fix
	}
	return c
}

func lockdown() Check {
	c := Check{Name: "lockdown", Status: OK, Found: cmp.Or(bpfload.Lockdown(), "none")}
	if c.Found == "confidentiality" {
		c.Status = Info
		c.Found += ": programs can't ask what the kernel knows about a packet, and infer what they can"
	}
	return c
}

// featureChecks asks the kernel for what relays use.
func featureChecks() []Check {
	return []Check{
		probe("tc programs", "run", features.HaveProgramType(ebpf.SchedCLS),
			"needs CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_BPF"),
		probe("bpf_redirect_neigh", "run", features.HaveProgramHelper(ebpf.SchedCLS, asm.FnRedirectNeigh),
			"came with Linux 5.10"),
		tcx(),
		probe("bpf_loop", "", features.HaveProgramHelper(ebpf.SchedCLS, asm.FnLoop),
			"came with Linux 5.17; fan_out needs it"),
		probe("maps of maps", "", features.HaveMapType(ebpf.HashOfMaps),
			"needs a kernel that can put a map into a map; fan_out needs it"),
		probe("atomics with results", "", atomics(), "came with Linux 5.12; admit, alloc and translate need them"),
		probe("ring buffer", "", ringBuffer(), "came with Linux 5.8; events need it"),
	}
}

// ringBuffer asks for the map and for what writes to it.
func ringBuffer() error {
	if err := features.HaveMapType(ebpf.RingBuf); err != nil {
		return err
	}
	return features.HaveProgramHelper(ebpf.SchedCLS, asm.FnRingbufReserve)
}

// atomics loads a program that compares and swaps on its stack: instructions that an older kernel doesn't know.
func atomics() error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS,
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R0, 1),
			asm.Mov.Imm(asm.R1, 2),
			asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
			asm.CmpXchg.Mem(asm.RFP, asm.R1, asm.DWord, -8),
			asm.FetchAdd.Mem(asm.RFP, asm.R1, asm.DWord, -8),
			asm.Mov.Imm(asm.R0, 0),
			asm.Return(),
		},
		License: "GPL",
	})
	if err == nil {
		return prog.Close()
	}
	var verifier *ebpf.VerifierError
	if errors.Is(err, unix.EINVAL) && errors.As(err, &verifier) {
		return ebpf.ErrNotSupported
	}
	return err
}

func probe(name, needed string, err error, absent string) Check {
	c := Check{Name: name, Needed: needed}
	switch {
	case err == nil:
		c.Status, c.Found = OK, "yes"
	case errors.Is(err, ebpf.ErrNotSupported) && needed == "":
		c.Status, c.Found = Info, "no: "+absent
	case errors.Is(err, ebpf.ErrNotSupported):
		c.Status, c.Found, c.Do = Missing, "no: "+absent, "use a newer kernel, or one that is built with it"
	default:
		c.Status, c.Found = Info, "unknown: "+reasonOf(err)
	}
	return c
}

// reasonOf makes an error of the kernel's a few words.
func reasonOf(err error) string {
	if errors.Is(err, unix.EPERM) {
		return "asking needs the right to load programs"
	}
	text, _, _ := strings.Cut(err.Error(), "\n")
	return text
}

// tcx asks what is attached to the loopback device in the new way; a kernel before 6.6 doesn't know the question.
func tcx() Check {
	if !bpfload.Has(unix.CAP_NET_ADMIN) {
		return probe("tcx", "", unix.EPERM, "")
	}
	_, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, unix.EINVAL) {
		err = ebpf.ErrNotSupported
	}
	return probe("tcx", "", err, "came with Linux 6.6; clsact is used instead")
}

// bpffs is where a relay is pinned, so that its successor can adopt it.
func bpffs() Check {
	c := Check{Name: "bpf file system", Status: OK, Found: "/sys/fs/bpf"}
	var fs unix.Statfs_t
	if err := unix.Statfs(c.Found, &fs); err != nil || fs.Type != unix.BPF_FS_MAGIC {
		c.Status, c.Found = Warning, "not mounted at /sys/fs/bpf: a relay can't be pinned and adopted"
		c.Do = "mount -t bpf bpf /sys/fs/bpf"
	}
	return c
}

// memlock: before Linux 5.11 maps counted against the limit of locked memory.
func memlock() Check {
	c := Check{Name: "locked memory", Status: OK}
	if _, major, minor := Release(); major > 5 || major == 5 && minor >= 11 {
		c.Found = "not limited for BPF since Linux 5.11"
		return c
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		c.Status, c.Found = Info, "unknown: "+err.Error()
		return c
	}
	if limit.Cur == unix.RLIM_INFINITY {
		c.Found = "no limit"
		return c
	}
	c.Status, c.Needed = Warning, "run"
	c.Found = fmt.Sprintf("limited to %d KiB; maps count against it on this kernel", limit.Cur/1024)
	c.Do = "the runtime raises the limit if it may (CAP_SYS_RESOURCE); otherwise ulimit -l unlimited"
	return c
}

// backlog is how many packets wait at most on a processor for a virtual device (veth): a fan-out fills it with one
// packet.
func backlog() Check {
	c := Check{Name: "packet backlog", Status: Info}
	text, err := os.ReadFile("/proc/sys/net/core/netdev_max_backlog")
	if err != nil {
		c.Found = "unknown: not readable here"
		return c
	}
	c.Found = fmt.Sprintf("%s packets (net.core.netdev_max_backlog); "+
		"copies of one packet to more receivers over veth are refused", strings.TrimSpace(string(text)))
	return c
}
