package server

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
)

// TestDatagrams sends datagrams to two subscribers with the kernel's help, to a stock one, and to one that takes none.
func TestDatagrams(t *testing.T) {
	b := newBed(t, options{in: delayed(), out: delayed()})
	none := wide()
	none.EnableDatagrams = false
	viewers := []*viewer{
		b.subscribe(true, wide()), b.subscribe(true, wide()), b.subscribe(false, wide()), b.subscribe(true, none),
	}
	const n = 500
	var got [3][n]atomic.Int64
	for i := range got {
		go func() {
			for {
				d, err := viewers[i].ReceiveDatagram(b.ctx)
				if err != nil {
					return
				}
				got[i][binary.BigEndian.Uint32(d)].Add(1)
			}
		}()
	}
	p := b.publish(true, wide())
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for i := range n {
		b.check(p.SendDatagram(binary.BigEndian.AppendUint32(nil, uint32(i))))
		<-ticker.C
	}
	for i := range got {
		whole := func() bool {
			for k := range n {
				if got[i][k].Load() != 1 {
					return false
				}
			}
			return true
		}
		if err := testnet.Until(2*time.Second, "each datagram once", whole); err != nil {
			t.Errorf("subscriber %d: %v", i, err)
		}
	}
	st := b.server.Stats()[0].Subscribers
	for i, u := range st {
		t.Logf("subscriber %d: %d by the kernel, %d by user space, %d dropped",
			i, u.KernelDatagrams, u.UserDatagrams, u.DroppedDatagrams)
		if u.KernelDatagrams+u.UserDatagrams+u.DroppedDatagrams != n || i < 2 && u.KernelDatagrams < n*3/4 ||
			i == 3 && u.DroppedDatagrams != n {
			t.Errorf("subscriber %d: %+v", i, u)
		}
		if err := viewers[i].Context().Err(); err != nil {
			t.Errorf("subscriber %d: %v", i, err)
		}
	}
}
