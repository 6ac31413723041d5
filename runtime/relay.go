package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netns"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/mapmem"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/pins"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpfload"
)

// Options say how a relay is loaded. The zero value is good for a relay whose settings all have defaults.
type Options struct {
	// Settings by name. A setting left out has its default.
	Settings map[string]any
	// Lease is how long the kernel goes on forwarding after the process has died. 0 is one second; at least 40 ms.
	Lease time.Duration
	// PinPath is a folder in a BPF file system (/sys/fs/bpf/turn) where maps and links are kept, so that another
	// process can take over. Load adopts what it finds there: tables, sessions, attachments, the name of a congestion
	// control; its programs replace the old ones in place. Empty: nothing outlives the process.
	PinPath string
	// Grow has Load adopt a relay whose tables and sessions are fewer than this one's: their rows are copied. Packets
	// pass to the stack meanwhile, counted as "inactive". Rows with credits or buckets, groups, translations and the
	// ring of events can't grow, nor can a congestion control.
	Grow bool
	// Linger is how long the kernel goes on forwarding after Close, for a successor to take over. Only with PinPath.
	// 0: Close ends the relay and removes the pins.
	Linger time.Duration
	// Algorithm is the name by which sockets choose the congestion control that the relay is, at most 15 characters.
	// "": the relay's. Only for relays with a program at tcp/congestion.
	Algorithm string
	// Clsact attaches by clsact filters, as on kernels before 6.6, even if the kernel has TCX.
	Clsact bool
	// AttachmentChanged is called when an interface goes away that a program is attached to (now.Lost says so), and
	// when the program is attached again, because an interface of that name has appeared. Calls come one after the
	// other, from a goroutine of the relay, and may close it: Close doesn't wait for the one that runs. nil: the change
	// is logged.
	AttachmentChanged func(program string, now Attachment)
	// Control serves whoever operates the relay; package runtime/control has one for a unix socket. nil: none does.
	Control Control
	// Logger gets each change of state (docs/operate.md lists them), and what no call returns: leases that can't be
	// renewed, routes that can't be followed. It is called while locks are held: it must not call the relay, or wait.
	// nil: slog.Default.
	Logger *slog.Logger

	// routes, if a test sets it, finds next hops instead of the kernel. from is invalid if packets have no source
	// of their own.
	routes func(from, to netip.Addr) Hop
}

const defaultLease = time.Second

// Control serves the operator of a relay: looks at it and changes it, through the methods that everyone has. It is an
// interface so that programs without one need no HTTP server.
type Control interface {
	// Listen makes ready, and fails if it can't serve. [Load] calls it first, so that nothing is touched then.
	Listen(desc *abi.Desc) error
	// Serve begins to serve the relay, when Load has succeeded. It returns at once.
	Serve(r *Relay)
	// Close ends it. [Relay.Close] calls it first; so does a Load that fails. It must not wait for what calls that.
	Close() error
}

// Relay is a relay in the kernel. Its methods may be called from any goroutine.
type Relay struct {
	desc  *abi.Desc
	opt   Options
	log   *slog.Logger
	ns    netns.NsHandle
	coll  *ebpf.Collection
	lease *mapmem.Array
	clock *clock
	pins  *pins.Pins // nil: nothing is pinned

	programs []*AnyProgram
	tables   []*AnyTable
	counters *counters // nil: no shared counters
	credits  *credits  // nil: no credits
	spaces   *spaces   // nil: no translations
	groups   []*AnyGroups
	lists    *receiverLists
	events   *events // nil: no events
	slots    *slots  // nil: no sessions

	sessionKinds []sessionKind

	hops   *hops                // nil: no hops
	object *ebpf.CollectionSpec // nil: nothing at XDP
	frames *frames              // nil: nothing at XDP
	drops  *drops               // nil: nothing at XDP

	life sync.RWMutex // held for reading while the kernel's maps are used without mu
	over bool         // the maps are closed; guarded by life

	leaseMu     sync.Mutex // guards the lease's deadline, and:
	leaseOver   bool
	leasePaused bool          // see grow
	leaseMine   uint64        // the deadline that was written last
	leaseWas    uint64        // the deadline that was found; written by Load alone
	leaseTaken  bool          // it was renewed before anything was adopted, and is kept; written by Load alone
	leaseClock  *ebpf.Program // the clock, if it was loaded before all others

	// mu guards the rows of sessions and of tables that hold hops, the sessions, the attachments, registered, closed.
	mu       sync.Mutex
	closed   bool
	draining drainState
	sessions map[uint32]*AnySession // by slot
	open     []int                  // open sessions of each kind
	expiries expiryQueue

	registered  link.Link // of a congestion control; nil: it isn't registered
	attachments []*attachment
	interfaces  *interfaces  // nil: nothing was ever attached
	qdiscs      map[int]bool // interfaces (by index) whose clsact qdisc is ours

	done  chan struct{}
	ended chan struct{} // closed when Close is done
	wg    sync.WaitGroup
	sweep chan struct{} // wakes the goroutine that ends sessions
	stale chan struct{} // there may be learned rows of sessions that are over

	grace func() error // gracePeriod, or what a test has set in its place

	// fault, if a test sets it, makes an operation on a session's row fail.
	fault func(op, table string) error

	// Written by Load alone:
	adopted bool
	grew    []string  // maps that a larger one replaces
	paused  time.Time // when the lease was ended for that
}

