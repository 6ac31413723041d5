package testkernel

// Arch is a processor's architecture, as both Go and Debian call it.
type Arch string

// Architectures that are emulated.
const (
	AMD64 Arch = "amd64"
	ARM64 Arch = "arm64"
)

// machine is an emulated machine.
type machine struct {
	emulator string
	args     []string
	console  string // the kernel's name of the first serial port, which has its messages
	report   string // the second serial port in the guest, which has the report
}

var machines = map[Arch]machine{
	// With RDRAND the guest's first random number doesn't wait. Without CMPXCHG16B: QEMU 7.2 leaves wrong flags
	// after that instruction, so that an interrupt at the wrong time ends in a double fault (Linux 6.12 allocates
	// memory with it). Nothing newer than Nehalem, because the kernel's JIT uses what there is, and its code is
	// what is tested.
	AMD64: {"qemu-system-x86_64", []string{"-cpu", "Nehalem,+rdrand,-cx16"}, "ttyS0", "/dev/ttyS1"},
	// A server's processor with the atomic instructions of ARMv8.1, which the kernel's JIT uses, and without pointer
	// authentication, which takes much time to emulate. The machine has one serial port; a PCI card has the other.
	ARM64: {
		"qemu-system-aarch64",
		[]string{"-machine", "virt", "-cpu", "neoverse-n1", "-device", "pci-serial,chardev=serial1"},
		"ttyAMA0", "/dev/ttyS0",
	},
}

// ReportPort returns the file in a guest that its report is written to.
func ReportPort(arch Arch) string { return machines[arch].report }
