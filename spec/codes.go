package spec

import "github.com/fastrelay/fastrelay-gen/internal/diag"

var (
	codeShape = diag.Define("FR0100", "not a spec",
		"The file is CUE, but its members don't have the shape of a spec. See the language reference, docs/language.md.",
		`["turn"]`, `name: "turn"`)
	codeSyntax = diag.Define("FR0101", "not CUE",
		"The file can't be read as CUE: a bracket, a comma or a quotation mark is missing, or there is one too many. The place is where CUE\nnoticed it; the cause may be a line further up.",
		`programs: gate: {hook: "tc/ingress", stack: ["eth"], do: ["pass"]`, `programs: gate: {hook: "tc/ingress", stack: ["eth"], do: ["pass"]}`)
	codeUnknown = diag.Define("FR0102", "unknown word",
		"A member has a name that the language doesn't have in this place.",
		`programs: gate: {hok: "tc/ingress", stack: ["eth"], do: ["pass"]}`, `programs: gate: {hook: "tc/ingress", stack: ["eth"], do: ["pass"]}`)
	codeKind = diag.Define("FR0103", "wrong kind of value",
		"A value is a string, a number, a truth value, a list or a struct where another of these is wanted.",
		`headers: msg: fields: [{name: "kind", bits: "8"}]`, `headers: msg: fields: [{name: "kind", bits: 8}]`)
	codeMissing = diag.Define("FR0104", "something is missing",
		"A member that is needed isn't there.",
		`programs: to_peer: {stack: ["eth"], do: ["pass"]}`, `programs: to_peer: {hook: "tc/ingress", stack: ["eth"], do: ["pass"]}`)
	codeConflict = diag.Define("FR0105", "conflicting values",
		"In CUE a member that is given twice has to have the same value both times.",
		"name: \"gate\"\nname: \"turn\"", `name: "gate"`)
	codeEval = diag.Define("FR0106", "CUE can't compute a value",
		"A reference leads nowhere, an operator doesn't take these values, or a `let` or an import isn't used.",
		"let first = 7000\nsettings: port: {type: \"u16\", default: frist}", "let first = 7000\nsettings: port: {type: \"u16\", default: first}")
	codeImport = diag.Define("FR0107", "import that a spec can't have",
		"A spec is one file, and what it means depends on nothing else. Of CUE's standard library the packages that only compute may be imported:\nencoding/hex, list, math, math/bits, strconv, strings.",
		"import \"tool/exec\"\n\nname: exec.Run", "import \"strings\"\n\nname: strings.ToLower(\"GATE\")")
	codeName = diag.Define("FR0109", "not a name",
		"Names are small letters, digits and _, begin with a letter, and have at most 31 characters. Some words have a meaning of their own in\nexpressions and can't be names there.",
		`tables: ByPeer: {key: peer: "endpoint", value: n: "u8"}`, `tables: by_peer: {key: peer: "endpoint", value: n: "u8"}`)
	codeTwice = diag.Define("FR0110", "declared twice",
		"Two things that are found by their names have the same one.",
		`fields: [{name: "id", bits: 8}, {name: "id", bits: 8}]`, `fields: [{name: "id", bits: 8}, {name: "flags", bits: 8}]`)
	codeOneOf = diag.Define("FR0111", "exactly one is wanted",
		"An action has exactly one key; a field is one of bits, bytes and varint; a test expects one of sent, pass, drop and up; a lookup, a row and a\npacket's layer name one thing each.",
		`do: [{count: "late", drop: "late"}]`, `do: [{count: "late"}, {drop: "late"}]`)
	codeRange = diag.Define("FR0112", "value out of range",
		"A number is outside its range, or a word is none of those that are possible.",
		`{name: "id", bits: 65}`, `{name: "id", bits: 64}`)
	codeExpr = diag.Define("FR0113", "not an expression",
		"An expression has Go's operators and precedence. Its values are integers, names such as udp.src.port, calls such as len(udp.payload), and\nbytes of a field such as msg.id[0].",
		`when: "udp.dst.port = 53"`, `when: "udp.dst.port == 53"`)
	codeConstraint = diag.Define("FR0114", "not a constraint on a packet",
		"What a field has to be is written as CUE: a value, a comparison with one (>=5), several of these with & and |. Types and regular\nexpressions say nothing about a packet.",
		`match: "ip.src": string`, `match: "ip.src": "10.0.0.0/8" | "192.168.0.0/16"`)
	codeLiteral = diag.Define("FR0115", "badly written value",
		"A string doesn't have the form that its place wants: a kernel version (\"5.15\"), a duration (\"30s\"), hexadecimal digits.",
		`kernel: "5"`, `kernel: "5.15"`)
	codeTogether = diag.Define("FR0116", "words that don't go together",
		"A member has a meaning only beside another one, or never beside it.",
		`{name: "length", bits: 16, slack: 3}`, `{name: "length", bits: 16, counts: "payload", slack: 3}`)
	codeIncomplete = diag.Define("FR0117", "a value is wanted",
		"CUE can hold types and ranges where nothing is decided yet. Here the spec has to decide.",
		`tables: t: {key: a: "ip", value: n: "u32", size: >1000}`, `tables: t: {key: a: "ip", value: n: "u32", size: 1024}`)
	codeLimit = diag.Define("FR0118", "too large",
		"The spec is larger than any relay needs, or computing it takes more time or memory than it may.",
		`headers: tag: fields: [for i in list.Range(0, 1000, 1) {name: "f\(i)", bytes: 4}]`,
		`headers: tag: fields: [for i in list.Range(0, 4, 1) {name: "f\(i)", bytes: 4}]`)
	codeFile = diag.Define("FR0119", "the file can't be read",
		"The operating system refuses to read the spec that a Go program loads: it isn't there, is a folder, or this user may not read it. The\ncommand line says FR0515.",
		`spec.LoadFile("relays")`, `spec.LoadFile("relays/spec.cue")`)
)
