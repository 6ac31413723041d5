package disasm

import (
	"testing"

	"github.com/cilium/ebpf/asm"
)

func TestProgram(t *testing.T) {
	insns := asm.Instructions{
		asm.LoadMapPtr(asm.R1, 0).WithReference("tbl_peers").WithSymbol("prog_out"),
		asm.LoadMem(asm.R2, asm.R6, 176, asm.Word),
		asm.StoreMem(asm.RFP, -8, asm.R2, asm.DWord),
		asm.StoreImm(asm.RFP, -16, 7, asm.Byte),
		asm.Mov.Imm(asm.R3, -1),
		asm.Add.Reg32(asm.R3, asm.R2),
		asm.HostTo(asm.BE, asm.R3, asm.Half),
		asm.FnMapLookupElem.Call(),
		{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.JEq).SetSource(asm.ImmSource), Dst: asm.R0, Offset: 2,
			Constant: 0},
		{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Ja), Offset: -3},
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.FetchAdd.Mem(asm.R0, asm.R1, asm.DWord, 8),
		asm.Xchg.Mem(asm.R0, asm.R1, asm.Word, -4),
		asm.CmpXchg.Mem(asm.R2, asm.R3, asm.DWord, 0),
		asm.FnCloneRedirect.Call(),
		asm.FnLoop.Call(),
		asm.FnRingbufReserve.Call(),
		asm.FnKtimeGetNs.Call(),
		asm.Return(),
	}
	want := []string{
		"r1 = tbl_peers ll", "w2 = *(u32 *)(r6 + 176)", "*(u64 *)(r10 - 8) = r2", "*(u8 *)(r10 - 16) = 7", "r3 = -1",
		"w3 += w2",
		"r3 = be16 r3", "call bpf_map_lookup_elem#1", "if r0 == 0 goto 12", "goto 8", "lock *(u64 *)(r0 + 0) += r1",
		"r1 = atomic64_fetch_add((u64 *)(r0 + 8), r1)", "w1 = atomic_xchg((u32 *)(r0 - 4), w1)",
		"r0 = atomic64_cmpxchg((u64 *)(r2 + 0), r0, r3)",
		"call bpf_clone_redirect#13", "call bpf_loop#181", "call bpf_ringbuf_reserve#131", "call bpf_ktime_get_ns#5",
		"exit",
	}
	lines := Program(insns)
	if lines[0].Label != "prog_out" || lines[1].Index != 2 {
		t.Errorf("the first lines: %+v", lines[:2])
	}
	for i, l := range lines {
		if l.Text != want[i] {
			t.Errorf("%d: %q, not %q", l.Index, l.Text, want[i])
		}
	}
}
