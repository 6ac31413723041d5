// Package lab has publishers and subscribers for the tests and the bench of the SFU beside it.
package lab

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/ice/v4"
	"github.com/pion/interceptor"
	"github.com/pion/rtp"
	"github.com/pion/webrtc/v4"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Site is where a peer is, and where its server's API is.
type Site struct {
	Host *testnet.Host
	Addr netip.Addr
	API  string // address:port
	// KeepAlive is how often a peer sends when it has nothing to send; 0: never.
	KeepAlive time.Duration
}

// peer is a publisher or a subscriber.
type peer struct {
	*webrtc.PeerConnection
	mux       ice.UDPMux
	connected chan struct{}
	// Packets that the socket has received.
	rtp, others atomic.Uint64
	lose        atomic.Bool // the next one of RTP is lost
}

// newPeer makes a peer with a socket of its own on its host.
func newPeer(s Site) (*peer, error) {
	p := &peer{connected: make(chan struct{})}
	var socket *net.UDPConn
	if err := s.Host.Do(func() (err error) {
		socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.Addr, 0)))
		return err
	}); err != nil {
		return nil, err
	}
	p.mux = webrtc.NewICEUDPMux(nil, &counting{socket, p})
	media := &webrtc.MediaEngine{}
	if err := media.RegisterDefaultCodecs(); err != nil {
		return nil, errors.Join(err, p.mux.Close())
	}
	var settings webrtc.SettingEngine
	settings.SetICEUDPMux(p.mux)
	settings.SetICEMulticastDNSMode(ice.MulticastDNSModeDisabled)
	settings.SetICETimeouts(0, 0, s.KeepAlive)
	settings.SetNetworkTypes([]webrtc.NetworkType{webrtc.NetworkTypeUDP4, webrtc.NetworkTypeUDP6})
	// Without interceptors (nil would mean pion's own) nothing is asked for again: what gets lost is missing.
	api := webrtc.NewAPI(webrtc.WithMediaEngine(media), webrtc.WithSettingEngine(settings),
		webrtc.WithInterceptorRegistry(&interceptor.Registry{}))
	var err error
	if p.PeerConnection, err = api.NewPeerConnection(webrtc.Configuration{}); err != nil {
		return nil, errors.Join(err, p.mux.Close())
	}
	var once sync.Once
	p.OnConnectionStateChange(func(now webrtc.PeerConnectionState) {
		if now == webrtc.PeerConnectionStateConnected {
			once.Do(func() { close(p.connected) })
		}
	})
	return p, nil
}

// Close ends the connection.
func (p *peer) Close() error { return errors.Join(p.PeerConnection.Close(), p.mux.Close()) }

// RTP returns how many packets of RTP have come, those included that can't be decrypted.
func (p *peer) RTP() uint64 { return p.rtp.Load() }

// Others returns how many other packets have come.
func (p *peer) Others() uint64 { return p.others.Load() }

// LoseNext has the next packet of RTP get lost.
func (p *peer) LoseNext() { p.lose.Store(true) }

// connect has the server answer an offer, and waits for the connection.
func (p *peer) connect(s Site, path string) error {
	offer, err := p.CreateOffer(nil)
	if err != nil {
		return err
	}
	gathered := webrtc.GatheringCompletePromise(p.PeerConnection)
	if err := p.SetLocalDescription(offer); err != nil {
		return err
	}
	<-gathered
	answer, err := post(s, path, p.LocalDescription().SDP)
	if err != nil {
		return err
	}
	if err := p.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeAnswer, SDP: answer}); err != nil {
		return err
	}
	const patience = time.Minute
	select {
	case <-p.connected:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s: not connected within %v; ICE is %s, DTLS %s", path, patience, p.ICEConnectionState(),
			p.SCTP().Transport().State())
	}
}