// Load loads a relay from its object, or adopts the one that is pinned at opt.PinPath. Nothing is attached yet, unless
// it was adopted. If Load fails, nothing is left, and what was pinned stays as it was.
//
// Errors are an [*ObjectError], a [*KernelError] (an [*ebpf.VerifierError] can be reached through it), a [*ValueError]
// for a setting, a [*LayoutError], a [*FolderError], or [ErrLocked].
func Load(desc *abi.Desc, object []byte, opt Options) (_ *Relay, err error) {
	if opt.Lease == 0 {
		opt.Lease = defaultLease
	}
	if opt.Lease < 40*time.Millisecond {
		return nil, fmt.Errorf("relay %q: a lease of %v is too short to be renewed in time; at least 40ms", desc.Name,
			opt.Lease)
	}
	if opt.Linger < 0 || opt.Linger > 0 && opt.PinPath == "" {
		return nil, fmt.Errorf("relay %q: Linger needs a PinPath, and can't be negative", desc.Name)
	}
	r := newRelay(desc, opt)
	if opt.Control != nil {
		if err := opt.Control.Listen(desc); err != nil {
			return nil, fmt.Errorf("relay %q: %w", desc.Name, err)
		}
	}
	defer func() {
		if err != nil {
			r.abandon()
			if opt.Control != nil {
				err = errors.Join(err, opt.Control.Close())
			}
		}
	}()
	if r.ns, err = netns.Get(); err != nil {
		return nil, fmt.Errorf("relay %q: find the network namespace: %w", desc.Name, err)
	}
	spec, err := specOf(desc, object, &opt)
	if err != nil {
		return nil, err
	}
	if err := r.load(spec); err != nil {
		return nil, err
	}
	if err := r.resume(); err != nil {
		return nil, fmt.Errorf("relay %q: begin its lease: %w", desc.Name, err)
	}
	r.sayLoaded()
	if len(r.attachments) > 0 {
		if err := r.inNamespace(r.watchInterfaces); err != nil {
			return nil, fmt.Errorf("relay %q: %w", desc.Name, err)
		}
	}
	r.start()
	if opt.Control != nil {
		opt.Control.Serve(r)
	}
	return r, nil
}

// newRelay returns a relay of which nothing is in the kernel.
func newRelay(desc *abi.Desc, opt Options) *Relay {
	r := &Relay{
		desc:     desc,
		opt:      opt,
		log:      opt.Logger,
		ns:       netns.None(),
		grace:    gracePeriod,
		sessions: map[uint32]*AnySession{},
		open:     make([]int, len(desc.Sessions)),
		qdiscs:   map[int]bool{},
		done:     make(chan struct{}),
		ended:    make(chan struct{}),
		sweep:    make(chan struct{}, 1),
		stale:    make(chan struct{}, 1),
	}
	if r.log == nil {
		r.log = slog.Default()
	}
	return r
}

// specOf returns what an object holds, with the settings of opt, after checks that need no pins.
func specOf(desc *abi.Desc, object []byte, opt *Options) (*ebpf.CollectionSpec, error) {
	spec, err := readObject(desc, object)
	if err != nil {
		return nil, err
	}
	if err := bpfload.RoomFor(spec); err != nil {
		return nil, explainLoad(desc, err)
	}
	if err := applySettings(desc, spec, opt.Settings); err != nil {
		return nil, err
	}
	return spec, nameAlgorithm(desc, spec, opt)
}

