package docs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/internal/cli"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// An example of messages.md is a piece of a spec. Its frame is the rest of the spec, with EXAMPLE in the piece's place;
// a piece that doesn't say what is done with packets passes them.
const (
	whole = "EXAMPLE\n"
	top   = "name: \"example\"\nEXAMPLE\n"
	field = "name: \"example\"\nheaders: msg: fields: [\n\tEXAMPLE\n\t{name: \"more\", bits: 64}]\n"
	turn  = `
headers: channel_data: fields: [
	{name: "number", bits: 16, is: >=0x4000 & <=0x7FFF}, {name: "length", bits: 16, counts: "payload", slack: 3},
]
sessions: channel: {
	fields: {client: "endpoint", server: "endpoint", number: "u16", relayed: "endpoint", peer: "endpoint"}
	rows: {
		by_channel: {key: ["client", "server", "number"], value: ["relayed", "peer"]}
		by_peer: {key: ["peer", "relayed"], value: ["client", "server", "number"]}
	}
}
`
	viewers = `
groups: viewers: {
	key: server: "endpoint"
	receiver: {local: "endpoint", remote: "endpoint", credits: "credit[priority]"}
}
priority: {levels: 8, from: "ip.dscp >> 3"}
`
	rtp = `
headers: rtp: fields: [
	{name: "version", bits: 2, is: 2}, {name: "reserved", bits: 2}, {name: "csrcs", bits: 4}, {name: "words", bits: 8},
	{name: "sequence", bits: 16}, {name: "csrc_list", bytes: "csrcs * 4", max: 60},
	{name: "extensions", bytes: "words * 4", max: 128, elements: [{id: 4, bias: 1, pad: 0, stop: 15}]},
]
events: sent: fields: number: "u16"
`
)

// program frames a piece of a program; rest is what the program has besides.
func program(declarations, stack, rest string) string {
	return "name: \"example\"\n" + declarations + "programs: p: {\n\thook: \"tc/ingress\"\n\tstack: [" + stack +
		"]\n\t" + rest + "\n\tEXAMPLE\n}\n"
}

// tested frames a piece of a test.
func tested(rest string) string {
	return `name: "example"
headers: channel_data: fields: [{name: "number", bits: 16}, {name: "length", bits: 16, counts: "payload"}]
settings: port: {type: "u16", default: 7000}
tables: sources: {key: addr: "ip", value: n: "u32"}
sessions: flow: {fields: {client: "endpoint", id: "u16"}, rows: flows: {key: ["client"], value: ["id"]}}
groups: subscribers: {key: stream: "u16", receiver: {local: "endpoint", remote: "endpoint"}}
events: sent: fields: sequence: "u16"
programs: to_peer: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp", "channel_data"]
	when: "udp.dst_port == setting.port"
	lookup: {s: sources: ["ip.src"], f: flows: ["udp.src"]}
	do: [
		{emit: sent: sequence: "channel_data.number"},
		{fan_out: {group: subscribers: ["udp.dst_port"], each: [{send: {from: "r.local", to: "r.remote"}}]}},
	]
}
tests: "example": {
	program: "to_peer"
	` + rest + `
	EXAMPLE
}
`
}

const (
	ip, udp  = `"eth", "ip"`, `"eth", "ip", "udp"`
	toPeer   = `lookup: ch: by_channel: ["udp.src", "udp.dst", "channel_data.number"]`
	toClient = `lookup: ch: by_peer: ["udp.src", "udp.dst"]`
	toTurn   = `"eth", "ip", "udp", "channel_data"`
	packet   = `packet: [{eth: {}}]`
	up       = "\n\texpect: up: true"
)

