package sfu

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/pion/ice/v4"
	"github.com/pion/interceptor"
	"github.com/pion/interceptor/pkg/nack"
	"github.com/pion/webrtc/v4"

	"github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/fastrelay/fastrelay-gen/runtime/segments"
)

// Sends says how a server sends.
type Sends string

const (
	Plain    Sends = "plain"    // one system call a packet
	Sendmmsg Sends = "sendmmsg" // one for all copies of a packet, each a datagram of its own in the kernel
	Segments Sends = "segments" // one datagram for all copies of a packet
)

// AllSends are all that there are.
var AllSends = []Sends{Plain, Sendmmsg, Segments}

func (s Sends) check() error {
	if !slices.Contains(AllSends, s) {
		return fmt.Errorf("there is no %q; want one of %v", s, AllSends)
	}
	return nil
}

// Config says what a server does.
type Config struct {
	Address netip.AddrPort // of this host
	Sends   Sends
	Watch   control.Flags // the control socket and the metrics of the relay that sends segments
	Logger  *slog.Logger
}

// Server is an SFU. Its methods may be called from any goroutine.
type Server struct {
	log   *slog.Logger
	sends Sends
	mux   ice.UDPMux
	conn  *segments.Conn // nil: Plain
	// Publishers are asked for what is missing. Subscribers have no interceptor: each costs time for each copy.
	publishers, subscribers *webrtc.API

	mu      sync.Mutex
	closed  bool
	peers   map[*peer]bool
	streams map[string]*stream // by name
}

// Start starts a server in the network namespace of the calling thread.
func Start(c Config) (*Server, error) {
	if err := c.Sends.check(); err != nil {
		return nil, err
	}
	if a := c.Address; a.Addr().IsUnspecified() || a.Addr().Zone() != "" {
		return nil, fmt.Errorf("%s: peers are told this address: it has to be one of this host's", a)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	s := &Server{log: c.Logger, sends: c.Sends, peers: map[*peer]bool{}, streams: map[string]*stream{}}
	network := map[bool]string{true: "udp4", false: "udp6"}[c.Address.Addr().Is4()]
	socket, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(c.Address))
	if err != nil {
		return nil, err
	}
	var conn net.PacketConn = socket
	if c.Sends != Plain {
		s.conn, err = segments.NewConn(segments.Config{
			Conn: socket, OneByOne: c.Sends == Sendmmsg, Control: c.Watch.Control(), Logger: c.Logger,
		})
		if err != nil {
			return nil, errors.Join(err, socket.Close())
		}
		conn = s.conn
	}
	s.mux = webrtc.NewICEUDPMux(nil, conn)
	asks, err := nack.NewGeneratorInterceptor()
	var asking interceptor.Registry
	if err == nil {
		asking.Add(asks)
		s.publishers, err = newAPI(s.mux, c.Address.Addr(), &asking)
	}
	if err == nil {
		s.subscribers, err = newAPI(s.mux, c.Address.Addr(), &interceptor.Registry{})
	}
	if err != nil {
		return nil, errors.Join(err, s.mux.Close())
	}
	return s, nil
}

// newAPI says what peer connections have: one codec a kind, and these interceptors.
func newAPI(mux ice.UDPMux, at netip.Addr, interceptors *interceptor.Registry) (*webrtc.API, error) {
	media := &webrtc.MediaEngine{}
	for kind, codec := range codecs {
		if err := media.RegisterCodec(codec, kind); err != nil {
			return nil, err
		}
	}
	var settings webrtc.SettingEngine
	settings.SetLite(true) // the server has an address that peers reach
	settings.SetICEUDPMux(mux)
	settings.SetICEMulticastDNSMode(ice.MulticastDNSModeDisabled)
	settings.SetIncludeLoopbackCandidate(at.IsLoopback())
	settings.SetNetworkTypes([]webrtc.NetworkType{webrtc.NetworkTypeUDP4, webrtc.NetworkTypeUDP6})
	return webrtc.NewAPI(webrtc.WithMediaEngine(media), webrtc.WithSettingEngine(settings),
		webrtc.WithInterceptorRegistry(interceptors)), nil
}

// codecs are what is forwarded, one of each kind, so that nothing has to be chosen.
var codecs = map[webrtc.RTPCodecType]webrtc.RTPCodecParameters{
	webrtc.RTPCodecTypeVideo: {
		RTPCodecCapability: webrtc.RTPCodecCapability{
			MimeType: webrtc.MimeTypeVP8, ClockRate: 90000, RTCPFeedback: []webrtc.RTCPFeedback{
				{Type: "nack"}, {Type: "nack", Parameter: "pli"}, {Type: "ccm", Parameter: "fir"},
			},
		},
		PayloadType: 96,
	},
	webrtc.RTPCodecTypeAudio: {
		RTPCodecCapability: webrtc.RTPCodecCapability{
			MimeType: webrtc.MimeTypeOpus, ClockRate: 48000, Channels: 2, SDPFmtpLine: "minptime=10;useinbandfec=1",
		},
		PayloadType: 111,
	},
}

// Stats are counters of a server.
type Stats struct {
	Sends  Sends
	Kernel bool            // packets are sent in segments
	Peers  int             // publishers and subscribers
	Sent   *segments.Stats // nil: nothing counts them
}

// Stats returns the counters.
func (s *Server) Stats() (st Stats, err error) {
	s.mu.Lock()
	st.Peers = len(s.peers)
	s.mu.Unlock()
	st.Sends = s.sends
	if s.conn == nil {
		return st, nil
	}
	st.Kernel = s.conn.Sender().Kernel() == nil
	sent, err := s.conn.Sender().Stats()
	st.Sent = &sent
	return st, err
}

// together runs f, and sends what it writes together, if the server does so.
func (s *Server) together(f func() error) error {
	if s.conn == nil {
		return f()
	}
	return s.conn.Together(f)
}

// Close ends all connections, and the server.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	peers := s.peers
	s.peers = nil
	s.mu.Unlock()
	var errs []error
	for p := range peers {
		errs = append(errs, p.Close())
	}
	if s.conn != nil {
		errs = append(errs, s.conn.Sender().Close()) // the mux, which closes the socket, drops errors
	}
	return errors.Join(append(errs, s.mux.Close())...)
}
