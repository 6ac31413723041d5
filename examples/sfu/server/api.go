package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// Stats is what a server has and has done.
type Stats struct {
	Publishers  []PublisherStats  `json:"publishers"`
	Subscribers []SubscriberStats `json:"subscribers"`

	InKernel   bool   `json:"in_kernel"`     // the relay is loaded
	Why        string `json:"why,omitempty"` // why it isn't
	LostEvents uint64 `json:"lost_events"`   // packets whose copies the kernel couldn't report
	// what became of packets and copies, without the reasons that never applied
	Kernel []Outcome `json:"kernel,omitempty"`
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	st := Stats{Publishers: []PublisherStats{}, Subscribers: []SubscriberStats{}, Kernel: s.offload.outcomes()}
	st.InKernel, st.Why = s.offload.state()
	st.LostEvents = s.offload.lost()
	for _, p := range s.Publishers() {
		st.Publishers = append(st.Publishers, p.Stats())
	}
	for _, u := range s.Subscribers() {
		st.Subscribers = append(st.Subscribers, u.Stats())
	}
	return st
}

// Handler serves the API, in JSON:
//
//	POST   /publishers           Publish → PublisherStats: join, and learn where to send to
//	DELETE /publishers/NAME      leave
//	POST   /subscribers          Subscribe → SubscriberStats: join, and learn the SSRC and where packets come from
//	PATCH  /subscribers/NAME     Subscribe → SubscriberStats: another publisher, layer or bandwidth
//	DELETE /subscribers/NAME     leave
//	GET    /stats                Stats
//
// An error has a status of 400, 404 or 409 (503 while the server ends) and the body {"error": "…"}. Whoever reaches
// the API may do everything.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /publishers", func(w http.ResponseWriter, r *http.Request) {
		var body Publish
		answer(w, http.StatusCreated, read(w, r, &body), func() (any, error) { return s.Publish(body) })
	})
	mux.HandleFunc("DELETE /publishers/{name}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusNoContent, nil, func() (any, error) { return nil, s.Unpublish(r.PathValue("name")) })
	})
	mux.HandleFunc("POST /subscribers", func(w http.ResponseWriter, r *http.Request) {
		var body Subscribe
		answer(w, http.StatusCreated, read(w, r, &body), func() (any, error) { return s.Subscribe(body) })
	})
	mux.HandleFunc("PATCH /subscribers/{name}", func(w http.ResponseWriter, r *http.Request) {
		var body Subscribe
		err := read(w, r, &body)
		body.Name = r.PathValue("name")
		answer(w, http.StatusOK, err, func() (any, error) { return s.Change(body) })
	})
	mux.HandleFunc("DELETE /subscribers/{name}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusNoContent, nil, func() (any, error) { return nil, s.Unsubscribe(r.PathValue("name")) })
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, nil, func() (any, error) { return s.Stats(), nil })
	})
	return mux
}

// read reads a request's body. Unknown members are an error: they are typing mistakes.
func read(w http.ResponseWriter, r *http.Request, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: %v", ErrInvalid, err)
	}
	return nil
}

func answer(w http.ResponseWriter, status int, err error, f func() (any, error)) {
	var body any
	if err == nil {
		body, err = f()
	}
	if err != nil {
		body = struct {
			Error string `json:"error"`
		}{err.Error()}
		switch {
		case errors.Is(err, ErrNotFound):
			status = http.StatusNotFound
		case errors.Is(err, ErrExists):
			status = http.StatusConflict
		case errors.Is(err, ErrInvalid), errors.Is(err, ErrName):
			status = http.StatusBadRequest
		case errors.Is(err, ErrClosed):
			status = http.StatusServiceUnavailable
		default:
			status = http.StatusInternalServerError
		}
	}
	if body == nil {
		w.WriteHeader(status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}
