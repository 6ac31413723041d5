// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Counts the system calls of one process, which has its number in a PID namespace. It includes nothing: bpf.h of tool/bpftest
// is before it.

const volatile __u32 process = 0;
const volatile __u64 device = 0, inode = 0; // of the namespace
__u64 calls;

SEC("raw_tracepoint/sys_enter") int count(void *ctx)
{
	struct { __u32 thread, process; } id;

	if (!bpf_get_ns_current_pid_tgid(device, inode, &id, sizeof id) && id.process == process)
		__sync_fetch_and_add(&calls, 1);
	return 0;
}

char _license[] SEC("license") = "GPL";
