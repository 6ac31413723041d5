// Package packet builds frames from the headers that a spec declares, takes them apart, and compares them. It reads the
// spec's declarations alone and shares nothing with the compiler, so that it can judge what the compiler made.
//
// # What a field gets that is not given
//
// A length gets what it counts, a checksum what it covers; a field by which the next header is recognised (after) gets
// the value that announces it; a hop limit 64; link-layer addresses 02:00:00:00:00:01 (source) and 02:00:00:00:00:02
// (destination); IP addresses 198.51.100.1 and 2001:db8::1 (source), 192.0.2.1 and 2001:db8::2 (destination); a field
// with a constraint (is) the first value that it allows; bytes whose length another field gives get that many zeros,
// or, if the bytes are given and that field is not, the field gets what makes them fit, if anything does. Everything
// else is 0. What is given explicitly is written as it is, right or wrong.
//
// # How values are written
//
// Integers as integers; addresses, prefixes and link-layer addresses as text; other bytes as hexadecimal digits, two a
// byte. A varint takes its shortest form, and so does an integer of variable size if the field that gives its size
// isn't given; given as hexadecimal digits they are written as they are. A name for a group of fields sets them all:
// the endpoint udp.src sets the address in the enclosing IP header and the port.
package packet
