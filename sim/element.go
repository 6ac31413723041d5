package sim

import "github.com/fastrelay/fastrelay-gen/gen/ir"

// findElement searches a list of elements (see ir.FindElement) and reports whether it has the one that is wanted.
func (r *run) findElement(s *ir.FindElement) bool {
	size := r.uint(s.Size)
	if size > uint64(s.SizeMax) {
		r.fail("a list of %d bytes, over its bound of %d", size, s.SizeMax)
		return false
	}
	list := r.bytesAt(s.At, int(size), "elements")
	id := r.uint(s.ID)
	var content []byte
	found := false
	for i := range s.Forms {
		if f := &s.Forms[i]; f.When == nil || r.bool(f.When) {
			content, found = search(list, f, id)
			break
		}
	}
	if r.err != nil {
		return false
	}
	var first [8]byte
	copy(first[:], content)
	r.assign(s.Found, value{u: truth(found)})
	r.assign(s.Len, value{u: uint64(len(content))})
	r.assign(s.Value, value{u: bigEndian(first[:])})
	return found
}

// search returns the content of the first element of a list with an identifier.
func search(list []byte, f *ir.ElementForm, id uint64) (content []byte, found bool) {
	for range ir.MaxElements {
		if len(list) == 0 {
			return nil, false
		}
		this := int(list[0] >> (8 - f.IDBits))
		switch this {
		case f.Pad:
			list = list[1:]
			continue
		case f.Stop:
			return nil, false
		}
		header := (f.IDBits + f.LenBits) / 8
		if len(list) < header {
			return nil, false
		}
		n := int(list[header-1])&(1<<f.LenBits-1) + f.Bias
		if len(list) < header+n {
			return nil, false
		}
		if uint64(this) == id {
			return list[header : header+n], true
		}
		list = list[header+n:]
	}
	return nil, false
}
