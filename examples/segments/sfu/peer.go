package sfu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/pion/rtcp"
	"github.com/pion/rtp"
	"github.com/pion/webrtc/v4"
)

// stream is what a publisher sends, under a name.
type stream struct {
	publisher *peer
	tracks    map[webrtc.RTPCodecType]*track
	video     atomic.Uint32 // the publisher's SSRC of it; 0: there is none yet
}

// peer is a publisher or a subscriber.
type peer struct {
	*webrtc.PeerConnection
	stream *stream
}

// Handler is the HTTP API: the body of a request is an offer, that of the answer an answer (SDP, RFC 8866), as WHIP
// (RFC 9725) has them. All candidates are in them.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, connect := range map[string]func(string, string) (string, error){
		"POST /publish/{name}": s.publish, "POST /subscribe/{name}": s.subscribe,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			const limit = 1 << 20
			offer, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
			var answer string
			if err == nil {
				answer, err = connect(r.PathValue("name"), string(offer))
			}
			var refused *refusal
			switch {
			case errors.As(err, &refused):
				http.Error(w, err.Error(), refused.status)
			case err != nil:
				http.Error(w, err.Error(), http.StatusBadRequest)
			default:
				w.Header().Set("Content-Type", "application/sdp")
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, answer) // a client that has gone needs no error
			}
		})
	}
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		st, err := s.Stats()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(st)
	})
	return mux
}

// refusal is an error that isn't the offer's.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

// publish answers the offer of a publisher.
func (s *Server) publish(name, offer string) (string, error) {
	st := &stream{tracks: map[webrtc.RTPCodecType]*track{}}
	for kind := range codecs {
		var err error
		if st.tracks[kind], err = newTrack(kind, name); err != nil {
			return "", err
		}
	}
	p, err := s.newPeer(s.publishers, st)
	if err != nil {
		return "", err
	}
	st.publisher = p
	p.OnTrack(func(from *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		if from.Kind() == webrtc.RTPCodecTypeVideo {
			st.video.Store(uint32(from.SSRC()))
		}
		s.forward(from, st.tracks[from.Kind()])
	})
	s.mu.Lock()
	taken := s.streams[name] != nil
	if !taken {
		s.streams[name] = st
	}
	s.mu.Unlock()
	if taken {
		s.drop(p)
		return "", &refusal{http.StatusConflict, fmt.Sprintf("%q has a publisher", name)}
	}
	return s.answer(p, offer)
}

// subscribe answers the offer of a subscriber.
func (s *Server) subscribe(name, offer string) (string, error) {
	s.mu.Lock()
	st := s.streams[name]
	s.mu.Unlock()
	if st == nil {
		return "", &refusal{http.StatusNotFound, fmt.Sprintf("%q has no publisher", name)}
	}
	p, err := s.newPeer(s.subscribers, st)
	if err != nil {
		return "", err
	}
	for kind, track := range st.tracks {
		if !strings.Contains(offer, "m="+kind.String()+" ") {
			continue // it doesn't want any
		}
		sender, err := p.AddTrack(track)
		if err != nil {
			s.drop(p)
			return "", err
		}
		go st.feedback(sender, track)
	}
	return s.answer(p, offer)
}

// newPeer makes a peer, which the server forgets when its connection ends.
func (s *Server) newPeer(api *webrtc.API, st *stream) (*peer, error) {
	connection, err := api.NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		return nil, err
	}
	p := &peer{connection, st}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.peers[p] = true
	}
	s.mu.Unlock()
	if closed {
		return nil, errors.Join(&refusal{http.StatusServiceUnavailable, "the server ends"}, p.Close())
	}
	p.OnConnectionStateChange(func(now webrtc.PeerConnectionState) {
		switch now {
		case webrtc.PeerConnectionStateConnected:
			if st.publisher != p {
				st.wantKeyFrame()
			}
		case webrtc.PeerConnectionStateFailed, webrtc.PeerConnectionStateClosed:
			s.drop(p)
		}
	})
	return p, nil
}

// answer answers an offer, with all candidates.
func (s *Server) answer(p *peer, offer string) (string, error) {
	gathered := webrtc.GatheringCompletePromise(p.PeerConnection)
	err := p.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeOffer, SDP: offer})
	var answer webrtc.SessionDescription
	if err == nil {
		answer, err = p.CreateAnswer(nil)
	}
	if err == nil {
		err = p.SetLocalDescription(answer)
	}
	if err != nil {
		s.drop(p)
		return "", err
	}
	<-gathered
	return p.LocalDescription().SDP, nil
}

// drop ends a peer, and a publisher's subscribers with it.
func (s *Server) drop(p *peer) {
	s.mu.Lock()
	leave := []*peer{p}
	for name, st := range s.streams {
		if st.publisher != p {
			continue
		}
		delete(s.streams, name)
		for other := range s.peers {
			if other != p && other.stream == st {
				leave = append(leave, other)
			}
		}
	}
	known := leave[:0]
	for _, p := range leave {
		if s.peers[p] {
			known = append(known, p)
		}
		delete(s.peers, p)
	}
	s.mu.Unlock()
	for _, p := range known {
		if err := p.Close(); err != nil {
			s.log.Warn("a connection doesn't close", "error", err)
		}
	}
}

// forward sends what comes from a publisher to all subscribers, until the publisher ends. What has come meanwhile, such
// as the rest of a frame, leaves together.
func (s *Server) forward(from *webrtc.TrackRemote, to *track) {
	packets := make(chan *rtp.Packet, 64)
	go func() {
		defer close(packets)
		for {
			p, _, err := from.ReadRTP()
			if err != nil {
				return
			}
			p.Extension, p.Extensions = false, nil // their numbers are each connection's own
			packets <- p
		}
	}()
	for p := range packets {
		if err := s.together(func() error {
			err := to.send(p)
			for range len(packets) {
				err = errors.Join(err, to.send(<-packets))
			}
			return err
		}); err != nil {
			s.log.Debug("not all subscribers were sent a packet", "error", err)
		}
	}
}

// feedback reads a subscriber's RTCP until it ends.
func (st *stream) feedback(sender *webrtc.RTPSender, to *track) {
	ssrc := sender.GetParameters().Encodings[0].SSRC
	for {
		packets, _, err := sender.ReadRTCP()
		if err != nil {
			return
		}
		for _, p := range packets {
			switch p := p.(type) {
			case *rtcp.PictureLossIndication, *rtcp.FullIntraRequest:
				st.wantKeyFrame()
			case *rtcp.TransportLayerNack:
				for _, pair := range p.Nacks {
					to.resend(ssrc, pair.PacketList())
				}
			}
		}
	}
}

// wantKeyFrame asks the publisher for a key frame, which a decoder can begin with.
func (st *stream) wantKeyFrame() {
	if ssrc := st.video.Load(); ssrc != 0 {
		ask := &rtcp.PictureLossIndication{MediaSSRC: ssrc}
		_ = st.publisher.WriteRTCP([]rtcp.Packet{ask}) // subscribers ask again
	}
}
