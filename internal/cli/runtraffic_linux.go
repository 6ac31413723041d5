package cli

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// traffic is what `run --traffic` sends: the packets of the spec's tests, in a network of their own (package lab).
// The relay has the tests' settings, sessions, rows and groups at once, so a test whose state contradicts that of an
// earlier test is left out, and so is one with other settings than most.
//
// State is added to the options, as the text that the flags --set, --session, --row and --receiver take.
type traffic struct {
	plan  *ir.Plan
	tests []*trafficTest
	rate  int
	net   *lab.Network

	keys map[string]string         // of rows and groups, and what they have
	of   map[string][]*trafficTest // the tests that a piece of state is for
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

// newTraffic collects the packets of the spec's tests, and adds their state and the places of the programs to the
// options.
func newTraffic(r *build.Result, opt *runOptions) (*traffic, error) {
	packets, diags := spectest.Packets(r.Spec, r.Plan)
	if err := diags.Err(); err != nil {
		return nil, err
	}
	if len(packets) == 0 {
		return nil, usage("the spec has no tests, and --traffic sends the packets of tests").
			hint("write a test, as the spec that fastrelay-gen init writes shows").
			hint("or attach the relay to an interface: --attach PROGRAM=INTERFACE")
	}
	t := &traffic{plan: r.Plan, rate: opt.rate, keys: map[string]string{}, of: map[string][]*trafficTest{}}
	given := len(opt.sessions)+len(opt.rows)+len(opt.receivers) > 0
	settings, chosen := t.settings(packets, opt)
	for _, p := range packets {
		test := &trafficTest{Packet: p, leftOut: unsendable(p)}
		t.tests = append(t.tests, test)
		if test.leftOut != "" {
			continue
		}
		if settings(p.Test) != chosen {
			test.leftOut = "it has other settings than most tests"
		} else if !given {
			t.state(test, opt)
		}
	}
	if !slices.ContainsFunc(t.tests, func(test *trafficTest) bool { return test.leftOut == "" }) {
		return nil, usage("no test of the spec has a packet that can be sent").
			hint("%q: %s", t.tests[0].Test.Name.Value, t.tests[0].leftOut)
	}
	for i, p := range t.programs() {
		opt.attach = append(opt.attach, p.Name+"="+lab.DeviceName(t.devices()[i]))
	}
	return t, nil
}

// unsendable says why a test's packet can't be sent between two hosts, or "".
func unsendable(p spectest.Packet) string {
	switch size := len(p.Packet.Data); {
	case p.Test.Route != nil:
		return "it has a route of its own"
	case p.Test.Lapsed:
		return "the relay's lease has expired in it"
	case size < 14:
		return fmt.Sprintf("its frame has %d bytes, less than an Ethernet header", size)
	case size > lab.MTU+14:
		return fmt.Sprintf("its frame has %d bytes, and the MTU of the network is %d", size, lab.MTU)
	}
	return ""
}

// settings adds to the options the settings that most tests have, as far as none are given. It returns them, and a
// function that gives those of a test, as text.
func (t *traffic) settings(packets []spectest.Packet, opt *runOptions) (of func(*spec.Test) string, chosen string) {
	given := map[string]bool{}
	for _, text := range opt.settings {
		name, _, _ := strings.Cut(text, "=")
		given[name] = true
	}
	of = func(test *spec.Test) string {
		var all []string
		for _, v := range test.Settings {
			if !given[v.Name.Value] {
				all = append(all, v.Name.Value+"="+literalText(v.Value))
			}
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	tests := map[string]int{}
	for _, p := range packets {
		if unsendable(p) == "" {
			tests[of(p.Test)]++
		}
	}
	for _, p := range packets { // the first of those that as many tests have
		if all := of(p.Test); tests[all] > tests[chosen] {
			chosen = all
		}
	}
	opt.settings = append(opt.settings, strings.Fields(chosen)...)
	return of, chosen
}

// piece is a session, a row or a group of a test.
type piece struct {
	flag  *[]string
	texts []string // what the flag takes: of a group, one for each receiver
	keys  []string // what other pieces can't have as well, unless they are the same
}

// state adds the state of a test to the options, or leaves the test out.
func (t *traffic) state(test *trafficTest, opt *runOptions) {
	var pieces []piece
	for _, s := range test.Test.Sessions {
		pieces = append(pieces, t.session(s, opt))
	}
	for _, r := range test.Test.Rows {
		pieces = append(pieces, t.row(r, opt))
	}
	for _, g := range test.Test.Groups {
		pieces = append(pieces, t.group(g, opt))
	}
	for _, p := range pieces {
		for _, key := range p.keys {
			if have, known := t.keys[key]; known && have != strings.Join(p.texts, "\n") {
				test.leftOut = fmt.Sprintf("an earlier test has other values for %s", key)
				return
			}
		}
	}
	for _, p := range pieces {
		for _, key := range p.keys {
			t.keys[key] = strings.Join(p.texts, "\n")
		}
		for _, text := range p.texts {
			if t.of[text] == nil {
				*p.flag = append(*p.flag, text)
			}
			t.of[text] = append(t.of[text], test)
		}
	}
}

func (t *traffic) session(src *spec.TestSession, opt *runOptions) piece {
	name := src.Session.Value
	s := t.plan.Sessions[slices.IndexFunc(t.plan.Sessions, func(s *ir.Session) bool { return s.Name == name })]
	var fields []string
	for _, f := range s.Fields {
		fields = append(fields, valueText(f.Name, f.Type, src.Fields))
	}
	p := piece{flag: &opt.sessions, texts: []string{name + "=" + strings.Join(fields, " ")}}
	for _, r := range s.Rows {
		key := r.Table.Name
		for _, i := range r.Key {
			key += " " + fields[i]
		}
		p.keys = append(p.keys, key)
	}
	return p
}

func (t *traffic) row(src *spec.TestRow, opt *runOptions) piece {
	table := t.plan.Tables[slices.IndexFunc(t.plan.Tables, func(t *ir.Table) bool { return t.Name == src.Table.Value })]
	key, value := membersText(&table.Key, src.Values), membersText(&table.Value, src.Values)
	return piece{
		flag: &opt.rows, texts: []string{strings.TrimSpace(table.Name + "=" + key + " " + value)},
		keys: []string{table.Name + " " + key},
	}
}

func (t *traffic) group(src *spec.TestGroup, opt *runOptions) piece {
	g := t.plan.Groups[slices.IndexFunc(t.plan.Groups, func(g *ir.Group) bool { return g.Name == src.Group.Value })]
	key := membersText(&g.Key, src.Key)
	p := piece{flag: &opt.receivers, keys: []string{g.Name + " " + key}}
	for _, r := range src.Receivers {
		p.texts = append(p.texts, g.Name+"="+key+" / "+membersText(&g.Receivers.Value, r))
	}
	return p
}

// membersText writes the values of the members of a structure: "addr=192.0.2.1 quota=4". Those that are not given are
// 0.
func membersText(s *ir.Struct, values []*spec.TestValue) string {
	var all []string
	for _, m := range s.Members {
		if !m.Hidden && m.Type.Kind != ir.Translation {
			all = append(all, valueText(m.Name, m.Type, values))
		}
	}
	return strings.Join(all, " ")
}

func valueText(name string, t ir.Type, values []*spec.TestValue) string {
	text := zeroText(t.One())
	for _, v := range values {
		if v.Name.Value == name {
			var all []string
			for _, one := range v.Value.All() {
				if text = literalText(one); t.Kind == ir.Bucket { // a test says how much may be sent at once
					text += "/" + text
				}
				all = append(all, text)
			}
			text = strings.Join(all, ",")
		}
	}
	return name + "=" + text
}

func literalText(l spec.Literal) string {
	switch l.Kind {
	case spec.LitInt:
		return fmt.Sprint(l.Int)
	case spec.LitBool:
		return fmt.Sprint(l.Bool)
	}
	return l.Text
}

// zeroText is the text of a value that a test doesn't give.
func zeroText(t ir.Type) string {
	switch t.Kind {
	case ir.Bool:
		return "false"
	case ir.Bucket:
		return "0/0"
	case ir.Mac:
		return "00:00:00:00:00:00"
	case ir.Addr, ir.NextHop:
		return "::"
	case ir.Endpoint:
		return "[::]:0"
	case ir.Prefix:
		return "::/0"
	case ir.Uint, ir.Ctr, ir.Credit:
		return "0"
	}
	return strings.Repeat("00", t.Size)
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
func (t *traffic) refuse(text string, err error) bool {
	if t == nil || t.of[text] == nil {
		return false
	}
	for _, test := range t.of[text] {
		test.leftOut = err.Error()
	}
	return true
}

// send begins to send, and to give credits to receivers as a server would: once a second what their test gives them.
func (t *traffic) send(ctx context.Context, receivers []*receiver) error {
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
				for _, v := range receivers {
					v.topUp()
				}
			}
		}
	}()
	return nil
}

// frame is a test's packet, addressed to the relay's device where it is for this host, with a tag in front that the
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

// arrivalTallies are the packets that arrived at the hosts around the relay.
func arrivalTallies(t *traffic) []tally {
	if t == nil {
		return nil
	}
	var out []tally
	for _, a := range t.net.Arrived() {
		out = append(out, tally{program: "at " + a.Host, kind: kindArrived, reason: a.String(), doc: a.String(),
			packets: a.Packets, bytes: a.Bytes})
	}
	return out
}

// topUp gives a receiver's credits what they had at the beginning once more. Buckets refill by themselves.
func (v *receiver) topUp() {
	for i, first := range v.first {
		switch s := v.handle.State(i).(type) {
		case *runtime.Credit:
			s.SetLimit(s.Spent() + first.(uint64))
		case []*runtime.Credit:
			for level, c := range s {
				c.SetLimit(c.Spent() + first.([]any)[level].(uint64))
			}
		}
	}
}
