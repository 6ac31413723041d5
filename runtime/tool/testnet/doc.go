// Package testnet makes small networks to test and measure relays in: hosts are network namespaces, cables are veth
// pairs.
//
//	net, err := testnet.New()
//	defer net.Close()
//	line, err := net.Line() // client — relay — peer
//	err = line.Client.Do(func() error { conn, err = stdnet.ListenUDP(…); return err })
//
// A socket stays in the namespace of the thread that made it, so it is enough to make sockets inside Host.Do and
// use them anywhere. Whole programs run in a namespace with Host.Command.
//
// Namespaces are named after the process that made them. New removes those whose process has ended, so what a
// killed test leaves is removed by the next one. All of this needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN).
package testnet