// post sends an offer to the server's API, and returns the answer.
func post(s Site, path, offer string) (string, error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, network, to string) (c net.Conn, err error) {
		err = s.Host.Do(func() error {
			c, err = (&net.Dialer{}).DialContext(ctx, network, to)
			return err
		})
		return c, err
	}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	res, err := client.Post("http://"+s.API+path, "application/sdp", bytes.NewReader([]byte(offer)))
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusCreated {
		err = fmt.Errorf("%s: %s: %s", path, res.Status, bytes.TrimSpace(body))
	}
	return string(body), err
}

// counting is a socket that counts what it receives.
type counting struct {
	*net.UDPConn
	peer *peer
}

func (c *counting) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	const version, control = 2 << 6, 192 // of RTP; the types of RTCP begin there, and end at 223 (RFC 5761 §4)
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		switch media := n > 1 && b[0]&0xC0 == version && (b[1] < control || b[1] >= control+32); {
		case err != nil:
		case media && c.peer.lose.CompareAndSwap(true, false):
			continue
		case media:
			c.peer.rtp.Add(1)
		default:
			c.peer.others.Add(1)
		}
		return n, from, err
	}
}

func (c *counting) WriteToAddrPort(b []byte, to netip.AddrPort) (int, error) {
	return c.WriteToUDPAddrPort(b, to)
}

// Publisher sends one video.
type Publisher struct {
	*peer
	track *webrtc.TrackLocalStaticRTP
	next  uint16
}

// Publish connects a publisher.
func Publish(s Site, name string) (*Publisher, error) {
	p, err := newPeer(s)
	if err != nil {
		return nil, err
	}
	out := &Publisher{peer: p}
	video := webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeVP8, ClockRate: 90000}
	if out.track, err = webrtc.NewTrackLocalStaticRTP(video, "video", "lab"); err == nil {
		_, err = p.AddTrack(out.track)
	}
	if err == nil {
		err = p.connect(s, "/publish/"+name)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return out, nil
}

// Send sends a packet whose payload is made by Payload.
func (p *Publisher) Send(n uint64, size int) error {
	p.next++
	return p.track.WriteRTP(&rtp.Packet{
		Header:  rtp.Header{Version: 2, SequenceNumber: p.next, Timestamp: uint32(p.next) * 3000},
		Payload: Payload(n, size),
	})
}

// Payload is the n-th payload, of a size in bytes: no other one has any 8 bytes in common with it.
func Payload(n uint64, size int) []byte {
	b := make([]byte, (size+7)/8*8)
	for at := 0; at < len(b); at += 8 {
		binary.BigEndian.PutUint64(b[at:], n<<16|uint64(at/8))
	}
	return b[:size]
}

// Number returns which payload it is.
func Number(payload []byte) (uint64, error) {
	if len(payload) < 8 {
		return 0, fmt.Errorf("a payload of %d bytes", len(payload))
	}
	n := binary.BigEndian.Uint64(payload) >> 16
	if !bytes.Equal(payload, Payload(n, len(payload))) {
		return 0, fmt.Errorf("another payload than number %d: %x", n, payload)
	}
	return n, nil
}

// Subscriber receives one video.
type Subscriber struct{ *peer }

// Subscribe connects a subscriber. It calls got for each packet, decrypted, which is valid until got returns.
func Subscribe(s Site, name string, got func(*rtp.Packet)) (*Subscriber, error) {
	p, err := newPeer(s)
	if err != nil {
		return nil, err
	}
	p.OnTrack(func(t *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		const mtu = 1500
		buf := make([]byte, mtu)
		var packet rtp.Packet
		for {
			n, _, err := t.Read(buf)
			if err != nil {
				return
			}
			if packet.Unmarshal(buf[:n]) == nil {
				got(&packet)
			}
		}
	})
	_, err = p.AddTransceiverFromKind(webrtc.RTPCodecTypeVideo,
		webrtc.RTPTransceiverInit{Direction: webrtc.RTPTransceiverDirectionRecvonly})
	if err == nil {
		err = p.connect(s, "/subscribe/"+name)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return &Subscriber{p}, nil
}