var frames = map[diag.Code]string{
	"FR0100": whole, "FR0101": top, "FR0102": top, "FR0103": top, "FR0104": top, "FR0105": whole, "FR0106": top,
	"FR0107": whole, "FR0109": top,
	"FR0110": "name: \"example\"\nheaders: msg: {\n\tEXAMPLE\n}\n",
	"FR0111": program("", udp, ""),
	"FR0112": field,
	"FR0113": program("", udp, ""), "FR0114": program("", udp, ""),
	"FR0115": top, "FR0116": field, "FR0117": top, "FR0120": top, "FR0118": "import \"list\"\n\n" + top,

	"FR0201": program(turn, toTurn, `do: [{pop: "channel_data"}, {send: {from: "ch.relayed", to: "ch.peer"}}]`),
	"FR0202": program("", udp, ""),
	"FR0203": top +
		`programs: p: {hook: "tc/ingress", stack: ["eth", "ip", "udp", "tag"], lookup: f: flows: ["tag.id"], ` +
		`do: [{send: {from: "udp.dst", to: "f.peer"}}]}`,
	"FR0204": top, "FR0205": top,
	"FR0206": "name: \"example\"\nprograms: p: {hook: \"tc/ingress\", do: [\"pass\"]\n\tEXAMPLE\n}\n",
	"FR0207": "name: \"example\"\nheaders: {x: fields: [{name: \"kind\", bits: 8, is: 1}], y: fields: [{name: " +
		"\"kind\", bits: 8, is: 2}]}\n" +
		"programs: p: {hook: \"tc/ingress\", do: [\"pass\"]\n\tEXAMPLE\n}\n",
	"FR0208": program(turn, udp,
		`do: [{push: channel_data: number: "ch.number"}, {send: {from: "ch.server", to: "ch.client"}}]`),
	"FR0209": program(`tables: conns: {key: who: "endpoint", value: packets: "counter"}`+"\n", udp,
		`lookup: "conn?": conns: ["udp.src"]`),
	"FR0210": program("", udp, ""), "FR0211": program("", udp, ""),
	"FR0212": program(turn, udp, toClient),
	"FR0213": top + "headers: first: fields: [{name: \"kind\", bits: 8, is: 1}]\n" +
		`programs: p: {hook: "tc/ingress", stack: ["eth", "ip", "udp", "first", "second"]}`,
	"FR0214": program(turn, toTurn, toPeer),
	"FR0215": top + `programs: p: {hook: "tc/ingress", stack: ["eth"], do: ["pass"]}`,
	"FR0216": "name: \"example\"\nheaders: msg: {\n\tEXAMPLE\n}\n",
	"FR0217": program("", ip, ""),
	"FR0218": program("tables: limits: {key: who: \"endpoint\", value: n: \"u8\"}\n", udp,
		`lookup: ch: limits: ["udp.src"]`),
	"FR0219": program("tables: seen: {kind: \"lru\", key: who: \"endpoint\", value: to: \"endpoint\"}\n"+
		"sessions: call: {fields: {a: \"endpoint\", n: \"u8\", b: \"endpoint\"}, rows: calls: {key: [\"a\", \"n\"], "+
		"value: [\"b\"]}}\n", udp, ""),
	"FR0220": program("headers: msg: fields: [{name: \"kind\", bits: 8}, {name: \"more\", bits: 8}, {name: \"id\", "+
		"bits: 8, when: \"more == 1\"}]\n", udp+`, "msg"`, ""),
	"FR0221": program("", udp, ""),
	"FR0222": program(viewers, udp, ""),
	"FR0223": strings.Replace(program(viewers, udp, ""), "EXAMPLE",
		"do: [{fan_out: {group: viewers: [\"udp.dst\"], rules: [{\n\tEXAMPLE\n}]}}]", 1),
	"FR0224": program(rtp, udp+`, "rtp"`, ""),
	"FR0225": program("headers: short: fields: [{name: \"number\", bits: 32}]\ntables: rows: {key: who: "+
		"\"endpoint\", value: next: \"counter\"}\n",
		udp+`, "short"`, `lookup: r: rows: ["udp.src"]`),
	"FR0226": top + `programs: p: {hook: "tc/ingress", stack: ["eth", "ip"], do: ["pass"]}`,
	"FR0227": program(rtp, udp+`, "rtp"`, ""),
	"FR0228": top,
	"FR0229": program("", udp, ""),
	"FR0240": top +
		`programs: p: {hook: "tc/ingress", stack: ["eth", "ip", "udp"], when: "udp.dst_port == setting.port", ` +
		`do: ["pass"]}`,
	"FR0241": whole,
	"FR0242": program("", udp, ""),
	"FR0243": program("headers: msg: fields: [{name: \"id\", bits: 16, is: >=10}]\n", udp+`, "msg"`, ""),
	"FR0244": program("headers: tag: fields: [{name: \"id\", bits: 32}]\n"+
		"tables: seen: {kind: \"lru\", key: id: \"u32\", value: at: \"endpoint\"}\n", udp+`, "tag"`, ""),
	"FR0245": "name: \"example\"\nprograms: p: {\n\tEXAMPLE\n}\n",
	"FR0246": "name: \"example\"\nprograms: p: {\n\tEXAMPLE\n}\n",

	"FR0301": strings.Replace(tested(""), "tests: \"example\": {\n\tprogram: \"to_peer\"\n\t\n\tEXAMPLE\n}\n",
		"EXAMPLE\n", 1),
	"FR0302": tested(packet + up), "FR0303": tested(packet + up), "FR0304": tested(packet),
	"FR0305": tested(packet + up), "FR0306": tested(packet + up),
	"FR0307": tested(packet + up), "FR0308": tested(packet + up), "FR0309": tested(packet),
	"FR0310": tested(up), "FR0311": tested(up), "FR0312": tested(up), "FR0313": tested(up),
}

