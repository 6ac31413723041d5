package literal

import (
	"net/netip"
	"testing"
)

func TestLiterals(t *testing.T) {
	for _, c := range []struct {
		parse func(string) error
		right []string
		wrong []string
	}{
		{func(s string) error {
			_, err := Addr(s)
			return err
		}, []string{"192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"},
			[]string{"", "192.0.2", "fe80::1%eth0", "192.0.2.1/32"}},
		{func(s string) error { _, err := Endpoint(s); return err }, []string{"192.0.2.1:1", "[::1]:65535"},
			[]string{"192.0.2.1", "::1:1", "[fe80::1%eth0]:1", "192.0.2.1:65536"}},
		{func(s string) error { _, err := Prefix(s); return err }, []string{
			"192.0.2.0/24", "192.0.2.9/24", "::/0", "::ffff:192.0.2.9/96",
		},
			[]string{"192.0.2.0", "192.0.2.0/33", "::ffff:192.0.2.0/95", "fe80::1%eth0/64"}},
		{func(s string) error { _, err := Mac(s); return err }, []string{"02:00:00:00:00:01", "02-00-00-00-00-01"},
			[]string{"02:00:00:00:00", "02:00:00:00:00:00:00:01"}},
		{func(s string) error {
			_, err := Bytes(s, 2)
			return err
		}, []string{"00ff", "00FF"}, []string{"00", "00ff00", "0x00ff", "zz00"}},
	} {
		for _, s := range c.right {
			if err := c.parse(s); err != nil {
				t.Error(err)
			}
		}
		for _, s := range c.wrong {
			if c.parse(s) == nil {
				t.Errorf("%q was parsed", s)
			}
		}
	}
	if p, _ := Prefix("192.0.2.9/24"); Mapped(p) != netip.MustParsePrefix("::ffff:192.0.2.0/120") {
		t.Errorf("the mapped prefix is %v", Mapped(p))
	}
}
