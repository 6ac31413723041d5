package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/lab"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// traffic is what `run --traffic` sends: the packets of the spec's tests, in a network of their own (package lab).
// The relay begins with the tests' settings, sessions, rows and groups at once, so a test whose state contradicts that
// of an earlier test is left out, and so is one with other settings than most.
type traffic struct {
	plan  *ir.Plan
	tests []*trafficTest
	rate  int
	net   *lab.Network

	keys   map[string]string           // of rows and groups: what they are a part of, as text
	opened map[string]*opening         // by that text
	of     map[*opening][]*trafficTest // the tests that it is for
}

// trafficTest is a test of the spec.
type trafficTest struct {
	spectest.Packet
	leftOut string // why its packet isn't sent
}

func checkTrafficFlags(opt runOptions) error {
	switch {
	case !opt.traffic && opt.rate != defaultRate:
		return usage("--rate is for --traffic").
			hint("--traffic sends packets; without it, packets come from the interfaces")
	case !opt.traffic && len(opt.attach) == 0:
		return usage("no program is attached to an interface").hint("--attach PROGRAM=INTERFACE").
			hint("or --traffic, for a network of its own and the packets of the spec's tests").
			see("fastrelay-gen run --help")
	case opt.traffic && len(opt.attach) > 0:
		return usage("--traffic makes a network of its own, and --attach names an interface of this machine").
			hint("give one of the two")
	case opt.traffic && opt.rate < 1:
		return usage("--rate %d: the rate is in packets a second, at least 1", opt.rate)
	}
	return nil
}

// newTraffic collects the packets of the spec's tests, and has the relay begin with their state, and with its programs
// where the packets come.
func newTraffic(r *build.Result, rate int, b *beginning) (*traffic, error) {
	packets, diags := spectest.Packets(r.Spec, r.Plan)
	if err := diags.Err(); err != nil {
		return nil, err
	}
	if len(packets) == 0 {
		return nil, usage("the spec has no tests, and --traffic sends the packets of tests").
			hint("write a test, as the spec that fastrelay-gen init writes shows").
			hint("or attach the relay to an interface: --attach PROGRAM=INTERFACE")
	}
	t := &traffic{plan: r.Plan, rate: rate, opened: map[string]*opening{}, keys: map[string]string{},
		of: map[*opening][]*trafficTest{}}
	given := len(b.open) > 0
	usual := t.settings(packets, b)
	for _, p := range packets {
		test := &trafficTest{Packet: p, leftOut: unsendable(p)}
		t.tests = append(t.tests, test)
		if test.leftOut != "" {
			continue
		}
		if !usual(p.Test) {
			test.leftOut = "it has other settings than most tests"
		} else if !given {
			t.state(test, b)
		}
	}
	if !slices.ContainsFunc(t.tests, func(test *trafficTest) bool { return test.leftOut == "" }) {
		return nil, usage("no test of the spec has a packet that can be sent").
			hint("%q: %s", t.tests[0].Test.Name.Value, t.tests[0].leftOut)
	}
	for i, p := range t.programs() {
		b.attach = append(b.attach, wantedAttachment{attachment{p.Name, lab.DeviceName(t.devices()[i])}, place{}})
	}
	return t, nil
}

// unsendable says why a test's packet can't be sent between two hosts, or "".
func unsendable(p spectest.Packet) string {
	switch size := len(p.Packet.Data); {
	case p.Test.Route != nil:
		return "it has a route of its own"
	case slices.Contains(p.Test.Conditions, spec.Lapsed):
		return "the relay's lease has expired in it"
	case p.Test.Conditions != nil:
		return "the relay is " + p.Test.Conditions[0] + " in it"
	case size < 14:
		return fmt.Sprintf("its frame has %d bytes, less than an Ethernet header", size)
	case size > lab.MTU+14:
		return fmt.Sprintf("its frame has %d bytes, and the MTU of the network is %d", size, lab.MTU)
	}
	return ""
}

