//go:build linux

// Package drive runs generated Go: it calls every function and method of generated packages on relays in the kernel,
// by reflection, and compares what they do with the bytes of the kernel's maps. Where these are it takes from the
// description of the relay that the compiler makes, and it reads and writes them by code of its own, not the runtime's.
//
// A program that imports generated packages calls Main; [Packages] makes it.
package drive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// Job is what a driver does.
type Job struct {
	Pins     string // a folder of a BPF file system
	Device   string // an interface for programs
	Packages []Package
}

// Package is a generated package.
type Package struct {
	Name     string // of the spec's folder
	Object   string // a file
	Desc     abi.Desc
	Settings []abi.Setting // which Desc has, and its JSON leaves out
	API      []string      // what it exports: "Load", "Relay.Close", in its order
}

// Main drives the packages of the job in a file, given by their functions Load. It prints what is wrong.
func Main(loads map[string]any) {
	text, err := os.ReadFile(os.Args[1])
	var job Job
	if err == nil {
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.UseNumber() // defaults of settings stay exact
		err = dec.Decode(&job)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	wrong := 0
	for i := range job.Packages {
		d := &driver{
			Package: &job.Packages[i], job: &job, at: i, load: reflect.ValueOf(loads[job.Packages[i].Name]),
			called: map[string]bool{}, typed: map[string]reflect.Type{}, rng: rand.New(rand.NewPCG(1, uint64(i))),
		}
		for _, text := range d.run() {
			fmt.Printf("%s: %s\n", d.Name, text)
			wrong++
		}
	}
	if wrong > 0 {
		os.Exit(1)
	}
}

// driver drives one package.
type driver struct {
	*Package
	job  *Job
	at   int
	load reflect.Value
	rng  *rand.Rand

	relay  reflect.Value // *Relay
	rt     *runtime.Relay
	maps   map[string]*ebpf.Map
	called map[string]bool
	typed  map[string]reflect.Type // instances of generic types of the runtime, by name
	wrong  []string

	receivers map[uint32]reflect.Value // that are there, by identity
	next      int                      // how many values were made
}

func (d *driver) errorf(format string, args ...any) {
	d.wrong = append(d.wrong, fmt.Sprintf(format, args...))
}

// stop ends the drive of a package.
type stop struct{ error }

// must ends the drive if something has failed that all else depends on.
func (d *driver) must(what string, err error) {
	if err != nil {
		panic(stop{fmt.Errorf("%s: %w", what, err)})
	}
}

func (d *driver) run() []string {
	defer d.end()
	func() {
		defer func() {
			switch v := recover().(type) {
			case nil:
			case stop:
				d.errorf("%v", v)
			default:
				d.errorf("panic: %v\n%s", v, debug.Stack())
			}
		}()
		d.open()
		d.counters()
		field := 0 // of the relay; the first ones aren't exported
		next := func() reflect.Value {
			for !d.relay.Elem().Type().Field(field).IsExported() {
				field++
			}
			field++
			return d.relay.Elem().Field(field - 1)
		}
		for i := range d.Desc.Programs {
			d.program(next(), &d.Desc.Programs[i])
		}
		for _, t := range d.tablesOfTheirOwn() {
			d.table(next(), t)
		}
		for i := range d.Desc.Sessions {
			d.session(next(), &d.Desc.Sessions[i])
		}
		for i := range d.Desc.Groups {
			d.group(next(), &d.Desc.Groups[i])
		}
		d.events()
		for range 2 {
			d.ok(d.relay, "Close")
		}
		for _, name := range d.API {
			if !d.called[name] {
				d.errorf("%s: nothing has called it", name)
			}
		}
		for name, typ := range d.typed {
			for i := range typ.NumMethod() {
				if method := name + "." + typ.Method(i).Name; !d.called[method] {
					d.errorf("%s: nothing has called it", method)
				}
			}
		}
	}()
	return d.wrong
}

// end leaves nothing behind.
func (d *driver) end() {
	for _, m := range d.maps {
		m.Close()
	}
	if d.rt != nil {
		d.rt.Close()
	}
	os.RemoveAll(d.pins())
}

func (d *driver) pins() string { return filepath.Join(d.job.Pins, fmt.Sprint(d.at)) }

func (d *driver) tablesOfTheirOwn() (out []*abi.Table) {
	for i := range d.Desc.Tables {
		if t := &d.Desc.Tables[i]; t.Session == "" {
			out = append(out, t)
		}
	}
	return out
}

// call calls a method, and notes that.
func (d *driver) call(of reflect.Value, method string, args ...any) []reflect.Value {
	typ := of.Type()
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	m := of.MethodByName(method)
	if !m.IsValid() {
		panic(stop{fmt.Errorf("%s has no method %s", typ.Name(), method)})
	}
	d.called[typ.Name()+"."+method] = true
	if strings.HasPrefix(typ.String(), "runtime.") && !strings.HasPrefix(typ.Name(), "Program[") {
		d.typed[typ.Name()] = of.Type()
	}
	var in []reflect.Value
	for _, a := range args {
		v, is := a.(reflect.Value)
		if !is {
			v = reflect.ValueOf(a)
		}
		in = append(in, v)
	}
	return m.Call(in)
}

// ok calls a method that mustn't return an error, and returns what else it returns.
func (d *driver) ok(of reflect.Value, method string, args ...any) []reflect.Value {
	out := d.call(of, method, args...)
	d.must(fmt.Sprintf("%s.%s", of.Type(), method), asError(out[len(out)-1]))
	return out[:len(out)-1]
}

// fails calls a method that must return a certain error.
func (d *driver) fails(want error, of reflect.Value, method string, args ...any) {
	out := d.call(of, method, args...)
	if err := asError(out[len(out)-1]); !errors.Is(err, want) {
		d.errorf("%s.%s: the error is %v, not %v", of.Type(), method, err, want)
	}
}

func asError(v reflect.Value) error {
	err, _ := v.Interface().(error)
	return err
}

// same compares what a function returned.
func (d *driver) same(what string, got, want any) {
	if !reflect.DeepEqual(got, want) {
		d.errorf("%s: %v, not %v", what, got, want)
	}
}

// open loads the relay with a value for each setting and option, and looks for them.
func (d *driver) open() {
	opt := reflect.New(d.load.Type().In(0)).Elem()
	set := func(field string, v any) { opt.FieldByName(field).Set(reflect.ValueOf(v)) }
	set("PinPath", d.pins())
	set("Lease", 77*time.Second)
	set("Logger", slog.New(slog.DiscardHandler))
	if name := fmt.Sprintf("fr%d_%d", os.Getpid(), d.at); opt.FieldByName("Algorithm").IsValid() {
		set("Algorithm", name)
	}
	settings := opt.FieldByName("Settings")
	var raw [][]byte
	for i, s := range d.Settings {
		f := settings.Field(i)
		typ := f.Type()
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		v, b := d.value(abi.Member{Kind: s.Kind, Bits: s.Bits, Size: s.Size}, typ, true, [][2]uint64{{s.Min, s.Max}})
		raw = append(raw, b)
		if f.Kind() == reflect.Pointer {
			p := reflect.New(typ)
			p.Elem().Set(v)
			v = p
		}
		f.Set(v)
	}
	out := d.load.Call([]reflect.Value{opt})
	d.called["Load"] = true
	d.must("Load", asError(out[1]))
	d.relay = out[0]
	d.rt = d.call(d.relay, "Runtime")[0].Interface().(*runtime.Relay)
	if length, _ := d.rt.Lease(); length != 77*time.Second {
		d.errorf("the lease is %v", length)
	}
	desc := *d.rt.Desc()
	d.same("the description's settings", text(desc.Settings), text(d.Settings))
	d.same("the description", text(desc), text(d.Desc))
	d.maps = map[string]*ebpf.Map{}
	for _, m := range desc.Maps() {
		if !m.Pinned || m.Name == abi.MapCongestion {
			continue
		}
		opened, err := ebpf.LoadPinnedMap(filepath.Join(d.pins(), "live", m.Name), nil)
		d.must(m.Name, err)
		d.maps[m.Name] = opened
	}
	d.settings(raw)
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// settings looks for the values of settings in the read-only data of the programs.
func (d *driver) settings(raw [][]byte) {
	if len(raw) == 0 {
		return
	}
	spec, err := ebpf.LoadCollectionSpec(d.Object)
	d.must("the object", err)
	var data []byte
	for _, p := range d.rt.Programs() {
		if p.Kernel() == nil {
			continue
		}
		info, err := p.Kernel().Info()
		d.must("a program", err)
		ids, _ := info.MapIDs()
		for _, id := range ids {
			m, err := ebpf.NewMapFromID(id)
			d.must("a program's map", err)
			if about, err := m.Info(); err == nil && strings.HasSuffix(about.Name, ".rodata") {
				data = d.get(m, make([]byte, 4))
			}
			m.Close()
		}
	}
	for i, s := range d.Settings {
		v := spec.Variables[abi.SettingPrefix+s.Name]
		if off := int(v.Offset); data != nil && !bytes.Equal(data[off:off+s.Size], raw[i]) {
			d.errorf("setting %q is %x, not %x", s.Name, data[off:off+s.Size], raw[i])
		}
	}
}

// counters reads the named counters.
func (d *driver) counters() {
	if len(d.Desc.Counters) == 0 {
		return
	}
	var want []any
	for i := range d.Desc.Counters {
		want = append(want, d.perCPU(abi.MapNamed, i, 0)[0])
	}
	d.same("Counters", values(d.ok(d.relay, "Counters")[0]), want)
}

// values are the fields of a structure.
func values(v reflect.Value) (out []any) {
	for i := range v.NumField() {
		out = append(out, v.Field(i).Interface())
	}
	return out
}

// program attaches and counts.
func (d *driver) program(p reflect.Value, desc *abi.Program) {
	if desc.Hook == abi.HookCongestion {
		d.congestion()
	} else {
		d.ok(p, "Attach", d.job.Device)
		d.ok(p, "Detach", d.job.Device)
		d.ok(p, "Attach", d.job.Device)
		d.ok(d.relay, "DetachAll")
		if all := p.Interface().(interface{ Attachments() []runtime.Attachment }).Attachments(); len(all) > 0 {
			d.errorf("attached after DetachAll: %v", all)
		}
	}
	count, _ := p.Type().MethodByName("Count")
	for i, r := range desc.Reasons {
		reason := reflect.ValueOf(i).Convert(count.Type.In(1))
		about := d.call(reason, "Desc")[0].Interface().(abi.Reason)
		d.same(desc.Name+": what a reason is", []any{about.Name, about.Kind}, []any{r.Name, r.Kind})
		d.same(desc.Name+": a reason's name", d.call(reason, "String")[0].String(), r.Name)
		n := d.perCPU(abi.MapReasons, desc.Base+desc.Reasons[i].Number, abi.ReasonPackets, abi.ReasonBytes)
		d.same(desc.Name+", "+r.Name, d.ok(p, "Count", reason)[0].Interface(),
			runtime.Count{Packets: n[0].(uint64), Bytes: n[1].(uint64)})
	}
	if len(desc.Reasons) == 0 { // it has nothing to count
		reason := reflect.Zero(count.Type.In(1))
		d.call(reason, "Desc")
		d.call(reason, "String")
		d.call(p, "Count", reason)
	}
}

// congestion registers a congestion control.
func (d *driver) congestion() {
	algorithm := fmt.Sprintf("fr%d_%d", os.Getpid(), d.at)
	known := func() bool {
		all, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
		d.must("the kernel's congestion controls", err)
		return slices.Contains(strings.Fields(string(all)), algorithm)
	}
	d.ok(d.relay, "Register")
	if !known() {
		d.errorf("Register: the kernel knows no %s", algorithm)
	}
	d.ok(d.relay, "Unregister")
	if known() {
		d.errorf("Unregister: the kernel still knows %s", algorithm)
	}
	d.ok(d.relay, "DetachAll")
}

// background is the context of all calls.
var background = reflect.ValueOf(context.Background())
