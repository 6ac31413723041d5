package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// started is when the process has.
var started = time.Now()

func (s *Server) overview(*http.Request) (any, error) {
	d := s.relay.Desc()
	length, left := s.relay.Lease()
	out := api.Describe(d)
	out.PID, out.Started, out.Pinned, out.Draining = os.Getpid(), started, s.relay.PinPath(), s.relay.Draining()
	out.Lease, out.CanStop = &api.Lease{Seconds: length.Seconds(), Left: left.Seconds()}, s.Stop != nil
	for i, v := range s.relay.Settings() {
		out.Settings = append(out.Settings, api.Named{Name: d.Settings[i].Name, Value: api.Encode(v)})
	}
	for i := range out.Sessions {
		open := s.relay.OpenSessions(out.Sessions[i].Name)
		out.Sessions[i].Open = &open
	}
	for i, k := range s.relay.GroupKinds() {
		groups, receivers := k.Count()
		out.Groups[i].Open, out.Groups[i].Receivers = &groups, &receivers
	}
	for i := range out.Events {
		out.Events[i].Lost = s.relay.Lost(i + 1)
	}
	if len(d.Events) > 0 {
		waiting, size := s.relay.EventsWaiting()
		out.Ring = &api.Ring{Waiting: waiting, Size: size}
	}
	drops, err := s.relay.XDPDrops()
	if err != nil {
		out.NoXDPDrops = err.Error()
	}
	for _, d := range drops {
		out.XDPDrops = append(out.XDPDrops, api.XDPDrop(d))
	}
	return out, nil
}

