package quic
