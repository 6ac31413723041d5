package spec

import "github.com/fastrelay/fastrelay-gen/internal/diag"

var (
	codeShape = diag.Define("FR0100", "not a spec",
		"The file is CUE, but its members aren't those of a spec. See the language reference,\n"+
			"docs/language.md.",
		`["turn"]`, `name: "turn"`)
	codeSyntax = diag.Define("FR0101", "not CUE",
		"The file can't be parsed as CUE: a bracket, a comma or a quotation mark is missing or extra. The\n"+
			"position is where CUE detected it; the cause may be a line further up.",
		`programs: gate: {hook: "tc/ingress", stack: ["eth"], do: ["pass"]`,
		`programs: gate: {hook: "tc/ingress", stack: ["eth"], do: ["pass"]}`)
	codeUnknown = diag.Define("FR0102", "unknown member",
		"A member has a name that the language doesn't have in this place.",
		`programs: gate: {hok: "tc/ingress", stack: ["eth"], do: ["pass"]}`,
		`programs: gate: {hook: "tc/ingress", stack: ["eth"], do: ["pass"]}`)
	codeKind = diag.Define("FR0103", "wrong kind of value",
		"A value is a string, a number, a boolean, a list or a struct where another kind is required.",
		`headers: msg: fields: [{name: "kind", bits: "8"}]`, `headers: msg: fields: [{name: "kind", bits: 8}]`)
	codeMissing = diag.Define("FR0104", "a required member is missing",
		"A member that is required here is missing.",
		`programs: to_peer: {stack: ["eth"], do: ["pass"]}`,
		`programs: to_peer: {hook: "tc/ingress", stack: ["eth"], do: ["pass"]}`)
	codeConflict = diag.Define("FR0105", "conflicting values",
		"In CUE, a member that is given twice must have the same value both times.",
		"name: \"gate\"\nname: \"turn\"", `name: "gate"`)
	codeEval = diag.Define("FR0106", "CUE can't compute a value",
		"A reference refers to nothing, an operator doesn't accept its operands, or a `let` or an import\n"+
			"isn't used.",
		"let first = 7000\nsettings: port: {type: \"u16\", default: frist}",
		"let first = 7000\nsettings: port: {type: \"u16\", default: first}")
	codeImport = diag.Define("FR0107", "import that a spec can't have",
		"A spec is one file, and doesn't depend on anything else. It may import the packages of CUE's\n"+
			"standard library that only compute: encoding/hex, list, math, math/bits, strconv, strings; and the\n"+
			"schema of this language, of which the compiler has its own copy, for editors (docs/tools.md#editors).",
		"import \"tool/exec\"\n\nname: exec.Run", "import \"strings\"\n\nname: strings.ToLower(\"GATE\")")
	codeName = diag.Define("FR0109", "not a name",
		"Names consist of lower-case letters, digits and _, begin with a letter, and have at most 31\n"+
			"characters. Some words have a meaning in expressions, and can't be names there.",
		`tables: ByPeer: {key: peer: "endpoint", value: n: "u8"}`,
		`tables: by_peer: {key: peer: "endpoint", value: n: "u8"}`)
	codeTwice = diag.Define("FR0110", "declared twice",
		"Two declarations that are referred to by name have the same name.",
		`fields: [{name: "id", bits: 8}, {name: "id", bits: 8}]`,
		`fields: [{name: "id", bits: 8}, {name: "flags", bits: 8}]`)
	codeOneOf = diag.Define("FR0111", "exactly one is required",
		"An action has exactly one member; a field has one of bits, bytes and varint; a test expects one of\n"+
			"sent, pass, drop and up; a lookup, a row and a packet's layer name one thing each.",
		`do: [{count: "late", drop: "late"}]`, `do: [{count: "late"}, {drop: "late"}]`)
	codeRange = diag.Define("FR0112", "value out of range",
		"A number is out of its range, or a word is not one of the allowed words.",
		`{name: "id", bits: 65}`, `{name: "id", bits: 64}`)
	codeExpr = diag.Define("FR0113", "not an expression",
		"An expression has Go's operators and precedence. Its operands are integers, names such as\n"+
			"udp.src.port, calls such as len(udp.payload), and bytes of a field such as msg.id[0].",
		`when: "udp.dst.port = 53"`, `when: "udp.dst.port == 53"`)
	codeConstraint = diag.Define("FR0114", "not a constraint on a packet",
		"The values that a field must have are written in CUE: a value, a comparison (>=5), or several of\n"+
			"these combined with & and |. Types and regular expressions can't be compared with a packet.",
		`match: "ip.src": string`, `match: "ip.src": "10.0.0.0/8" | "192.168.0.0/16"`)
	codeLiteral = diag.Define("FR0115", "malformed value",
		"A string doesn't have the required form: a kernel version (\"5.15\"), a duration (\"30s\"), hexadecimal\n"+
			"digits.",
		`kernel: "5"`, `kernel: "5.15"`)
	codeTogether = diag.Define("FR0116", "members that exclude or need each other",
		"A member has a meaning only together with another one, or never together with it.",
		`{name: "length", bits: 16, slack: 3}`, `{name: "length", bits: 16, counts: "payload", slack: 3}`)
	codeIncomplete = diag.Define("FR0117", "a concrete value is required",
		"CUE may leave a value open, as a type or a range. Here the spec has to give a value.",
		`tables: t: {key: a: "ip", value: n: "u32", size: >1000}`,
		`tables: t: {key: a: "ip", value: n: "u32", size: 1024}`)
	codeLimit = diag.Define("FR0118", "too large",
		"The spec is larger than a spec may be, or evaluating it takes more time or memory than allowed.",
		`headers: tag: fields: [for i in list.Range(0, 1000, 1) {name: "f\(i)", bytes: 4}]`,
		`headers: tag: fields: [for i in list.Range(0, 4, 1) {name: "f\(i)", bytes: 4}]`)
	codeFile = diag.Define("FR0119", "the file can't be read",
		"The operating system can't read the spec that a Go program loads: there is no such file, it is a\n"+
			"folder, or this user may not read it. The command line reports FR0515 instead.",
		`spec.LoadFile("relays")`, `spec.LoadFile("relays/spec.cue")`)
	codeLanguage = diag.Define("FR0120", "unknown version of the language",
		"`language` names the version of the language that a spec is written in. A version is a number that only "+
			"changes where an existing\n"+
			"spec would mean something else. This spec asks for one that this tool doesn't know: a newer tool "+
			"knows it.",
		"language: 2",
		"language: 1")
)
