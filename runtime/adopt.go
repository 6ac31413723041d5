package runtime

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/nldump"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/pins"
)

// adopt takes over what a process before this one has pinned. It may have died at any moment, so nothing is taken for
// granted: sessions are those whose slot is open and whose rows are all there, everything else is removed. Programs are
// replaced last, each at once; an adoption that dies is repaired by the next one in the same manner. No one else
// knows the relay yet, so no lock is held.
func (r *Relay) adopt() error {
	if err := r.adoptGroups(); err != nil {
		return err
	}
	for _, t := range r.tables {
		if err := r.adoptState(t); err != nil {
			return err
		}
	}
	if r.slots != nil {
		if err := r.adoptSessions(); err != nil {
			return err
		}
	}
	if r.counters != nil {
		used, err := r.countersInUse()
		if err != nil {
			return err
		}
		r.counters.keep(used)
	}
	for _, k := range r.groups {
		k.eachLive((*AnyReceiver).takeState)
	}
	for _, s := range r.sessions {
		s.takeState()
	}
	if err := r.spaces.sweep(); err != nil {
		return err
	}
	for _, t := range r.tables {
		if t.desc.Session == "" {
			if err := r.adoptHops(t); err != nil {
				return err
			}
		}
	}
	if err := r.pins.Renew(r.desc, r.coll.Maps); err != nil {
		return err
	}
	atXDP, err := r.adoptLinks()
	if err != nil {
		return err
	}
	if err := r.inNamespace(func() error {
		err := r.adoptFilters()
		for _, l := range atXDP {
			err = errors.Join(err, r.adoptXDP(l))
		}
		return err
	}); err != nil {
		return err
	}
	if err := r.adoptDrops(); err != nil {
		return err
	}
	if err := r.adoptRegistered(); err != nil {
		return err
	}
	dropped, err := r.pins.Settle(r.desc, r.coll.Maps)
	for _, name := range dropped {
		if table, ok := strings.CutPrefix(name, abi.TablePrefix); ok {
			r.say(slog.LevelWarn, "a table is dropped: the relay has it no more", "table", table)
		}
	}
	return err
}

// sessionID is what the rows of a session name it by.
type sessionID struct {
	kind      int
	slot, gen uint32
}

// foundRow is a row that names a session: the session's row of this index.
type foundRow struct {
	row        int
	key, value []byte
}

// adoptSessions rebuilds the sessions from their rows.
func (r *Relay) adoptSessions() error {
	ids, found, err := r.findSessionRows()
	if err != nil {
		return err
	}
	blocks := make([]map[uint32]bool, len(r.desc.Sessions)) // of credits, that are in use
	for k := range blocks {
		blocks[k] = map[uint32]bool{}
	}
	for _, id := range ids {
		if s := r.rebuild(id, found[id], blocks[id.kind]); s != nil {
			err = r.adoptSession(s, found[id])
		} else { // it was being opened or closed when its process died
			err = r.discard(id, found[id])
		}
		if err != nil {
			return err
		}
	}
	for k, used := range blocks {
		b := r.sessionKinds[k].blocks
		b.free = slices.DeleteFunc(b.free, func(block uint32) bool { return used[block] })
	}
	r.slots.free = r.slots.free[:0]
	for i := range r.coll.Maps[abi.MapSlots].MaxEntries() {
		if r.sessions[i] == nil {
			r.slots.mem.Store32(i, abi.SlotGen, 0)
			r.slots.free = append(r.slots.free, i)
		}
	}
	return nil
}