// settings has the relay begin with the settings that most tests have, as far as none are given. It returns what says
// whether a test has these.
func (t *traffic) settings(packets []spectest.Packet, b *beginning) (usual func(*spec.Test) bool) {
	given := maps.Clone(b.settings)
	of := func(test *spec.Test) map[string]any {
		all := map[string]any{}
		for _, v := range test.Settings {
			if _, is := given[v.Name.Value]; !is {
				all[v.Name.Value] = t.settingValue(v)
			}
		}
		return all
	}
	tests := map[string]int{}
	for _, p := range packets {
		if unsendable(p) == "" {
			tests[fmt.Sprint(of(p.Test))]++
		}
	}
	chosen := of(packets[0].Test) // the first of those that as many tests have
	for _, p := range packets {
		if all := of(p.Test); tests[fmt.Sprint(all)] > tests[fmt.Sprint(chosen)] {
			chosen = all
		}
	}
	maps.Copy(b.settings, chosen)
	return func(test *spec.Test) bool { return fmt.Sprint(of(test)) == fmt.Sprint(chosen) }
}

// settingValue is the value of a setting in a test, as package runtime takes it.
func (t *traffic) settingValue(v *spec.TestValue) any {
	s := t.plan.Settings[slices.IndexFunc(t.plan.Settings, func(s *ir.Setting) bool { return s.Name == v.Name.Value })]
	if !s.Type.HasText() {
		return literalValue(s.Type, v.Value)
	}
	value, _ := readValue(s.Type.Kind.ABI(), v.Value.Text) // the test was checked
	return value
}

// state has the relay begin with the state of a test, or leaves the test out.
func (t *traffic) state(test *trafficTest, b *beginning) {
	pieces := t.pieces(test.Test, b)
	for _, p := range pieces {
		for _, key := range p.keys {
			if have, known := t.keys[key]; known && have != p.text {
				test.leftOut = fmt.Sprintf("an earlier test has other values for %s", key)
				return
			}
		}
	}
	for _, p := range pieces {
		for _, key := range p.keys {
			t.keys[key] = p.text
		}
		o := t.opened[p.text]
		if o == nil {
			o = b.add(p.opening)
			t.opened[p.text] = o
		}
		t.of[o] = append(t.of[o], test)
	}
}

// piece is a session, a row or a group of a test.
type piece struct {
	*opening
	text string   // all of it
	keys []string // what other pieces can't have as well, unless they are the same
}

func (t *traffic) pieces(test *spec.Test, b *beginning) (all []piece) {
	begin := func(what, name string, o *opening) *piece {
		k, _ := b.kind(name, what) // the test was checked
		o.kindOf = *k
		text := fmt.Sprint(name, o.key, o.values, o.receivers)
		all = append(all, piece{o, text, []string{name + " " + objectText(o.key)}})
		return &all[len(all)-1]
	}
	for _, src := range test.Sessions {
		name := src.Session.Value
		s := t.plan.Sessions[slices.IndexFunc(t.plan.Sessions, func(s *ir.Session) bool { return s.Name == name })]
		o := &opening{}
		for _, f := range s.Fields {
			o.values = append(o.values, memberValue(f.Name, f.Type, src.Fields))
		}
		p := begin("session", name, o)
		p.keys = nil
		for _, r := range s.Rows {
			var key api.Object
			for _, i := range r.Key {
				key = append(key, o.values[i])
			}
			p.keys = append(p.keys, r.Table.Name+" "+objectText(key))
		}
	}
	for _, src := range test.Rows {
		name := src.Table.Value
		table := t.plan.Tables[slices.IndexFunc(t.plan.Tables, func(t *ir.Table) bool { return t.Name == name })]
		begin("table", name, &opening{
			key: memberValues(&table.Key, src.Values), values: memberValues(&table.Value, src.Values),
		})
	}
	for _, src := range test.Groups {
		name := src.Group.Value
		g := t.plan.Groups[slices.IndexFunc(t.plan.Groups, func(g *ir.Group) bool { return g.Name == name })]
		o := &opening{key: memberValues(&g.Key, src.Key)}
		for _, r := range src.Receivers {
			o.receivers = append(o.receivers, memberValues(&g.Receivers.Value, r))
		}
		begin("group", name, o)
	}
	return all
}

