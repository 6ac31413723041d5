package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/pion/logging"
	"github.com/pion/turn/v5"
)

// Config says what a server does. Listen and Users are required.
type Config struct {
	// Listen are the UDP addresses that clients send to. The address may be unspecified (0.0.0.0, [::]): clients
	// are answered from the address that they used.
	Listen []netip.AddrPort
	// Relay are the addresses that peers see, at most one of each family. Without any, an address of the host that
	// faces the internet is taken for each family that is listened to.
	Relay []RelayAddr
	// Realm is the realm of the long-term credentials (RFC 8489 §9.2).
	Realm string
	// Users are the passwords by user name.
	Users map[string]string
	// NoOffload keeps everything in user space.
	NoOffload bool
	// Interfaces are the devices that channel data and peers' datagrams come in through. Without any: all Ethernet
	// devices that are up.
	Interfaces []string
	// First attaches the relay before the programs that interfaces have, such as Cilium's.
	First bool
	// Hook is whether packets come to the relay at XDP first: by default at tc/ingress alone.
	Hook runtime.Hook
	// Control says how the relay is watched and operated.
	Control control.Flags
	// ChannelLifetime and AllocationLifetime end what clients don't refresh. 0: 10 minutes, as the RFC has it.
	ChannelLifetime, AllocationLifetime time.Duration
	// Logger logs what happens. nil: slog.Default.
	Logger *slog.Logger
}

// RelayAddr is an address of this host for allocations. Behind a NAT that maps one to one, Public is its address
// outside.
type RelayAddr struct{ Local, Public netip.Addr }

func (a RelayAddr) public() netip.Addr {
	if a.Public.IsValid() {
		return a.Public
	}
	return a.Local
}

// Server is a running TURN server.
type Server struct {
	log      *slog.Logger
	relay    []RelayAddr
	turn     *turn.Server
	sockets  []*socket
	channels *channels
	offload  *offload
	user     traffic
}

// Start starts a server. It returns once it listens; if the kernel can't be used it logs why and goes on without.
func Start(config Config) (_ *Server, err error) {
	s := &Server{log: config.Logger, relay: slices.Clone(config.Relay)}
	if s.log == nil {
		s.log = slog.Default()
	}
	if len(config.Listen) == 0 {
		return nil, errors.New("turn server: no address to listen on")
	}
	if len(s.relay) == 0 {
		if s.relay, err = outwardAddresses(config.Listen); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			_ = s.closeSockets()
			if s.offload != nil {
				_ = s.offload.close()
			}
		}
	}()
	for _, addr := range config.Listen {
		sock, err := s.listen(addr)
		if err != nil {
			return nil, fmt.Errorf("turn server: %w", err)
		}
		s.sockets = append(s.sockets, sock)
	}
	s.offload = startOffload(config, s.log)
	s.channels = newChannels(s.log, s.offload.open, s.wire)

	keys := map[string][]byte{}
	for user, password := range config.Users {
		keys[user] = turn.GenerateAuthKey(user, config.Realm, password)
	}
	pion := turn.ServerConfig{
		Realm: config.Realm,
		AuthHandler: func(request *turn.RequestAttributes) (string, []byte, bool) {
			key, known := keys[request.Username]
			return request.Username, key, known
		},
		EventHandler:       s.events(),
		ChannelBindTimeout: config.ChannelLifetime,
		AllocationLifetime: config.AllocationLifetime,
		LoggerFactory:      pionLog{s.log},
	}
	for _, sock := range s.sockets {
		pion.PacketConnConfigs = append(pion.PacketConnConfigs, turn.PacketConnConfig{
			PacketConn:            sock,
			RelayAddressGenerator: generator{s},
			PermissionHandler:     allowPeer,
		})
	}
	if s.turn, err = turn.NewServer(pion); err != nil {
		return nil, fmt.Errorf("turn server: %w", err)
	}
	return s, nil
}

// Close ends the server: nothing is forwarded any more when it returns.
func (s *Server) Close() error {
	err := s.offload.close()
	return errors.Join(err, s.turn.Close())
}

func (s *Server) closeSockets() error {
	var errs []error
	for _, sock := range s.sockets {
		errs = append(errs, sock.Close())
	}
	return errors.Join(errs...)
}

