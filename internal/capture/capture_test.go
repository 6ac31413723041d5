package capture_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/capture"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// read reads all packets of a capture, as they come to a program, and the error that ended it.
func read(t *testing.T, from io.Reader, withLink bool) (out []sim.Packet, err error) {
	t.Helper()
	r, err := capture.NewReader(from)
	if err != nil {
		return nil, err
	}
	for {
		p, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		if p.Number != len(out)+1 {
			t.Errorf("packet %d has the number %d", len(out)+1, p.Number)
		}
		in, err := p.For(withLink)
		if err != nil {
			return out, err
		}
		in.Data = bytes.Clone(in.Data)
		out = append(out, in)
	}
}

// What tcpdump and dumpcap captured at once, on a device and on all devices, comes to a program as the same packets.
func TestTools(t *testing.T) {
	var first []sim.Packet
	for _, file := range []string{"tcpdump.pcap", "dumpcap.pcapng", "any.pcap", "sll.pcap"} {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		all, err := read(t, bytes.NewReader(text), true)
		if err != nil || len(all) != 4 {
			t.Fatalf("%s: %d packets, %v", file, len(all), err)
		}
		if first == nil {
			first = all
		}
		bare, err := read(t, bytes.NewReader(text), false)
		if err != nil || len(bare) != 4 {
			t.Fatalf("%s: %d packets, %v", file, len(bare), err)
		}
		for i, p := range all {
			if !bytes.Equal(p.Data, first[i].Data) || p.Link != ir.ToHost {
				t.Errorf("%s, packet %d: %x, want %x", file, i+1, p.Data, first[i].Data)
			}
			if b := bare[i]; !bytes.Equal(b.Data, p.Data[14:]) || b.Proto != 0x0800 {
				t.Errorf("%s, packet %d without Ethernet: %x of type %04x", file, i+1, b.Data, b.Proto)
			}
		}
	}
}

// header is the header of a pcap file.
func header(order binary.AppendByteOrder, magic uint32, link layers.LinkType) []byte {
	b := order.AppendUint32(nil, magic)
	b = order.AppendUint16(order.AppendUint16(b, 2), 4)
	b = append(b, make([]byte, 8)...)
	return order.AppendUint32(order.AppendUint32(b, 65535), uint32(link))
}

func record(order binary.AppendByteOrder, data []byte, length int) []byte {
	b := append(make([]byte, 0, 16+len(data)), 0, 0, 0, 1, 0, 0, 0, 1)
	b = order.AppendUint32(b, uint32(len(data)))
	return append(order.AppendUint32(b, uint32(length)), data...)
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFormats(t *testing.T) {
	frame := unhex(t, "020000000002 020000000001 0800 4500")
	tagged := unhex(t, "020000000002 020000000001 8100 0005 0800 4500")
	little, big := binary.AppendByteOrder(binary.LittleEndian), binary.AppendByteOrder(binary.BigEndian)
	zip := func(b []byte) []byte {
		var z bytes.Buffer
		w := gzip.NewWriter(&z)
		_, err := w.Write(b)
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		return z.Bytes()
	}
	micro := append(header(little, 0xa1b2c3d4, 1), record(little, frame, len(frame))...)
	for _, c := range []struct {
		name string
		file []byte
		want string // the first packet, or a piece of the error
	}{
		{"microseconds, little endian", micro, hex.EncodeToString(frame)},
		{"microseconds, big endian", append(header(big, 0xa1b2c3d4, 1), record(big, frame, 16)...),
			hex.EncodeToString(frame)},
		{"nanoseconds, little endian", append(header(little, 0xa1b23c4d, 1), record(little, frame, 16)...),
			hex.EncodeToString(frame)},
		{"nanoseconds, big endian", append(header(big, 0xa1b23c4d, 1), record(big, frame, 16)...),
			hex.EncodeToString(frame)},
		{"gzip", zip(micro), hex.EncodeToString(frame)},
		{"gzip in gzip", zip(zip(micro)), "this is not a capture"},
		{"gzip, cut off", zip(micro)[:12], "the gzip file is damaged"},
		{"a tag", append(header(little, 0xa1b2c3d4, 1), record(little, tagged, 20)...), hex.EncodeToString(frame)},
		{"raw IP", append(header(little, 0xa1b2c3d4, 101), record(little, unhex(t, "4500"), 2)...),
			hex.EncodeToString(frame)},
		{"raw IPv6", append(header(little, 0xa1b2c3d4, 229), record(little, unhex(t, "6000"), 2)...),
			"02000000000202000000000186dd6000"},
		{"cooked, a sender", append(header(little, 0xa1b2c3d4, 113),
			record(little, unhex(t, "0001 0001 0006 02aabbccddee 0000 0800 4500"), 18)...),
			"ffffffffffff02aabbccddee08004500"},
		{"cooked 2, a multicast", append(header(little, 0xa1b2c3d4, 276),
			record(little, unhex(t, "86dd 0000 00000002 0001 02 06 02aabbccddee 0000 6000"), 22)...),
			"01005e00000102aabbccddee86dd6000"},
		{"cooked, cut off", append(header(little, 0xa1b2c3d4, 113), record(little, frame[:8], 8)...),
			"8 bytes are less than the header of a cooked capture"},
		{"Ethernet, cut off", append(header(little, 0xa1b2c3d4, 1), record(little, frame[:8], 8)...),
			"8 bytes are less than an Ethernet header"},
		{"Bluetooth", append(header(little, 0xa1b2c3d4, 187), record(little, frame, 16)...),
			"a link layer that isn't read"},
		{"nothing", nil, "there are only 0 bytes"},
		{"three bytes", frame[:3], "there are only 3 bytes"},
		{"text", []byte("name: \"turn\"\n"), "this begins with 6e616d65"},
		{"a header, cut off", micro[:20], "its header is damaged"},
		{"a packet, cut off", micro[:len(micro)-1], "damaged or cut off after packet 0"},
		{"a length of 4 GB", append(header(little, 0xa1b2c3d4, 1), 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255,
			255, 255), "before its first packet"},
		{"pcapng, cut off", unhex(t, "0a0d0d0a 1c000000 4d3c2b1a"), "its header is damaged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			all, err := read(t, bytes.NewReader(c.file), true)
			if err != nil {
				want := strings.ReplaceAll(c.want, "damaged or cut off after packet 0", "ends before its first packet")
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got the error %v, want %q", err, want)
				}
				return
			}
			if len(all) == 0 || hex.EncodeToString(all[0].Data) != c.want {
				t.Errorf("got %+v, want %s", all, c.want)
			}
			tag := all[0].VLAN
			if is := tag != nil && *tag == (sim.Tag{Proto: 0x8100, TCI: 5}); is != (c.name == "a tag") {
				t.Errorf("got the tag %v", tag)
			}
		})
	}
}