func (s *Server) openAPI(w http.ResponseWriter, _ *http.Request) {
	text, err := api.OpenAPI(s.relay.Desc())
	if err != nil {
		answer(w, nil, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // an error means that the client has gone
}

func (s *Server) programs(*http.Request) (any, error) {
	out := api.Programs{Items: []api.Program{}}
	for i := range s.relay.Programs() {
		p, err := s.programAt(i)
		if err != nil {
			return nil, err
		}
		out.Items = append(out.Items, p)
	}
	return out, nil
}

func (s *Server) program(r *http.Request) (any, error) {
	i, err := s.findProgram(r)
	if err != nil {
		return nil, err
	}
	return s.programAt(i)
}

func (s *Server) findProgram(r *http.Request) (int, error) {
	var names []string
	for i, p := range s.relay.Programs() {
		if p.Name() == r.PathValue("program") {
			return i, nil
		}
		names = append(names, p.Name())
	}
	return 0, notFound("program", r.PathValue("program"), names)
}

func (s *Server) programAt(i int) (api.Program, error) {
	p := s.relay.Programs()[i]
	out := api.Program{
		Name: p.Name(), Hook: p.Desc().Hooks(), Attachments: []api.Attachment{}, Reasons: []api.Reason{},
	}
	counts, err := p.Counts() // fails if the relay is closed
	if err != nil {
		return out, err
	}
	if info, err := p.Kernel().Info(); err == nil {
		if id, ok := info.ID(); ok {
			out.KernelID = uint32(id)
		}
	}
	places, err := p.Places()
	if err != nil {
		return out, err
	}
	for _, a := range places {
		one := api.Attachment{
			Interface: a.Interface, How: a.Mode.String(), Attached: a.Lost == nil, NoForwarding: a.NoForwarding,
			XDP: a.XDP,
		}
		if a.NoXDP != nil {
			one.NoXDP = a.NoXDP.Error()
		}
		for _, f := range a.Front {
			one.Front = append(one.Front, f.String())
		}
		if a.Lost != nil {
			one.Error = a.Lost.Error()
		}
		out.Attachments = append(out.Attachments, one)
	}
	atXDP, err := p.XDPCounts()
	if err != nil {
		return out, err
	}
	for n, c := range counts {
		reason := p.Desc().Reasons[n]
		pps, bps := s.rates.of(i, n)
		one := api.Reason{
			Name: reason.Name, Kind: reason.Kind.String(), Doc: reason.Doc, Packets: c.Packets, Bytes: c.Bytes,
			PPS: pps, BPS: bps,
		}
		if atXDP != nil {
			one.XDP = atXDP[n].Packets
		}
		out.Reasons = append(out.Reasons, one)
	}
	return out, nil
}

func (s *Server) attach(r *http.Request) (any, error) {
	query := r.URL.Query()
	first, before := query.Get("first"), query.Get("before")
	switch {
	case query.Has("first") && first != "true" && first != "false":
		p := badRequest(fmt.Sprintf("first is %q; it must be true or false", first))
		p.Field = "first"
		return nil, p
	case before != "" && first == "true":
		return nil, badRequest("first and before contradict each other")
	}
	o := runtime.AttachOptions{First: first == "true", Before: before, Hook: runtime.HookAuto}
	if query.Has("hook") {
		if err := o.Hook.UnmarshalText([]byte(query.Get("hook"))); err != nil {
			p := badRequest("hook " + err.Error())
			p.Field = "hook"
			return nil, p
		}
	}
	return s.changeAttachment(r, func(p *runtime.AnyProgram, iface string) error { return p.AttachAt(iface, o) })
}

func (s *Server) detach(r *http.Request) (any, error) {
	return s.changeAttachment(r, (*runtime.AnyProgram).Detach)
}

func (s *Server) changeAttachment(r *http.Request, do func(*runtime.AnyProgram, string) error) (any, error) {
	i, err := s.findProgram(r)
	if err != nil {
		return nil, err
	}
	if err := do(s.relay.Programs()[i], r.PathValue("interface")); err != nil {
		p := problem(err)
		p.Field = "interface"
		return nil, p
	}
	return s.programAt(i)
}

func (s *Server) counters(*http.Request) (any, error) {
	all, err := s.relay.Counters()
	if err != nil {
		return nil, err
	}
	out := api.Counters{Counters: api.Object{}}
	for i, n := range all {
		out.Counters = append(out.Counters, api.Named{Name: s.relay.Desc().Counters[i], Value: n})
	}
	return out, nil
}

func (s *Server) nextHops(r *http.Request) (any, error) {
	after, n, err := page(r)
	if err != nil {
		return nil, err
	}
	missing := false
	if query := r.URL.Query(); query.Has("missing") {
		text := query.Get("missing")
		if missing = text == "true"; !missing && text != "false" {
			p := badRequest(fmt.Sprintf("missing is %q; it must be true or false", text))
			p.Field = "missing"
			return nil, p
		}
	}
	var all []runtime.NextHop
	for _, h := range s.relay.NextHops() {
		if (!missing || h.Missing()) && (after == "" || later(h, after)) {
			if all = append(all, h); len(all) > n {
				break
			}
		}
	}
	view := s.hopView()
	return part(slices.Values(all), n, hopPlace, func(h runtime.NextHop) (api.NextHop, bool) {
		return view(h), true
	}), nil
}

// hopPlace is where a next hop is in the list of all.
func hopPlace(h runtime.NextHop) string {
	return fmt.Sprintf("%v,%v,%d,%d,%d,%v", h.To, h.From, h.Proto, h.FromPort, h.ToPort, h.Router)
}

// later says whether a next hop comes after a place. What isn't an address is before all of them.
func later(h runtime.NextHop, place string) bool {
	parts := append(strings.Split(place, ","), make([]string, 5)...)
	var other runtime.NextHop
	other.To, _ = netip.ParseAddr(parts[0])
	other.From, _ = netip.ParseAddr(parts[1])
	number := func(s string, bits int) uint64 { n, _ := strconv.ParseUint(s, 10, bits); return n }
	other.Proto = uint8(number(parts[2], 8))
	other.FromPort, other.ToPort = uint16(number(parts[3], 16)), uint16(number(parts[4], 16))
	other.Router = parts[5] == "true"
	return h.Compare(other) > 0
}

// whyMissing says why no packet leaves by a next hop at present; "": it does, or the kernel sees to it.
func whyMissing(h runtime.NextHop) string {
	if !h.Missing() {
		return ""
	}
	return map[runtime.HopState]string{
		runtime.HopNone:        "there is no route to the address",
		runtime.HopLocal:       "the address is this host's: its packets pass to the stack",
		runtime.HopUnreachable: "the route to the address is of type unreachable",
		runtime.HopBlackhole:   "the route to the address is of type blackhole",
		runtime.HopProhibit:    "the route to the address is of type prohibit",
		runtime.HopXfrm:        "an xfrm (IPsec) policy is for the packets: they pass to the stack",
		runtime.HopRule: "a routing rule asks for a protocol or ports that aren't known before a packet comes, " +
			"or for ports while the neighbour's link-layer address isn't known: packets pass to the stack",
		runtime.HopEncap:     "the route to the address encapsulates packets, which is the stack's work",
		runtime.HopNeighbour: "the neighbour's link-layer address isn't known yet: no copies until it answers",
	}[h.State]
}

// hopView returns what shows next hops. It looks up the names of interfaces once.
func (s *Server) hopView() func(runtime.NextHop) api.NextHop {
	names := sync.OnceValue(func() map[int]string {
		names, err := s.relay.Interfaces()
		if err != nil {
			return nil
		}
		return names
	})
	return func(h runtime.NextHop) api.NextHop {
		out := api.NextHop{To: h.To.String(), State: h.State.String(), Missing: whyMissing(h), Rows: h.Rows,
			FromPort: h.FromPort, ToPort: h.ToPort, Router: h.Router}
		switch h.Proto {
		case unix.IPPROTO_UDP:
			out.Protocol = "udp"
		case unix.IPPROTO_TCP:
			out.Protocol = "tcp"
		}
		if h.From.IsValid() {
			out.From = h.From.String()
		}
		if h.State == runtime.HopDirect || h.State == runtime.HopNeighbour {
			out.Interface, out.MTU = names()[h.Ifindex], h.MTU
		}
		if h.State == runtime.HopDirect {
			out.MAC = net.HardwareAddr(h.Dst[:]).String()
		}
		return out
	}
}

func views(hops []runtime.NextHop, view func(runtime.NextHop) api.NextHop) []api.NextHop {
	out := []api.NextHop{}
	for _, h := range hops {
		out = append(out, view(h))
	}
	return out
}

func (s *Server) stop(w http.ResponseWriter, _ *http.Request) {
	if s.Stop == nil {
		answer(w, nil, &api.Problem{Status: http.StatusConflict, Code: api.CodeRefused,
			Detail: "the server that has loaded this relay doesn't let it be stopped from here",
			Fix:    fmt.Sprintf("stop the server itself, process %d", os.Getpid())})
		return
	}
	// The whole answer leaves now, without a last chunk to come: the connection ends with the relay.
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusAccepted)
	_ = http.NewResponseController(w).Flush()
	go s.Stop()
}

func (s *Server) endDrain(*http.Request) (any, error) {
	s.relay.EndDrain()
	return nil, nil
}

// longestDrain is how long a request waits at most.
const longestDrain = 24 * time.Hour

func (s *Server) drain(w http.ResponseWriter, r *http.Request) { serveDrain(w, r, s.drainRelay) }

// serveDrain has drain wait for as long as a client wants, and then close what is left if it wants that.
func serveDrain(w http.ResponseWriter, r *http.Request, drain func(ctx context.Context, closeRest bool) (api.Drained,
	error)) {
	var want api.Drain
	err := read(r, &want)
	if limit := longestDrain.Seconds(); err == nil && !(want.Limit >= 0 && want.Limit <= limit) {
		err = &api.FieldError{Field: "limit_seconds", Err: fmt.Errorf("is %v; it must be from 0 to %v", want.Limit,
			limit)}
	}
	if err != nil {
		answer(w, nil, err)
		return
	}
	c := http.NewResponseController(w)
	_ = errors.Join(c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{})) // a unix socket has deadlines
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(want.Limit*float64(time.Second)))
	defer cancel()
	out, err := drain(ctx, want.Close)
	answer(w, out, err)
}

