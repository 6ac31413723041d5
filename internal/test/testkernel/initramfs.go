package testkernel

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
)

// Image is an initial file system by path ("init", "modules/00-veth.ko"), without a leading slash. Folders are made as
// needed.
type Image map[string]File

// File is a file of an image.
type File struct {
	Data []byte
	Mode fs.FileMode // permissions
}

// Types of a file in the mode of a cpio entry (inode(7)).
const (
	cpioDir     = 0o040000
	cpioRegular = 0o100000
)

// WriteTo writes the image as an uncompressed cpio archive in the "newc" format
// (Documentation/driver-api/early-userspace/buffer-format.rst), which every kernel unpacks, and an emulated processor
// soonest.
func (image Image) WriteTo(w io.Writer) (int64, error) {
	c := &cpio{w: w}
	made := map[string]bool{".": true}
	for _, name := range slices.Sorted(maps.Keys(image)) {
		c.folders(path.Dir(name), made)
		c.entry(name, cpioRegular|uint32(image[name].Mode.Perm()), image[name].Data)
	}
	c.entry("TRAILER!!!", 0, nil)
	return c.n, c.err
}

type cpio struct {
	w     io.Writer
	n     int64
	inode int
	err   error
}

func (c *cpio) folders(dir string, made map[string]bool) {
	if made[dir] {
		return
	}
	c.folders(path.Dir(dir), made)
	made[dir] = true
	c.entry(dir, cpioDir|0o755, nil)
}

// entry writes a header of 13 hexadecimal numbers, the name with a zero byte, and the data, each padded to 4 bytes.
func (c *cpio) entry(name string, mode uint32, data []byte) {
	c.inode++
	c.write(fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name))
	c.write(data)
}

func (c *cpio) write(b []byte) {
	for _, part := range [][]byte{b, make([]byte, -len(b)&3)} {
		if c.err == nil {
			n, err := c.w.Write(part)
			c.n += int64(n)
			c.err = err
		}
	}
}
