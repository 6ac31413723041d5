package sample

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// What a program takes is held to what gopacket reads as IP, but only if the program reads IP at that place: after a
// header of the spec, which comes after any EtherType, gopacket may see an IPv4 header where there is none.
func TestForeign(t *testing.T) {
	host := packet.DefaultDestination
	frame := slices.Concat(host[:], make([]byte, 6), []byte{8, 0, 0x45, 0, 0, 40}, make([]byte, 60))
	copy(frame[26:], []byte{198, 51, 100, 7, 192, 0, 2, 1})
	right := slices.Clone(frame)
	sum := uint32(0)
	for at := 14; at < 34; at += 2 {
		sum += uint32(binary.BigEndian.Uint16(right[at:]))
	}
	binary.BigEndian.PutUint16(right[24:], ^uint16(sum+sum>>16))
	martian := slices.Clone(frame)
	copy(martian[26:], []byte{127, 0, 0, 1, 192, 0, 173, 58}) // the same sum
	copy(martian[24:], right[24:26])
	other := slices.Clone(right)
	other[5] ^= 1
	for _, c := range []struct {
		name, stack string
		frame       []byte
		wrong       string
	}{
		{"right", `"eth", "ipv4"`, right, ""},
		{"a wrong checksum", `"eth", "ipv4"`, frame, "a checksum of 0000"},
		{"after a tag", `"eth", "vlan?", "ip"`, frame, "a checksum of 0000"},
		{"a header of the spec in between", `"eth", "shim", "ipv6"`, frame, ""},
		{"it may be in between", `"eth", "shim?", "ip"`, frame, ""},
		{"another one may be there", `"eth", {x: ["ipv4", "shim"]}`, frame, ""},
		{"no link-layer header", `"ipv4"`, frame, ""},
		{"another host's", `"eth", "shim", "ipv6"`, other, "a frame to"},
		{"a martian", `"eth", "ipv4"`, martian, "a packet from 127.0.0.1"},
		{"which is none here", `"eth", "shim", "ipv6"`, martian, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, diags := spec.Load("spec.cue", []byte(`name: "a"
headers: shim: fields: [{name: "x", bytes: 11}]
programs: p: {hook: "tc/ingress", stack: [`+c.stack+`], do: ["pass"]}`))
			if s == nil {
				t.Fatal(diags)
			}
			got := Foreign(s, "p", sim.Packet{Data: c.frame})
			if (got == "") != (c.wrong == "") || !strings.Contains(got, c.wrong) {
				t.Errorf("got %q, want %q", got, c.wrong)
			}
		})
	}
}
