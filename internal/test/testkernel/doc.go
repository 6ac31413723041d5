// Package testkernel runs relays on kernels that this machine doesn't have: Debian's, for amd64 and arm64, in virtual machines
// without KVM.
//
// [Fetch] gets a kernel of a Debian suite from the mirror that the machine's own apt uses, and keeps it. [Pack] makes an
// initial file system of the guest (package guest: a static program that is init as well as the test), the modules it needs
// and the relays. [Boot] starts it, waits, and returns what the guest reported, a [Line] each, on a serial port of its own,
// so that the kernel's messages on the console can't come between.
package testkernel