// A pcapng file has several interfaces, each with a link layer of its own.
func TestInterfaces(t *testing.T) {
	var b bytes.Buffer
	w, err := pcapgo.NewNgWriterInterface(&b, pcapgo.NgInterface{Name: "eth0", LinkType: layers.LinkTypeEthernet},
		pcapgo.DefaultNgWriterOptions)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.AddInterface(pcapgo.NgInterface{Name: "wg0", LinkType: layers.LinkTypeRaw}); err != nil {
		t.Fatal(err)
	}
	for i, data := range [][]byte{unhex(t, "020000000002 020000000001 0800 4500"), unhex(t, "4500")} {
		ci := gopacket.CaptureInfo{Timestamp: time.Unix(1, 0), CaptureLength: len(data), Length: len(data),
			InterfaceIndex: i}
		if err := w.WritePacket(ci, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	all, err := read(t, bytes.NewReader(b.Bytes()), true)
	if err != nil || len(all) != 2 || !bytes.Equal(all[0].Data, all[1].Data) {
		t.Errorf("%+v, %v", all, err)
	}
}

// What is written can be read again, with the tag in its place.
func TestWriter(t *testing.T) {
	var b bytes.Buffer
	w, err := capture.NewWriter(&b, true, "sent", "stack")
	if err != nil {
		t.Fatal(err)
	}
	p := sim.Packet{Data: unhex(t, "020000000002 020000000001 0800 4500"), VLAN: &sim.Tag{Proto: 0x88a8, TCI: 7}}
	if err := errors.Join(w.Write("stack", time.Unix(5, 0), p, "a comment"), w.Flush()); err != nil {
		t.Fatal(err)
	}
	all, err := read(t, &b, true)
	if err != nil || len(all) != 1 || !bytes.Equal(all[0].Data, p.Data) || *all[0].VLAN != *p.VLAN {
		t.Errorf("%+v, %v", all, err)
	}
}

// endless is a capture of a size that no memory has to hold.
type endless struct {
	record []byte
	at     int
	left   int64
}

func (e *endless) Read(b []byte) (int, error) {
	if e.left <= 0 {
		return 0, io.EOF
	}
	n := copy(b, e.record[e.at:])
	e.at = (e.at + n) % len(e.record)
	e.left -= int64(n)
	return n, nil
}

// A capture of 1 GB is read packet by packet.
func TestLarge(t *testing.T) {
	order := binary.AppendByteOrder(binary.LittleEndian)
	one := record(order, make([]byte, 1514), 1514)
	const packets = 1 << 30 / 1530
	file := io.MultiReader(bytes.NewReader(header(order, 0xa1b2c3d4, 1)),
		&endless{record: one, left: int64(packets * len(one))})
	r, err := capture.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	n := 0
	for ; ; n++ {
		if _, err := r.Next(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if used := after.HeapSys - min(before.HeapSys, after.HeapSys); n != packets || used > 64<<20 {
		t.Errorf("%d packets of %d; the heap has grown by %d bytes", n, packets, used)
	}
}

// Whatever is in a file, reading it ends, with an error or without.
func FuzzReader(f *testing.F) {
	for _, file := range []string{"tcpdump.pcap", "dumpcap.pcapng", "any.pcap"} {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		r, err := capture.NewReader(bytes.NewReader(file))
		if err != nil {
			return
		}
		for {
			p, err := r.Next()
			if err != nil {
				return
			}
			for _, withLink := range []bool{false, true} {
				if in, err := p.For(withLink); err == nil && withLink && len(in.Data) < 14 {
					t.Errorf("a frame of %d bytes", len(in.Data))
				}
			}
		}
	})
}
