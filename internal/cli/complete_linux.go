package cli

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// tcxPrograms names the TCX programs on an interface; none if the kernel doesn't say.
func tcxPrograms(index int) (names []string) {
	for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		found, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: at})
		if err != nil {
			continue
		}
		for _, p := range found.Programs {
			prog, err := ebpf.NewProgramFromID(p.ID)
			if err != nil {
				continue
			}
			if info, err := prog.Info(); err == nil {
				names = append(names, info.Name)
			}
			prog.Close()
		}
	}
	return names
}
