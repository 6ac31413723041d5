package ipvs

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Each variant delivers packets in its directions, from the right addresses; those of IPVS if this machine's kernel
// has it.
func TestDirectors(t *testing.T) {
	needs.Root(t)
	for _, v := range append([]Variant{discard}, Variants...) {
		t.Run(string(v), func(t *testing.T) {
			d, err := newDirector(v)
			if (v == NAT || v == Direct) && errors.Is(err, errNoIPVS) {
				t.Log(err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer d.close()
			// And from then on it drops what arrives.
			from, to, at := d.ends(Request)
			arriving, err := d.arrival(Request).Capture()
			check(t, err)
			check(t, unix.SetNonblock(at.fd, true))
			check(t, measure.SendTo(from.fd, turnlab.Payload(Sizes[0]), to))
			check(t, testnet.Until(time.Second, "the packet arrives", func() bool {
				return slices.ContainsFunc(arriving.Frames(), func(f testnet.Frame) bool {
					_, payload, ok := dissect.UDP(f)
					return ok && !f.Outgoing && len(payload) == Sizes[0]
				})
			}))
			_, err = arriving.Stop()
			check(t, err)
			if _, _, err := unix.Recvfrom(at.fd, make([]byte, 1), 0); err != unix.EAGAIN {
				t.Errorf("the receiver got %v", err)
			}
		})
	}
}

// The tests of the balancer's spec hold in the model and in the kernel.
func TestSpec(t *testing.T) {
	needs.Root(t)
	r, list, err := build.Spec(t.Context(), "balance/spec.cue", build.Options{})
	check(t, errors.Join(err, list.Err()))
	inKernel, err := spectest.Kernel(t.Context(), r.Spec, r.Plan, r.Object())
	check(t, err)
	outcomes := append(spectest.Model(t.Context(), r.Spec, r.Plan), inKernel...)
	if len(outcomes) != 2*len(r.Spec.Tests) {
		t.Errorf("%d outcomes of %d tests in the model and in the kernel", len(outcomes), len(r.Spec.Tests))
	}
	for _, o := range outcomes {
		if o.Status != spectest.Passed {
			t.Errorf("%s: %s%s", o.Name, o.Why, strings.Join(o.Differences, "\n"))
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Tests that can't be set up fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