// memberValues are the values of the members of a structure.
func memberValues(s *ir.Struct, values []*spec.TestValue) (out api.Object) {
	for _, m := range s.Members {
		if !m.Hidden && m.Type.Kind != ir.Translation {
			out = append(out, memberValue(m.Name, m.Type, values))
		}
	}
	return out
}

// memberValue is the value of a member; one that isn't given is 0.
func memberValue(name string, t ir.Type, values []*spec.TestValue) api.Named {
	one := t.One()
	value := spec.Literal{Kind: spec.LitInt}
	switch {
	case one.Kind == ir.Bool:
		value.Kind = spec.LitBool
	case one.HasText():
		value = spec.Literal{Kind: spec.LitString, Text: one.Show(make([]byte, one.Size))}
	}
	for _, v := range values {
		if v.Name.Value == name {
			value = v.Value
		}
	}
	var all []any
	for _, l := range value.All() {
		all = append(all, literalValue(one, l))
	}
	switch {
	case t.Levels == 0:
		return api.Named{Name: name, Value: all[0]}
	case len(all) == 1: // for all levels
		all = slices.Repeat(all, t.Levels)
	}
	return api.Named{Name: name, Value: all}
}

// literalValue is a single value of a test, as a request has it. Of a bucket, a test says how much may be sent at once.
func literalValue(t ir.Type, l spec.Literal) any {
	switch {
	case t.Kind == ir.Bucket:
		return api.Rate{PerSecond: l.Int, Burst: l.Int}
	case l.Kind == spec.LitInt:
		return l.Int
	case l.Kind == spec.LitBool:
		return l.Bool
	}
	return l.Text
}

// programs are those that a packet is sent to, in the order of the spec.
func (t *traffic) programs() []*ir.Program {
	var all []*ir.Program
	for _, p := range t.plan.Programs {
		if slices.ContainsFunc(t.tests, func(test *trafficTest) bool {
			return test.leftOut == "" && test.Program == p
		}) {
			all = append(all, p)
		}
	}
	return all
}

// devices are those that the programs are attached to: where packets come in, one each, from eth0 on; where they
// leave, from eth1 on.
func (t *traffic) devices() []int {
	var all []int
	in, out := 0, 1
	for _, p := range t.programs() {
		next := &in
		if leaves(p) {
			next = &out
		}
		all = append(all, *next)
		*next++
	}
	return all
}

func leaves(p *ir.Program) bool { return p.Hook == "tc/egress" }

// open makes the network.
func (t *traffic) open() (err error) {
	c := lab.Config{
		RelayMAC: packet.DefaultDestination, FarMAC: packet.DefaultSource, Hosts: map[netip.Addr]int{},
		Routes: testrun.UsesRoutes(t.plan),
	}
	for i, p := range t.programs() {
		device := t.devices()[i]
		c.Devices = max(c.Devices, device+1)
		for _, test := range t.tests {
			source := lab.Source(test.Packet.Packet.Data)
			if _, known := c.Hosts[source]; test.Program == p && !leaves(p) && !known && source.IsGlobalUnicast() {
				c.Hosts[source] = device
			}
		}
	}
	if t.net, err = lab.New(c); errors.Is(err, namespace.ErrNotRoot) {
		return &diag.Diagnostic{
			Code: codeRun, Message: "--traffic makes network namespaces, which needs root",
			Hint: "sudo fastrelay-gen run … --traffic",
		}
	}
	return runErrorOrNil(err)
}

func runErrorOrNil(err error) error {
	if err == nil {
		return nil
	}
	return runError(err)
}

// refuse leaves out the tests that a piece of state is for which the relay refuses, and reports whether there are any.
func (t *traffic) refuse(o *opening, err error) bool {
	if t == nil || t.of[o] == nil {
		return false
	}
	why := err.Error()
	if p, ok := errors.AsType[*api.Problem](err); ok {
		why = p.Detail
	}
	for _, test := range t.of[o] {
		test.leftOut = why
	}
	return true
}

