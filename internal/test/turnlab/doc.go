// Package turnlab has a TURN client that sends only the requests (RFC 8656) that a test asks for, and the frames that
// tests inject.
package turnlab
