// Package abi is what a relay's object, the runtime, generated Go and tools agree on: names, maps, layouts in memory,
// and the description of a relay. Each of these facts is stated here, once: gen and sim take sizes from here, gen/glue
// renders a [Desc], the runtime checks an object against [Desc.Maps] when it loads it, a test holds the C templates
// against [Structs], and docs/internals.md is made of the same tables.
//
// It imports nothing of Linux, so that the compiler builds anywhere.
package abi

import "encoding/binary"

// Version is the version of the contract between generated packages and the runtime. Generated Go refuses to compile
// against another version, and a relay doesn't adopt what one of another version has pinned.
const Version = 5

// Version5 exists as long as the runtime serves packages that were generated for version 5.
const Version5 = Version

// Order is the byte order of integers in maps. All supported hosts are little endian; objects are built for bpfel
// alone.
var Order = binary.LittleEndian

// Prefixes of names in the object: a user's names only ever follow one of them.
const (
	ProgramPrefix = "prog_" // a program
	XDPPrefix     = "xdp_"  // one at XDP, also in front of one at tc/ingress
	SettingPrefix = "set_"  // a variable in read-only data
	TablePrefix   = "tbl_"  // a table's map
	GroupPrefix   = "grp_"  // the lists of receivers of a kind of group
	RowsPrefix    = "rcv_"  // the rows of its receivers
)

// ProgramSection is the section of all programs.
const ProgramSection = "tc"

// ClockProgram writes the kernel's jiffies into the lease.
const ClockProgram = "fr_clock"

// FactsVariable says what programs may ask the kernel about a packet; the loader sets it.
const FactsVariable = "fr_facts"

// Values of the facts variable; 0: nothing.
const (
	FactsCast = 1 // bpf_cast_to_kern_ctx
	FactsRead = 2 // bpf_probe_read_kernel
)
