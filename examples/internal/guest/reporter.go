package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/fastrelay/fastrelay-gen/internal/doctor"
	"github.com/fastrelay/fastrelay-gen/internal/test/testkernel"
)

// reporter writes lines. It remembers the first error of writing.
type reporter struct {
	out *json.Encoder
	err error
}

func newReporter(w io.Writer) *reporter { return &reporter{out: json.NewEncoder(w)} }

func (r *reporter) line(l testkernel.Line) {
	if err := r.out.Encode(l); err != nil && r.err == nil {
		r.err = err
	}
}

func (r *reporter) kernel() error {
	release, _, _ := doctor.Release()
	r.line(testkernel.Line{Kernel: release})
	return r.err
}

// check runs f and reports how it went. A check that panics failed; the others still run.
func (r *reporter) check(spec, check string, f func() (note string, err error)) (ok bool) {
	l := testkernel.Line{Spec: spec, Check: check}
	defer func() {
		if p := recover(); p != nil {
			l.Failed = fmt.Sprintf("panic: %v", p)
		}
		r.line(l)
		ok = l.Failed == ""
	}()
	note, err := f()
	if err != nil {
		l.Failed = err.Error()
	} else {
		l.Note = note
	}
	return true
}