// load loads programs and maps. Maps that are pinned are adopted, with all that they hold; others are pinned.
func (r *Relay) load(spec *ebpf.CollectionSpec) (err error) {
	desc, path := r.desc, r.opt.PinPath
	var found, smaller map[string]*ebpf.Map
	if path != "" {
		if r.pins, err = openPins(path); err != nil {
			return fmt.Errorf("relay %q: %w", desc.Name, err)
		}
		if found, smaller, err = r.pins.Maps(desc, spec, r.opt.Grow); err != nil {
			return fmt.Errorf("relay %q: %w", desc.Name, pinsError(err))
		}
		defer closeMaps(found)
		defer closeMaps(smaller)
	}
	if len(found) > 0 {
		if err := r.takeLease(spec, found[abi.MapLease]); err != nil {
			return fmt.Errorf("relay %q: take over its lease: %w", desc.Name, err)
		}
	}
	if desc.AtXDP() {
		r.object = spec.Copy()
	}
	if r.coll, err = loadCollection(desc, spec, found); err != nil {
		return err
	}
	if len(smaller) > 0 {
		if err := r.grow(smaller); err != nil {
			return fmt.Errorf("relay %q: grow what is pinned at %s: %w", desc.Name, path, err)
		}
	}
	if err := r.setUp(spec); err != nil {
		return fmt.Errorf("relay %q: %w", desc.Name, err)
	}
	if len(found) == 0 && r.pins != nil {
		if err := r.pins.Create(desc, r.coll.Maps); err != nil {
			return fmt.Errorf("relay %q: pin at %s: %w", desc.Name, path, err)
		}
	}
	r.countDrops()
	if len(found) > 0 {
		if err := r.adopt(); err != nil {
			return fmt.Errorf("relay %q: adopt %s: %w", desc.Name, path, err)
		}
		r.adopted = true
	}
	return nil
}

// sayLoaded logs what was loaded.
func (r *Relay) sayLoaded() {
	what := "a relay is loaded"
	if r.adopted {
		what = "a relay is adopted"
	}
	r.say(slog.LevelInfo, what, "pinned", r.opt.PinPath, "lease", r.opt.Lease, "attachments", len(r.attachments),
		"sessions", len(r.sessions), "receivers", r.lists.receivers())
	if len(r.grew) > 0 {
		r.say(slog.LevelInfo, "a relay has grown; packets passed to the stack meanwhile", "maps", r.grew, "for",
			time.Since(r.paused))
	}
}

// setUp makes the parts of the relay around the loaded collection.
func (r *Relay) setUp(spec *ebpf.CollectionSpec) (err error) {
	maps := r.coll.Maps
	if r.clock == nil {
		if r.lease, err = mapmem.Map(maps[abi.MapLease]); err != nil {
			return err
		}
		if r.clock, err = newClock(r.coll.Programs[abi.ClockProgram], r.lease); err != nil {
			return err
		}
	}
	if r.desc.Shared > 0 {
		if r.counters, err = newCounters(maps[abi.MapShared]); err != nil {
			return err
		}
	}
	if r.desc.Credits > 0 {
		if r.credits, err = newCredits(maps[abi.MapCredits], r.desc.Levels); err != nil {
			return err
		}
	}
	if r.desc.Translations > 0 {
		r.spaces = newSpaces(r, maps[abi.MapTranslate])
	}
	if r.desc.Ring > 0 {
		if r.events, err = newEvents(r, maps[abi.MapEvents], maps[abi.MapLost]); err != nil {
			return err
		}
	}
	tableCredits, groupCredits, sessionCredits := layCredits(r.credits, r.desc)
	for i := range r.desc.Sessions {
		r.sessionKinds = append(r.sessionKinds, newSessionKind(&r.desc.Sessions[i], sessionCredits[i]))
	}
	if r.desc.Slots > 0 {
		if r.slots, err = newSlots(maps[abi.MapSlots], maps[abi.MapUsage]); err != nil {
			return err
		}
	}
	if r.desc.HasHops() || r.desc.Lookups {
		if r.hops, err = newHops(r); err != nil {
			return err
		}
	}
	if r.frames, err = newFrames(r); err != nil {
		return err
	}
	r.tellPrograms()
	for i := range r.desc.Programs {
		d := &r.desc.Programs[i]
		r.programs = append(r.programs, &AnyProgram{relay: r, desc: d, prog: r.coll.Programs[d.Symbol()]})
	}
	for i := range r.desc.Tables {
		d := &r.desc.Tables[i]
		r.tables = append(r.tables, newTable(r, d, maps[abi.TablePrefix+d.Name], tableCredits[i]))
	}
	r.lists = newReceiverLists(r)
	for i := range r.desc.Groups {
		r.groups = append(r.groups, newGroupKind(r, &r.desc.Groups[i], spec, groupCredits[i]))
	}
	return nil
}

// start begins what goes on in the background.
func (r *Relay) start() {
	if !r.leaseTaken {
		r.wg.Add(1)
		go r.keepLease()
	}
	r.wg.Add(1)
	go r.endSessions()
	if slices.ContainsFunc(r.tables, (*AnyTable).learned) {
		r.noteStale() // a process before this one may have left some
		r.wg.Add(1)
		go r.removeLearned()
	}
	r.lists.catchUp()
	if r.hops != nil {
		r.hops.start()
	}
}