// drainRelay drains until ctx ends.
func (s *Server) drainRelay(ctx context.Context, closeRest bool) (out api.Drained, err error) {
	err = s.relay.Drain(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
		if closeRest {
			out.Closed, err = s.closeAll(ctx)
		}
	}
	for _, k := range s.relay.Desc().Sessions {
		out.Sessions += s.relay.OpenSessions(k.Name)
	}
	for _, k := range s.relay.GroupKinds() {
		_, n := k.Count()
		out.Receivers += n
	}
	out.Drained = out.Sessions+out.Receivers == 0
	return out, err
}

// closeAll closes all sessions, and groups that may be closed from here.
func (s *Server) closeAll(ctx context.Context) (n int, err error) {
	var sessions []*runtime.AnySession
	for one := range s.relay.Sessions() {
		sessions = append(sessions, one)
	}
	err = s.relay.CloseSessions(sessions...)
	n = len(sessions)
	if s.OwnGroups {
		return n, err
	}
	for _, k := range s.relay.GroupKinds() {
		for g := range k.All() {
			err = cmp.Or(err, g.Close(context.WithoutCancel(ctx)))
			n++
		}
	}
	return n, err
}

// counts returns what programs have counted, by program and reason.
type counts func() ([][]runtime.Count, error)

// countsOf returns the counts of a relay in the kernel, which end when it is closed.
func countsOf(r *runtime.Relay) counts {
	return func() (all [][]runtime.Count, err error) {
		for _, p := range r.Programs() {
			counts, err := p.Counts()
			if err != nil {
				return nil, err
			}
			all = append(all, counts)
		}
		return all, nil
	}
}

// rates knows what programs count in a second.
type rates struct {
	counts    counts
	mu        sync.Mutex
	was, last sample
}

type sample struct {
	at     time.Time
	counts [][]runtime.Count // by program and reason
}

func newRates(c counts) *rates { return &rates{counts: c} }

// run looks at the counters once a second.
func (r *rates) run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		now := sample{at: time.Now()}
		var err error
		if now.counts, err = r.counts(); err != nil {
			return // the relay is closed
		}
		r.mu.Lock()
		r.was, r.last = r.last, now
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// of returns packets and bits a second of a program's reason.
func (r *rates) of(program, reason int) (packets, bits float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.was.counts == nil {
		return 0, 0
	}
	a, b := r.was.counts[program][reason], r.last.counts[program][reason]
	seconds := r.last.at.Sub(r.was.at).Seconds()
	return float64(b.Packets-a.Packets) / seconds, 8 * float64(b.Bytes-a.Bytes) / seconds
}