// Addrs returns the addresses that the server listens on, in the order of Config.Listen.
func (s *Server) Addrs() []netip.AddrPort {
	var list []netip.AddrPort
	for _, sock := range s.sockets {
		list = append(list, sock.addr)
	}
	return list
}

// allowPeer keeps clients from reaching what only this host should reach (RFC 8656 §21.4): itself by its loopback
// addresses, and what is not one host's address on a network.
func allowPeer(_ net.Addr, ip net.IP) bool {
	peer, ok := netip.AddrFromSlice(ip)
	peer = peer.Unmap()
	return ok && !peer.IsUnspecified() && !peer.IsLoopback() && !peer.IsMulticast() && !peer.IsLinkLocalUnicast() &&
		peer != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// events connects pion's events to the channels. pion calls them on the goroutine that reads the listener, before it
// reads the next packet, or on a timer's.
func (s *Server) events() turn.EventHandler {
	return turn.EventHandler{
		OnAllocationCreated: func(client, listener net.Addr, _, user, _ string, relayed net.Addr, _ int) {
			sock, err := s.socketOf(listener)
			if err != nil { // its channels stay in user space
				s.log.Error("allocation not followed", "client", client, "relayed", relayed, "error", err)
				return
			}
			s.channels.allocationCreated(addrPort(client), sock.pin(addrPort(client)), addrPort(listener),
				addrPort(relayed))
			s.log.Debug("allocation created", "client", client, "relayed", relayed, "user", user)
		},
		OnAllocationDeleted: func(client, listener net.Addr, _, user, _ string) {
			last := s.channels.allocationDeleted(addrPort(client), addrPort(listener))
			if sock, err := s.socketOf(listener); err == nil && last {
				sock.unpin(addrPort(client))
			}
			s.log.Debug("allocation deleted", "client", client, "user", user)
		},
		OnChannelCreated: func(client, listener net.Addr, _, _, _ string, relayed, peer net.Addr, number uint16) {
			s.channels.channelCreated(addrPort(client), addrPort(listener), addrPort(relayed), addrPort(peer), number)
		},
		OnChannelDeleted: func(client, listener net.Addr, _, _, _ string, relayed, _ net.Addr, number uint16) {
			s.channels.channelDeleted(addrPort(client), addrPort(listener), addrPort(relayed), number)
		},
	}
}

func (s *Server) socketOf(listener net.Addr) (*socket, error) {
	addr := addrPort(listener)
	for _, sock := range s.sockets {
		if sock.addr == addr {
			return sock, nil
		}
	}
	return nil, fmt.Errorf("turn server: an event for %v, which is not one of its sockets", listener)
}

// wire gives a relayed transport address as clients know it the form that it has on the wire here.
func (s *Server) wire(relayed netip.AddrPort) netip.AddrPort {
	for _, a := range s.relay {
		if a.public() == relayed.Addr() {
			return netip.AddrPortFrom(a.Local, relayed.Port())
		}
	}
	return relayed
}

func addrPort(a net.Addr) netip.AddrPort {
	udp, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := udp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// pionLog hands pion's log to slog.
type pionLog struct{ *slog.Logger }

func (l pionLog) NewLogger(scope string) logging.LeveledLogger {
	return pionLogger{l.With("scope", scope)}
}

type pionLogger struct{ *slog.Logger }

func (l pionLogger) Trace(string)          {}
func (l pionLogger) Tracef(string, ...any) {}
func (l pionLogger) Debug(string)          {}
func (l pionLogger) Debugf(string, ...any) {}

func (l pionLogger) Info(m string)             { l.Logger.Debug(m) }
func (l pionLogger) Infof(f string, a ...any)  { l.Logger.Debug(fmt.Sprintf(f, a...)) }
func (l pionLogger) Warn(m string)             { l.Logger.Warn(m) }
func (l pionLogger) Warnf(f string, a ...any)  { l.Logger.Warn(fmt.Sprintf(f, a...)) }
func (l pionLogger) Error(m string)            { l.Logger.Error(m) }
func (l pionLogger) Errorf(f string, a ...any) { l.Logger.Error(fmt.Sprintf(f, a...)) }
