// Package sfu is a selective forwarding unit for WebRTC on pion: a publisher sends its tracks once, and each subscriber
// gets them, encrypted for it. All peers use one UDP socket, and the copies of a packet leave together (package
// runtime/segments).
package sfu
