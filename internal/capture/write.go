package capture

import (
	"encoding/binary"
	"io"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/fastrelay/fastrelay-gen/sim"
)

// Writer writes a pcapng file with an interface for each way in which packets go on.
type Writer struct {
	w     *pcapgo.NgWriter
	names map[string]int
	link  layers.LinkType
}

// NewWriter begins a file. Its interfaces have these names; packets begin with Ethernet or with IP.
func NewWriter(to io.Writer, withLink bool, names ...string) (*Writer, error) {
	w := &Writer{names: map[string]int{}, link: layers.LinkTypeRaw}
	if withLink {
		w.link = layers.LinkTypeEthernet
	}
	for i, name := range names {
		intf := pcapgo.NgInterface{Name: name, LinkType: w.link, TimestampResolution: 9}
		var err error
		if i == 0 {
			w.w, err = pcapgo.NewNgWriterInterface(to, intf, pcapgo.NgWriterOptions{
				SectionInfo: pcapgo.NgSectionInfo{Application: "fastrelay-gen"},
			})
		} else {
			_, err = w.w.AddInterface(intf)
		}
		if err != nil {
			return nil, err
		}
		w.names[name] = i
	}
	return w, nil
}

// Write writes a packet, with a comment that Wireshark shows. A tag in the metadata goes back into the frame.
func (w *Writer) Write(name string, at time.Time, p sim.Packet, comment string) error {
	data := p.Data
	if p.VLAN != nil && w.link == layers.LinkTypeEthernet && len(data) >= 12 {
		tag := binary.BigEndian.AppendUint16(nil, p.VLAN.Proto)
		tag = binary.BigEndian.AppendUint16(tag, p.VLAN.TCI)
		data = append(append(append([]byte{}, data[:12]...), tag...), data[12:]...)
	}
	ci := gopacket.CaptureInfo{
		Timestamp: at, CaptureLength: len(data), Length: len(data), InterfaceIndex: w.names[name],
	}
	return w.w.WritePacketWithOptions(ci, data, pcapgo.NgPacketOptions{Comments: []string{comment}})
}

// Flush writes what is buffered.
func (w *Writer) Flush() error { return w.w.Flush() }