// findSessionRows returns the rows of all sessions, and the sessions in the order in which they are found.
func (r *Relay) findSessionRows() (ids []sessionID, found map[sessionID][]foundRow, err error) {
	found = map[sessionID][]foundRow{}
	for k, sd := range r.desc.Sessions {
		for i, rd := range sd.Rows {
			if slices.ContainsFunc(sd.Rows[:i], func(o abi.Row) bool { return o.Table == rd.Table }) {
				continue // its rows are found with the first one's
			}
			t := r.tables[rd.Table]
			rows, err := t.scan()
			if err != nil {
				return nil, nil, err
			}
			for _, row := range rows {
				slot, gen := t.slotOf(row.value)
				id := sessionID{k, slot, gen}
				if found[id] == nil {
					ids = append(ids, id)
				}
				which := t.rowOf(row.value, i)
				if which >= len(sd.Rows) || sd.Rows[which].Table != rd.Table {
					which = i // no process of this relay has written it: the session isn't whole
				}
				found[id] = append(found[id], foundRow{which, row.key, row.value})
			}
		}
	}
	return ids, found, nil
}

// slotIs reports whether a session's slot is there and is the session's.
func (r *Relay) slotIs(id sessionID) bool {
	return id.slot < r.coll.Maps[abi.MapSlots].MaxEntries() && r.slots.mem.Load32(id.slot, abi.SlotGen) == id.gen
}

// rebuild returns the session that rows are of, or nil if it isn't whole. The blocks of credits that it uses are
// added to blocks.
func (r *Relay) rebuild(id sessionID, found []foundRow, blocks map[uint32]bool) *AnySession {
	sd := &r.desc.Sessions[id.kind]
	s := &AnySession{
		relay: r, desc: sd, kind: id.kind, slot: id.slot, gen: id.gen, firstGen: id.gen, queued: -1,
		done: make(chan struct{}),
	}
	fields := make([]byte, s.of().size)
	s.fields.Store(&fields)
	s.state = make([]byte, s.of().size)
	for _, f := range found {
		t := r.tables[sd.Rows[f.row].Table]
		s.recover(f.key, t.desc.Key, sd.Rows[f.row].Key)
		s.recover(f.value, t.desc.Value, sd.Rows[f.row].Value)
	}
	if !r.slotIs(id) || id.gen == 0 || len(found) != len(sd.Rows) || s.makeRows() != nil {
		return nil
	}
	seen := map[int]bool{}
	for _, f := range found {
		row := s.rows[f.row]
		if seen[f.row] || !bytes.Equal(row.key, f.key) || !row.refersTo(f.value) {
			return nil
		}
		seen[f.row] = true
	}
	if !s.adoptState(blocks) {
		return nil
	}
	return s
}

// discard removes what there is of a session that isn't whole.
func (r *Relay) discard(id sessionID, found []foundRow) error {
	if r.slotIs(id) {
		r.slots.mem.Store32(id.slot, abi.SlotGen, 0)
	}
	for _, f := range found {
		t := r.tables[r.desc.Sessions[id.kind].Rows[f.row].Table]
		if err := t.remove(f.key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove a row of a session that was not whole: %w", t.explain(err))
		}
	}
	return nil
}

// refersTo reports whether a row refers to the same counters, credits and buckets as its value was found to.
func (row *tableRow) refersTo(value []byte) bool {
	return !slices.ContainsFunc(row.table.desc.Value, func(m abi.Member) bool {
		return m.Kind.IsState() && !bytes.Equal(row.value[m.Off:m.Off+m.Size], value[m.Off:m.Off+m.Size])
	})
}

// recover reads fields back out of a key or value.
func (s *AnySession) recover(buf []byte, members []abi.Member, fields []int) {
	k := s.of()
	for i, m := range visible(members) {
		at, field := buf[m.Off:m.Off+m.Size], k.part(*s.fields.Load(), fields[i])
		switch {
		case m.Kind.IsState():
			copy(k.part(s.state, fields[i]), at)
		case m.Kind == abi.KindUint && m.Levels == 0:
			putUint(field, getUint(at))
		default:
			copy(field, at)
		}
	}
}