// abandon releases what a failed Load has made. It touches nothing that was pinned before.
func (r *Relay) abandon() {
	r.returnLease()
	close(r.done)
	r.frames.close()
	r.frames.release()
	r.drops.close()
	r.wg.Wait()
	if r.hops != nil {
		r.hops.close()
	}
	r.events.close()
	if r.lists != nil {
		r.lists.closeLists()
	}
	if r.coll != nil {
		r.coll.Close()
	}
	r.leaseClock.Close()
	if r.pins != nil {
		r.pins.Abandon()
	}
	if r.ns.IsOpen() {
		r.ns.Close()
	}
}

// Close ends the relay: its lease lapses at once, its programs are detached, its sessions are over. With
// [Options.Linger], pins and attachments stay, and the kernel goes on forwarding for that long. Close takes no context,
// since it waits for the kernel (a change of a group that has begun is finished, which takes some milliseconds) and for
// the body of a loop over [Relay.Pending], never for packets or for other functions of the caller. It may be called
// more than once: each call returns when the relay has ended, all but the first without an error.
func (r *Relay) Close() error { return r.close(r.opt.Linger) }

// Leave is Close with another [Options.Linger]: whatever that is, pins and attachments stay, and the kernel goes on
// forwarding for as long as is said. It needs a PinPath.
func (r *Relay) Leave(linger time.Duration) error {
	if r.pins == nil || linger <= 0 {
		return fmt.Errorf("relay %q: to be left it needs a PinPath, and some time", r.desc.Name)
	}
	return r.close(linger)
}

// Adopted reports whether Load has found the relay pinned.
func (r *Relay) Adopted() bool { return r.adopted }

func (r *Relay) close(linger time.Duration) error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		<-r.ended // else a process could end, because one call has returned, before the other has detached programs
		return nil
	}
	r.closed = true
	r.mu.Unlock()
	defer close(r.ended)
	var errs []error
	if r.opt.Control != nil {
		errs = append(errs, r.opt.Control.Close())
	}

	// From here on nothing else changes the lease, the rows or the attachments.
	r.endLease(linger)
	close(r.done)
	r.interfaces.close()
	r.frames.close()
	r.lists.close()
	r.events.close()
	if r.hops != nil {
		r.hops.close()
	}
	r.wg.Wait()

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pins != nil && linger > 0 {
		r.releaseAttachments()
		errs = append(errs, r.pins.Release())
	} else {
		errs = append(errs, r.unregister(), r.detach(func(*attachment) bool { return true }))
		if r.pins != nil {
			errs = append(errs, r.pins.Remove())
		}
	}
	for _, s := range r.sessions {
		s.finish(ErrClosed)
	}
	clear(r.sessions)
	r.counters.closeAll()
	r.credits.closeAll()
	r.spaces.closeAll()
	r.life.Lock()
	r.over = true
	r.lists.closeLists()
	r.drops.close()
	r.coll.Close()
	r.leaseClock.Close()
	r.life.Unlock()
	errs = append(errs, r.ns.Close())
	if linger > 0 {
		r.say(slog.LevelInfo, "a relay is left to a successor", "for", linger)
	} else {
		r.say(slog.LevelInfo, "a relay is closed")
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close relay %q: %w", r.desc.Name, err)
	}
	return nil
}

// say logs a change of the relay's state.
func (r *Relay) say(level slog.Level, what string, args ...any) {
	r.log.Log(context.Background(), level, what, append([]any{"relay", r.desc.Name}, args...)...)
}

// using runs f while the kernel's maps are there. f may use it again only in a goroutine that Close waits for, before
// it asks for life.
func (r *Relay) using(f func() error) error {
	r.life.RLock()
	defer r.life.RUnlock()
	if r.over {
		return fmt.Errorf("relay %q: %w", r.desc.Name, ErrClosed)
	}
	return f()
}

// Desc returns the description that the relay was loaded with.
func (r *Relay) Desc() *abi.Desc { return r.desc }

// Program returns the program of that name; nil if the relay has none.
func (r *Relay) Program(name string) *AnyProgram {
	for _, p := range r.programs {
		if p.desc.Name == name {
			return p
		}
	}
	return nil
}

// Programs returns all programs in the order of the spec.
func (r *Relay) Programs() []*AnyProgram { return append([]*AnyProgram(nil), r.programs...) }

// Table returns the table of that name; nil if the relay has none.
func (r *Relay) Table(name string) *AnyTable {
	for _, t := range r.tables {
		if t.desc.Name == name {
			return t
		}
	}
	return nil
}

// Tables returns all tables, those of sessions included, in the order of the spec.
func (r *Relay) Tables() []*AnyTable { return append([]*AnyTable(nil), r.tables...) }

func closeMaps(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		m.Close()
	}
}
