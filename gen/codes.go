package gen

import "github.com/fastrelay/fastrelay-gen/internal/diag"

var (
	codeUnknownName = diag.Define("FR0201", "unknown name",
		"A name in an expression, a key, a stack or an action is not declared. Names are those of headers in the stack (or what the\nstack calls them), of their fields and parts, of lookups, and `setting.NAME`.",
		`lookup: ch: by_channel: ["udp.src", "udp.dst", "channel_data.chanel"]`, `lookup: ch: by_channel: ["udp.src", "udp.dst", "channel_data.number"]`)
	codeType = diag.Define("FR0202", "types don't fit",
		"A value is used where another type is wanted: an integer for an address, a condition for an integer, an endpoint for a port.",
		`when: "ip.src == 5"`, `match: "ip.src": "192.0.2.1"`)
	codeRange = diag.Define("FR0203", "a value may not fit",
		"A value is stored in a field or member that is narrower than the value may be. Make the field or member wider, as a key or an identifier\nneeds it; or make the value provably small. A number that may wrap around, such as a sequence number to which something is added, is cut\nwith low(x, n), the n lowest bits of x. Never cut a key so: flow 65543 would be flow 7.",
		"headers: tag: fields: [{name: \"id\", bits: 32}]\ntables: flows: {key: id: \"u16\", value: peer: \"endpoint\"} // looked up by tag.id",
		"headers: tag: fields: [{name: \"id\", bits: 32}]\ntables: flows: {key: id: \"u32\", value: peer: \"endpoint\"} // looked up by tag.id")
	codeBadType = diag.Define("FR0204", "unknown or unfit type",
		"Types are u1 to u64, bool, bytesN, mac, ip, endpoint, prefix, next_hop, counter, credit, credits, bucket, buckets, translation. Some have no\nplace in a key, a setting or a session.",
		`tables: ways: {key: dst: "prefix", value: way: "next_hop"}`, `tables: ways: {key: dst: "ip", value: way: "next_hop"}`)
	codeTable = diag.Define("FR0205", "a table that can't be",
		"A table's kind, key and value have to fit together: an lpm table has one key of type prefix, an array one key of an integer type, rows of\nsessions go to tables of their own.",
		`tables: routes: {kind: "lpm", key: {src: "prefix", dst: "prefix"}, value: way: "next_hop"}`,
		`tables: routes: {kind: "lpm", key: dst: "prefix", value: way: "next_hop"}`)
	codeStack = diag.Define("FR0206", "a stack that can't be",
		"Every header in a stack has to be able to follow the one in front of it. What identifies a header is declared with it, in `after`.",
		`stack: ["eth", "udp"]`, `stack: ["eth", "ip", "udp"]`)
	codePaths = diag.Define("FR0207", "too many paths",
		"Alternatives and optional headers multiply: a stack may stand for at most 64 sequences of headers.",
		`stack: ["eth", "vlan?", "ip", "udp", {a: ["x", "y"]}, {b: ["x", "y"]}, {c: ["x", "y"]}, {d: ["x", "y"]}, {e: ["x", "y"]}]`, `stack: ["eth", "ip", "udp", {a: ["x", "y"]}]`)
	codeKey = diag.Define("FR0208", "a key that doesn't fit its table",
		"A lookup gives one expression for each member of the table's key, in its order and of its type.",
		`lookup: ch: by_peer: ["udp.src"]`, `lookup: ch: by_peer: ["udp.src", "udp.dst"]`)
	codeMaybe = diag.Define("FR0209", "a row that may be missing",
		"A member of an optional lookup (`name?`) is used where the row may be missing. Ask for it first: `row && row.member > 1`.",
		`when: "conn.packets > 5"`, `when: "conn && conn.packets > 5"`)
	codeAction = diag.Define("FR0210", "actions that don't go together",
		"A rule ends in at most one of send, drop and pass, as its last action; drop excludes changes to the packet.",
		`do: [{drop: "bad"}, {set: "ip.dscp": 0}]`, `do: [{drop: "bad"}]`)
	codeTarget = diag.Define("FR0211", "a field that can't be written",
		"Lengths, checksums, fixed fields and fields that identify the next header follow from the rest of the packet; addresses of a packet that\nis sent are the business of send.",
		`do: [{set: "udp.length": 8}, "pass"]`, `do: [{set: "udp.src_port": 8}, "pass"]`)
	codePush = diag.Define("FR0212", "a header that can't be pushed or popped here",
		"A pushed header needs a value for each of its fields that nothing else determines; a popped one has to be in the stack; what follows has to be\nallowed behind what is in front of it.",
		`do: [{push: channel_data: {}}, {send: {from: "ch.server", to: "ch.client"}}]`, `do: [{push: channel_data: number: "ch.number"}, {send: {from: "ch.server", to: "ch.client"}}]`)
	codeResize = diag.Define("FR0213", "the packet can't be resized safely here",
		"Room in a packet is made or closed where the kernel's pending checksum stays right: behind IP, and behind a transport header whose checksum the\nspec knows. A header of variable length can't be moved.",
		"headers: second: fields: [{name: \"size\", bits: 8}, {name: \"data\", bytes: \"size\", max: 16}]\nprograms: p: do: [{pop: \"first\"}, \"pass\"] // \"second\" would have to move",
		"headers: second: fields: [{name: \"size\", bits: 8}, {name: \"data\", bytes: 16}]\nprograms: p: do: [{pop: \"first\"}, \"pass\"]")
	codeSend = diag.Define("FR0214", "a packet that can't be sent so",
		"`send` needs a network header in the stack, and either `to` (with `from`) or `via`. from and to are endpoints or addresses; via is a next hop of a row.",
		`do: [{send: {from: "ch.relayed"}}]`, `do: [{send: {from: "ch.relayed", to: "ch.peer"}}]`)
	codeKernel = diag.Define("FR0215", "needs a newer kernel",
		"The spec demands that it runs on an older kernel (`kernel`) than what it uses needs.", `kernel: "5.4"`, `kernel: "5.10"`)
	codeHeader = diag.Define("FR0216", "a header that can't be laid out",
		"The fields of a header have to add up: whole bytes in the end, byte alignment for bytes, varints and little-endian integers, expressions over\nearlier fields only, 16 bits for a checksum.",
		`fields: [{name: "a", bits: 4}]`, `fields: [{name: "a", bits: 4}, {name: "b", bits: 4}]`)
	codeConstraint = diag.Define("FR0217", "a constraint that can't hold",
		"The values of a match or `is` have to be values that the field can have.", `match: "ip.hop_limit": 300`, `match: "ip.hop_limit": <=30`)
	codeDivide = diag.Define("FR0218", "division or shift by a value that isn't fixed",
		"The divisor of / and % is a constant that is not 0; the right side of << and >> is a constant below 64.", `when: "udp.length / ch.n > 3"`, `when: "udp.length > 3 * ch.n"`)
	codeLearn = diag.Define("FR0219", "a table that can't be learned into",
		"`learn` writes rows of hash and lru tables of their own: not rows of sessions, not next hops, counters or per-CPU tables.",
		`do: [{learn: calls: {key: ["udp.src", 1], value: ["udp.dst"]}}, "pass"] // calls is the table of a session`,
		`do: [{learn: seen: {key: ["udp.src"], value: ["udp.dst"]}}, "pass"]`)
	codeVariable = diag.Define("FR0220", "a field without a fixed place",
		"The field stands behind fields of variable length or is one itself, and this use needs a fixed place or size.",
		`do: [{set: "msg.id": 3}, "pass"] // id has a condition`, `do: [{set: "msg.kind": 3}, "pass"]`)
	codeUnused = diag.Define("FR0221", "declared in vain",
		"A rule behind one without conditions can never run.", `rules: [{do: ["pass"]}, {do: [{drop: "late"}]}]`, `rules: [{do: ["pass"]}]`)
	codeFanOut = diag.Define("FR0222", "a fan-out that can't be",
		"A fan-out sends copies of a packet that itself goes on as it came: it runs at tc/ingress, ends its rule, and nothing in the rule changes the\npacket. Copies are rewritten in place, so that headers are neither pushed nor popped, and sent to an endpoint of the receiver's row `r`.",
		`do: [{set: "ip.dscp": 46}, {fan_out: {group: viewers: ["udp.dst"], each: [{send: {from: "r.local", to: "r.remote"}}]}}]`,
		`do: [{fan_out: {group: viewers: ["udp.dst"], each: [{set: "ip.dscp": 46}, {send: {from: "r.local", to: "r.remote"}}]}}]`)
	codeAdmit = diag.Define("FR0223", "a credit that can't be spent so",
		"`admit` spends a value of type credit or bucket, or one of several (credits, buckets): the one of the packet's priority. It stands in a rule\nwhose packet leaves or goes on.",
		`do: [{admit: {credit: "r.credits", cost: 1}}, {send: {from: "r.local", to: "r.remote"}}]`,
		`do: [{admit: {credit: "r.credits[priority]", cost: 1}}, {send: {from: "r.local", to: "r.remote"}}]`)
	codeEvent = diag.Define("FR0224", "an event that doesn't fit its declaration",
		"`emit` gives each field of a declared event a value. In a rule that leaves a receiver out there is nothing to tell.",
		`do: [{emit: sent: {}}, "pass"]`, `do: [{emit: sent: number: "rtp.sequence"}, "pass"]`)
	codeDraw = diag.Define("FR0225", "a number that can't be drawn here",
		"alloc takes a number from a counter of a row, translate finds or makes one in a translation of a row. They stand in values of let, set, push,\nmark and emit: what a condition asks has no effects, and what is drawn can't decide whether a packet leaves.",
		`when: "alloc(r.next) > 5"`, `do: [{let: number: "alloc(r.next)"}, {set: "short.number": "low(number, 32)"}, "pass"]`)
	codePriority = diag.Define("FR0226", "no such priority",
		"`priority` is the level that the spec declares (`priority: {levels, from}`), 0 being the most urgent; types with one value for each level\nneed the declaration, too.",
		"programs: p: when: \"priority > 2\" // and no declaration", "priority: {levels: 8, from: \"ip.dscp >> 3\"}\nprograms: p: when: \"priority > 2\"")
	codeElements = diag.Define("FR0227", "no list of elements",
		"has(HEADER.LIST, ID) and element(HEADER.LIST, ID, N) search a field with `elements` for an identifier, which is known without looking into\ntables; N is a constant from 0 to 7.",
		`when: "has(rtp.csrc_list, 3)"`, `when: "has(rtp.extensions, 3)"`)
	codeNotUsed = diag.Define("FR0240", "nothing uses it",
		"A warning: the spec declares a header, a setting, a table, a group or an event that no program uses. The relay is built without\nregard to it. `vet --strict` takes warnings for errors.",
		`settings: {port: {type: "u16", default: 7000}, prot: {type: "u16", default: 7001}}`, `settings: port: {type: "u16", default: 7000}`)
	codeNothing = diag.Define("FR0241", "a relay that does nothing",
		"A warning: the spec has no programs, and a relay without programs doesn't see a packet. `vet --strict` takes warnings for errors.",
		`name: "gate"`, "name: \"gate\"\nprograms: gate: {hook: \"tc/ingress\", stack: [\"eth\"], do: [\"pass\"]}")
	codeInternal = diag.Define("FR0299", "a fault of the compiler",
		"The compiler made a plan that it can't vouch for. This is never the spec's fault; a report with the spec helps.",
		"$ fastrelay-gen build spec.cue     # whatever the spec says, this is not the answer to expect",
		"$ fastrelay-gen version            # with the spec and the message, all that a report needs")
)
