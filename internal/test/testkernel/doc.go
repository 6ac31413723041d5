// Package testkernel runs relays on Debian's kernels, for amd64 and arm64, in virtual machines without KVM.
//
// [Fetch] downloads a kernel of a Debian suite from the mirror that the machine's apt uses, and caches it. [Pack]
// makes an initial file system of the guest (such as package guest: a static program that is both init, by [Init], and
// the test), the modules it needs and the relays. [Boot] starts a machine, waits for its end, and returns the guest's
// report, a [Line] for each check. The report has a serial port of its own, apart from the kernel's messages on the
// console.
package testkernel
