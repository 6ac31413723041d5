// Package server is a TURN server (RFC 8656) whose channel data is forwarded in the kernel. The protocol is
// pion/turn's, as it comes: this package listens to its events and opens a session of the generated relay for each
// channel, and closes it when pion drops the channel. Everything else (allocations, permissions, Send and Data
// indications, channel data that the kernel declines) goes through pion in user space.
//
// If the kernel can't be had (no rights, an old kernel, NoOffload), the server says so once and works in user space
// alone. A channel whose session can't be opened stays in user space as well.
package server