// adoptSession enters a session that is whole, as its rows were found.
func (r *Relay) adoptSession(s *AnySession, found []foundRow) error {
	was := make([][]byte, len(s.rows))
	for _, f := range found {
		was[f.row] = f.value
	}
	for i, row := range s.rows {
		row.link(s.slot, s.gen)
		if err := r.adoptRow(row, was[i]); err != nil {
			return err
		}
	}
	if err := s.adoptEnds(); err != nil {
		return err
	}
	r.enter(s)
	return nil
}

// adoptEnds finds out when a session ends. The kernel has one deadline: if there is an idle time, it may be that
// one's, and the lifetime begins anew, so that no session ends that is used.
func (s *AnySession) adoptEnds() error {
	r, now := s.relay, time.Now()
	if s.desc.Lifetime > 0 {
		s.expires = now.Add(s.desc.Lifetime)
	}
	if s.desc.Idle == 0 {
		deadline := r.slots.mem.Load64(s.slot, abi.SlotDeadline)
		if end := r.clock.time(deadline); deadline != never && (s.expires.IsZero() || end.Before(s.expires)) {
			s.expires = end // also one that RefreshFor has given
			return nil
		}
	} else {
		s.idle = now.Add(s.desc.Idle)
		last, err := s.LastUsed()
		if err != nil {
			return err
		}
		if !last.IsZero() {
			s.idle = last.Add(s.desc.Idle)
		}
	}
	// The kernel's may come sooner than these: the process before would have moved it.
	r.slots.mem.Store64(s.slot, abi.SlotDeadline, s.deadline())
	return nil
}

// adoptHops follows the hops in the rows of a table that is no session's.
func (r *Relay) adoptHops(t *AnyTable) error {
	rows, err := t.scan()
	if err != nil {
		return err
	}
	for _, found := range rows {
		row := &tableRow{table: t, key: found.key, value: slices.Clone(found.value[:t.desc.ValueSize])}
		if row.findHops() != nil || len(row.hops) == 0 {
			continue
		}
		if err := r.adoptRow(row, found.value); err != nil {
			return err
		}
		t.rows[string(row.key)] = row
	}
	return nil
}

// adoptRow brings a row's hops up to date; was is its value in the kernel. If the lease has not lapsed, another
// process followed them until a moment ago: they are good until all of them are resolved in the background, since to
// ask the kernel for each takes longer than a server can be away. Otherwise they are resolved now.
func (r *Relay) adoptRow(row *tableRow, was []byte) error {
	if len(row.hops) == 0 {
		return nil
	}
	for i := range row.hops {
		rh := &row.hops[i]
		if h := getHop(was[rh.off:]); r.leaseTaken && h.State != HopNone {
			rh.got = &resolved{key: r.hops.routes.Narrow(rh.traffic), hop: h, epoch: r.hops.epoch}
			r.hops.routes.Kick(true)
		}
	}
	if !r.leaseTaken {
		r.hops.prepare([]*tableRow{row})
	}
	r.hops.use(row)
	if bytes.Equal(row.value, was[:len(row.value)]) {
		return nil // packets go on with the row that they know
	}
	if err := row.table.update(row.key, row.value, ebpf.UpdateExist); err != nil {
		return row.table.explain(err)
	}
	return nil
}

// adoptLinks replaces the programs of the pinned TCX links, and removes those that are of no use any more. The others
// are listed in the order in which packets come to them, so that they have it again on an interface that is made anew.
// Links at XDP it returns.
func (r *Relay) adoptLinks() (atXDP []*pins.Link, err error) {
	for l, err := range r.pins.Links() {
		if err != nil {
			return nil, err
		}
		if strings.Contains(l.Program, pinMark) {
			atXDP = append(atXDP, l)
			continue
		}
		a, p := r.adoptable(l)
		if a == nil {
			if r.Program(l.Program) == nil {
				r.say(slog.LevelWarn, "a program is detached: the relay has it no more", "program", l.Program)
			}
			if err := l.Drop(); err != nil {
				return nil, err
			}
			continue
		}
		if err := l.Update(p.prog); err != nil {
			l.Close()
			return nil, fmt.Errorf("replace program %s on %s: %w", p.desc.Name, a.name, err)
		}
		r.attachments = append(r.attachments, a)
	}
	return atXDP, r.inNamespace(func() error {
		place := func(a *attachment) int {
			id := r.kernelID(a.program)
			return slices.IndexFunc(chain(a), func(f Front) bool { return f.ID == id })
		}
		slices.SortStableFunc(r.attachments, func(a, b *attachment) int { return cmp.Compare(place(a), place(b)) })
		return nil
	})
}

