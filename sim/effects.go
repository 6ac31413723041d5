package sim

// recordHeader is what the kernel puts in front of each record in a ring (BPF_RINGBUF_HDR_SZ).
const recordHeader = 8

// RecordRoom returns the bytes that a record of n bytes takes in the ring: __bpf_ringbuf_reserve in kernel/bpf/ringbuf.c.
func RecordRoom(n int) int { return (n + recordHeader + 7) &^ 7 }
