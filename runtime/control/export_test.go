package control

import "time"

// SetPatience says how long a client may send or take nothing, before the server serves.
func (s *Server) SetPatience(d time.Duration) { s.patience = d }
