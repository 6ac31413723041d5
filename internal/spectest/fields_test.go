package spectest_test

import (
	"context"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/spectest"
)

// A test that fails shows the packet and what the program changed, field by field.
func TestFields(t *testing.T) {
	s, plan := edited(t, "dst: \"203.0.113.9\", hop_limit: 64", "dst: \"203.0.113.9\", hop_limit: 9")
	for _, o := range spectest.Model(context.Background(), s, plan) {
		if o.Status == spectest.Passed {
			continue
		}
		got := strings.Join(strings.Fields(o.Fields), " ")
		for _, want := range []string{
			"the packet, 51 bytes:", "channel_data bytes 42-45: number 16385 (0x4001), length 5",
			`payload bytes 46-50: "hello"`, "~ ipv4.ttl byte 22 57 -> 64", "~ ipv4.df byte 20, bit 1 0 -> 1",
			"- channel_data bytes 42-45 number 16385 (0x4001), length 5",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%q is missing in\n%s", want, o.Fields)
			}
		}
		return
	}
	t.Error("no test has failed")
}