// adoptable says what a pinned link attaches; nil if its interface or its program is gone.
func (r *Relay) adoptable(l *pins.Link) (*attachment, *AnyProgram) {
	p := r.Program(l.Program)
	info, err := l.Info()
	if p == nil || p.desc.Hook == abi.HookXDP || err != nil || info.TCX() == nil || info.TCX().Ifindex == 0 {
		return nil, nil
	}
	egress := p.desc.Hook == abi.HookEgress
	if egress != (ebpf.AttachType(info.TCX().AttachType) == ebpf.AttachTCXEgress) {
		return nil, nil
	}
	a := &attachment{
		program: p.desc.Name, index: int(info.TCX().Ifindex), egress: egress, mode: AttachTCX, link: l.Link,
	}
	err = r.inNamespace(func() error {
		l, err := netlink.LinkByIndex(a.index)
		if err == nil {
			a.name = l.Attrs().Name
		}
		return err
	})
	if err != nil {
		return nil, nil // the link is in another network namespace, where this relay can't look after it
	}
	return a, p
}

// adoptFilters replaces the programs of the clsact filters that work on the adopted maps.
func (r *Relay) adoptFilters() error {
	return eachFilter(r.coll.Maps[abi.MapLease], func(l netlink.Link, f *netlink.BpfFilter, egress bool) error {
		if err := r.adoptFilter(l, f, egress); err != nil {
			return fmt.Errorf("replace filter %s on %s: %w", f.Name, l.Attrs().Name, err)
		}
		return nil
	})
}

// eachFilter calls f for each filter of the relay that has a lease.
func eachFilter(lease *ebpf.Map, f func(l netlink.Link, f *netlink.BpfFilter, egress bool) error) error {
	info, err := lease.Info()
	if err != nil {
		return err
	}
	mine, _ := info.ID()
	all, err := nldump.List(netlink.LinkList)
	if err != nil {
		return err
	}
	for _, l := range all {
		for _, egress := range []bool{false, true} {
			filters, err := netlink.FilterList(l, filterParent(egress))
			if err != nil {
				continue // no clsact qdisc
			}
			for _, one := range filters {
				b, ok := one.(*netlink.BpfFilter)
				if !ok || !strings.HasPrefix(b.Name, filterPrefix) || !usesMap(ebpf.ProgramID(b.Id), mine) {
					continue
				}
				if err := f(l, b, egress); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (r *Relay) adoptFilter(l netlink.Link, f *netlink.BpfFilter, egress bool) error {
	p := r.Program(strings.TrimPrefix(f.Name, r.filterName("")))
	if p == nil || p.desc.Hook == abi.HookXDP || egress != (p.desc.Hook == abi.HookEgress) {
		return gone(netlink.FilterDel(f))
	}
	f.Fd = p.prog.FD()
	f.DirectAction = true
	if err := netlink.FilterReplace(f); err != nil {
		return err
	}
	r.attachments = append(r.attachments, &attachment{
		program: p.desc.Name, name: l.Attrs().Name, index: l.Attrs().Index, egress: egress, mode: AttachClsact,
		filter: f,
	})
	return nil
}

func usesMap(id ebpf.ProgramID, want ebpf.MapID) bool {
	m := mapOfProgram(id, abi.MapLease)
	if m == nil {
		return false
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return false
	}
	got, _ := info.ID()
	return got == want
}