// What an example can't show as it happens: a fault of this program, and what a machine refuses.
var toldOnly = map[diag.Code]string{
	"FR0504": "a plan that contradicts itself is a fault of the compiler",
	"FR0299": "a plan that the compiler can't vouch for is a fault of its own",
	"FR0518": "a disk that is full",
	"FR0901": "C that clang refuses is a fault of the compiler",
	"FR0902": "a kernel that is too old",
	"FR0904": "what fills the stack takes pages, and is another spec for each version of clang",
	"FR0905": "what the verifier doesn't follow takes pages, and is another spec for each kernel",
}

// framed makes a whole spec of an example.
func framed(frame, example string) string {
	if strings.HasPrefix(strings.TrimSpace(example), "{name:") {
		example += ","
	}
	text := strings.Replace(frame, "EXAMPLE", example, 1)
	if strings.Contains(frame, "programs: p: {\n") && !regexp.MustCompile(`\b(do|rules): \[`).MatchString(text) {
		text = strings.Replace(text, "programs: p: {\n", "programs: p: {\n\tdo: [\"pass\"]\n", 1)
	}
	return text
}

// said returns all that loading, compiling and checking a spec says.
func said(text string) []*diag.Diagnostic {
	s, list := spec.Load("example.cue", []byte(text))
	if list.Len() > 0 {
		return list.All()
	}
	plan, list := gen.Compile(s)
	if list.Len() == 0 {
		list.Append(spectest.Check(s, plan))
	}
	return list.All()
}

// Every wrong example gets its message, and no other error; every right one gets none.
func TestExamplesOfMessages(t *testing.T) {
	for _, i := range diag.Infos() {
		t.Run(string(i.Code), func(t *testing.T) {
			switch frame := frames[i.Code]; {
			case toldOnly[i.Code] != "":
				if frame != "" {
					t.Error("it has a frame, and isn't tried")
				}
			case i.Wrong == "" || i.Right == "":
				t.Error("there is no example")
			case strings.HasPrefix(i.Wrong, "$ "):
				if frame != "" {
					t.Error("it has a frame, and is a command")
				}
				commands(t, i)
			case strings.HasPrefix(i.Wrong, "spec.LoadFile("):
				files(t, i)
			case frame == "":
				t.Error("no frame for its examples: docs/examples_test.go")
			default:
				wrong, found := framed(frame, i.Wrong), false
				for _, d := range said(wrong) {
					found = found || d.Code == i.Code
					if d.Code != i.Code && !d.Warning {
						t.Errorf("the wrong example gets another message: %v\n%s", d, wrong)
					}
				}
				if !found {
					t.Errorf("the wrong example doesn't get its message:\n%s", wrong)
				}
				right := framed(frame, i.Right)
				for _, d := range said(right) {
					if !d.Warning || d.Code == i.Code {
						t.Errorf("the right example gets a message: %v\n%s", d, right)
					}
				}
			}
		})
	}
}