// send begins to send, and to give credits to receivers as a server would: once a second what their test gives them.
func (t *traffic) send(ctx context.Context, r *relayRun) error {
	var frames []lab.Frame
	seen := map[string]bool{}
	for i, p := range t.programs() {
		for _, test := range t.tests {
			f := t.frame(test)
			f.Device, f.Leaves = t.devices()[i], leaves(p)
			if id := p.Name + string(f.Data); test.Program == p && test.leftOut == "" && !seen[id] {
				seen[id] = true
				frames = append(frames, f)
			}
		}
	}
	if len(frames) == 0 {
		return &diag.Diagnostic{Code: codeRun, Message: fmt.Sprintf("no packet can be sent: test %q: %s",
			t.tests[0].Test.Name.Value, t.tests[0].leftOut)}
	}
	if err := t.net.Send(frames, t.rate); err != nil {
		return runError(err)
	}
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				r.topUp()
			}
		}
	}()
	return nil
}

// frame is a test's packet, addressed to the relay's device if it is for this host, with a tag in front that the
// kernel will take into the metadata.
func (t *traffic) frame(test *trafficTest) lab.Frame {
	p := test.Packet.Packet
	f := lab.Frame{Data: slices.Clone(p.Data), SumStart: p.Partial.Start, SumField: p.Partial.Field}
	host := packet.DefaultDestination
	switch toHost := [6]byte(f.Data) == host; {
	case leaves(test.Program):
	case p.Link == ir.ToHost:
		copy(f.Data, host[:])
	case p.Link == ir.ToOther && toHost:
		f.Data[5] ^= 0xff
	}
	if p.VLAN != nil {
		tag := []byte{byte(p.VLAN.Proto >> 8), byte(p.VLAN.Proto), byte(p.VLAN.TCI >> 8), byte(p.VLAN.TCI)}
		f.Data = slices.Insert(f.Data, 12, tag...)
		if f.SumField != 0 {
			f.SumStart, f.SumField = f.SumStart+len(tag), f.SumField+len(tag)
		}
	}
	return f
}

// text says what is sent where, and which tests are left out.
func (t *traffic) text() string {
	sent := 0
	var leftOut strings.Builder
	for _, test := range t.tests {
		if test.leftOut == "" {
			sent++
		} else {
			fmt.Fprintf(&leftOut, "left out: %q: %s\n", test.Test.Name.Value, test.leftOut)
		}
	}
	return fmt.Sprintf("network: %s, in network namespaces that are removed at the end\n"+
		"traffic: the packets of %s, %s packets a second in all\n%s",
		t.net.Topology(), plural(sent, "test"), thousands(uint64(t.rate)), &leftOut)
}

// close removes the network, and says what the kernel didn't send.
func (t *traffic) close(a *app) error {
	if t == nil || t.net == nil {
		return nil
	}
	if n, err := t.net.Refused(); n > 0 {
		fmt.Fprintf(a.err, "%s packets were not sent; the first one: %v\n", thousands(n), err)
	}
	return runErrorOrNil(t.net.Close())
}

// topUp gives the credits of receivers what they had at the beginning once more. Buckets refill by themselves.
func (r *relayRun) topUp() {
	receivers, err := r.receivers()
	if err != nil {
		return // the relay has ended
	}
	for _, v := range receivers {
		change := api.ChangeReceiver{ID: v.ID}
		for _, m := range v.group.Values {
			if m.Kind == abi.KindCredit.String() {
				limit := spentAnd(v.Values.Get(m.Name), v.first.Get(m.Name))
				change.Values = append(change.Values, api.Named{Name: m.Name, Value: limit})
			}
		}
		if change.Values != nil { // an error means that the receiver has gone
			_ = r.ask("PATCH", v.group.at(), api.ChangeGroup{Set: []api.ChangeReceiver{change}}, nil)
		}
	}
}

// spentAnd is what a credit has spent, and more; a list of these for a list.
func spentAnd(credit, more any) any {
	if list, ok := more.([]any); ok {
		out := make([]any, len(list))
		for i := range list {
			out[i] = spentAnd(credit.([]any)[i], list[i])
		}
		return out
	}
	return number(credit.(map[string]any)["spent"]) + more.(uint64)
}
