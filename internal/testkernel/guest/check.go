package main

import (
	"bytes"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/internal/testkernel"
)

func checkSpec(r *reporter, dir string, packets int) {
	r.check(dir, "load", func() (string, error) {
		object, err := os.ReadFile(filepath.Join(dir, testkernel.ObjectName))
		if err != nil {
			return "", err
		}
		spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
		if err != nil {
			return "", err
		}
		coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}})
		if err != nil {
			return "", err
		}
		defer coll.Close()
		for name, p := range coll.Programs {
			cost, err := testkernel.ParseCost(p.VerifierLog)
			if err != nil {
				return "", err
			}
			info, err := p.Info()
			if err != nil {
				return "", err
			}
			n, err := info.TranslatedSize()
			if err != nil {
				return "", err
			}
			cost.Size = n / 8
			r.line(testkernel.Line{Spec: dir, Program: name, Cost: &cost})
		}
		return "", nil
	})
}