// captures are those of package capture's tests.
var captures, _ = filepath.Abs("../internal/capture/testdata") // an error shows where they are read

// place puts a capture into the workplace.
func place(t *testing.T, capture string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(captures, capture))
	if err == nil {
		err = os.WriteFile("capture.pcapng", text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// workplace is a folder to run commands in.
func workplace(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	text := strings.Replace(program("headers: channel_data: fields: [{name: \"number\", bits: 16}]\nsettings: port: "+
		"{type: \"u16\", default: 7000}\n", toTurn, ""),
		"EXAMPLE", "when: \"udp.dst_port == setting.port\"\n\tdo: [\"pass\"]", 1)
	text = strings.ReplaceAll(text, "programs: p:", "programs: gate:")
	for name, content := range map[string]string{"spec.cue": text, "relays/spec.cue": text} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	place(t, "dumpcap.pcapng")
}

// commands runs the examples of a code of the command line. What `run` does when all is right takes a device: the
// scripts of internal/cli show it.
func commands(t *testing.T, i diag.Info) {
	path := os.Getenv("PATH")
	for _, example := range []struct {
		text  string
		right bool
	}{{i.Wrong, false}, {i.Right, true}} {
		workplace(t)
		if !example.right {
			spoil(t, i.Code)
		}
		status, out := 0, &bytes.Buffer{}
		ran := 0
		for _, line := range strings.Split(example.text, "\n") {
			line, _, _ = strings.Cut(line, " #")
			args, ok := strings.CutPrefix(strings.TrimPrefix(strings.TrimPrefix(line, "$ "), "sudo "), "fastrelay-gen ")
			if !ok || !strings.HasPrefix(line, "$ ") || example.right && strings.HasPrefix(args, "run ") {
				continue
			}
			ran++
			status = cli.Do(strings.Fields(args), strings.NewReader(""), out, out)
		}
		t.Setenv("PATH", path)
		switch found := strings.Contains(out.String(), "["+string(i.Code)+"]"); {
		case example.right && (status != 0 || found):
			t.Errorf("the right example ends with status %d:\n%s\n%s", status, example.text, out)
		case !example.right && (ran == 0 || status == 0 || !found):
			t.Errorf("the wrong example ends with status %d, without its message:\n%s\n%s", status, example.text, out)
		}
	}
}

// spoil makes a workplace what a wrong example says that it is.
func spoil(t *testing.T, code diag.Code) {
	write := func(name, text string, mode os.FileMode) {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	switch code {
	case "FR0531":
		place(t, "short.pcap")
	case "FR0501":
		write("turnrelay/relay.go", "package turnrelay // written by hand\n", 0o644)
	case "FR0519":
		write("spec.cue", "name: \"gate\"\nprograms: gate: {hook: \"tc/ingress\", stack: [\"eth\", \"ip\", \"udp\"], "+
			"do: [\"pass\"]}\n", 0o644)
	case "FR0903":
		write("bin/clang", "#!/bin/sh\necho clang version 11.0.1\n", 0o755)
		dir, err := filepath.Abs("bin")
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir)
	}
}

// files loads what the examples of a code of package spec load.
func files(t *testing.T, i diag.Info) {
	workplace(t)
	name := regexp.MustCompile(`^spec\.LoadFile\("(.*)"\)$`)
	for _, example := range []struct {
		text  string
		right bool
	}{{i.Wrong, false}, {i.Right, true}} {
		m := name.FindStringSubmatch(example.text)
		if m == nil {
			t.Fatalf("not understood: %s", example.text)
		}
		_, list := spec.LoadFile(m[1])
		if example.right != (list.Len() == 0) || !example.right && list.All()[0].Code != i.Code {
			t.Errorf("%s: %v", example.text, list.Err())
		}
	}
}
