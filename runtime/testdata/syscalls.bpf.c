// Counts the system calls of one process. It includes nothing: bpf.h of internal/bpftest stands before it.

const volatile __u32 process = 0;
__u64 calls;

SEC("raw_tracepoint/sys_enter") int count(void *ctx)
{
	if (bpf_get_current_pid_tgid() >> 32 == process)
		__sync_fetch_and_add(&calls, 1);
	return 0;
}

char _license[] SEC("license") = "GPL";
