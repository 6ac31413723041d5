// Package code has the codes of the compiler's messages. Each has a text, with a wrong and a right example, for
// `fastrelay-gen explain`.
package code

import "github.com/fastrelay/fastrelay-gen/internal/diag"

// What can be wrong with a spec (FR02…), and what is probably not meant.
var (
	UnknownName = diag.Define("FR0201", "unknown name",
		"A name in an expression, a key, a stack or an action is not declared. Names are those of headers in\n"+
			"the stack (or what the stack calls them), of their fields and parts, of lookups, and `setting.NAME`.",
		`lookup: ch: by_channel: ["udp.src", "udp.dst", "channel_data.chanel"]`,
		`lookup: ch: by_channel: ["udp.src", "udp.dst", "channel_data.number"]`)
	Type = diag.Define("FR0202", "types don't match",
		"A value is used where another type is required: an integer for an address, a condition for an\n"+
			"integer, an endpoint for a port.",
		`when: "ip.src == 5"`, `match: "ip.src": "192.0.2.1"`)
	Range = diag.Define("FR0203", "a value may not fit",
		"A value is stored in a field or member that may be too narrow for it. Make a member wider, as a key\n"+
			"or an identifier requires; or make the value provably small, as a field of a header requires, whose\n"+
			"width is the protocol's. For a number that may wrap around, such as a sequence number with an offset,\n"+
			"use low(x, n), the n lowest bits of x. Never use it for a key: flow 65543 would become flow 7.",
		"headers: tag: fields: [{name: \"id\", bits: 32}]\ntables: flows: {key: id: \"u16\", value: peer: "+
			"\"endpoint\"} // looked up by tag.id",
		"headers: tag: fields: [{name: \"id\", bits: 32}]\ntables: flows: {key: id: \"u32\", value: peer: "+
			"\"endpoint\"} // looked up by tag.id")
	BadType = diag.Define("FR0204", "unknown or unsuitable type",
		"Types are u1 to u64, bool, bytesN, mac, ip, endpoint, prefix, next_hop, counter, credit,\n"+
			"bucket, translation. Some of them can't be used in a key, a setting or a session. In rows, most of\n"+
			"them may have a value for each level of priority: \"bytes8[priority]\".",
		`tables: routes: {key: dst: "prefix", value: hop: "next_hop"}`,
		`tables: routes: {key: dst: "ip", value: hop: "next_hop"}`)
	Table = diag.Define("FR0205", "invalid table",
		"A table's kind, key and value must match: an lpm table has one key of type prefix, an array one key\n"+
			"of an integer type, and rows of sessions are in tables of their own. Several rows of a session in\n"+
			"one table have keys and values of the same types. A counter, a credit or a bucket of a session is in\n"+
			"the value of a row, or of several, which share it.",
		`tables: routes: {kind: "lpm", key: {src: "prefix", dst: "prefix"}, value: hop: "next_hop"}`,
		`tables: routes: {kind: "lpm", key: dst: "prefix", value: hop: "next_hop"}`)
	Stack = diag.Define("FR0206", "invalid stack",
		"Every header in a stack must be able to follow the one before it. The fields that identify a header\n"+
			"are declared with it, in `after`.",
		`stack: ["eth", "udp"]`, `stack: ["eth", "ip", "udp"]`)
	Paths = diag.Define("FR0207", "too many paths",
		"Alternatives and optional headers multiply: a stack may allow at most 64 sequences of headers.",
		`stack: ["eth", "vlan?", "ip", "udp", {a: ["x", "y"]}, {b: ["x", "y"]}, {c: ["x", "y"]}, {d: ["x", "y"]}, `+
			`{e: ["x", "y"]}]`, `stack: ["eth", "ip", "udp", {a: ["x", "y"]}]`)
	Key = diag.Define("FR0208", "a key that doesn't match its table",
		"A lookup gives one expression for each member of the table's key, in its order and of its type.",
		`lookup: ch: by_peer: ["udp.src"]`, `lookup: ch: by_peer: ["udp.src", "udp.dst"]`)
	Maybe = diag.Define("FR0209", "a row that may be missing",
		"A member of an optional lookup (`name?`) is used where the row may be missing. Test for it first:\n"+
			"`row && row.member > 1`.",
		`when: "conn.packets > 5"`, `when: "conn && conn.packets > 5"`)
	Action = diag.Define("FR0210", "actions that exclude each other",
		"A rule ends in at most one of send, drop and pass, as its last action; drop excludes changes to the\n"+
			"packet. A name that let gives stands for one value, and isn't a header's.",
		`do: [{drop: "bad"}, {set: "ip.dscp": 0}]`, `do: [{drop: "bad"}]`)
	Target = diag.Define("FR0211", "a field that can't be written",
		"Lengths, checksums, fixed fields and fields that identify the next header are computed from the rest\n"+
			"of the packet; `send` writes the addresses of a packet that is sent, and its ports where their\n"+
			"header allows more than one value. A rule gives a field one value: it is neither set twice, nor set\n"+
			"and then given by `send`, nor set in a header that the rule takes out.",
		`do: [{set: "udp.length": 8}, "pass"]`, `do: [{set: "udp.src_port": 8}, "pass"]`)
	Push = diag.Define("FR0212", "a header that can't be pushed or popped here",
		"A pushed header needs a value for each field that is not computed; a popped header has to be in the\n"+
			"stack; each remaining header must be allowed after the one before it.",
		`do: [{push: channel_data: {}}, {send: {from: "ch.server", to: "ch.client"}}]`,
		`do: [{push: channel_data: number: "ch.number"}, {send: {from: "ch.server", to: "ch.client"}}]`)
	Resize = diag.Define("FR0213", "the packet can't be resized safely here",
		"A packet can be resized only where a partial checksum of the kernel remains correct: after IP, and\n"+
			"after a transport header whose checksum the spec declares. A header of variable length moves\n"+
			"only together with all that follows it.",
		"headers: second: fields: [{name: \"size\", bits: 8}, {name: \"data\", bytes: \"size\", max: 16}]\n"+
			"headers: third: fields: [{name: \"n\", bits: 8}]\n"+
			"programs: p: do: [{pop: \"first\"}, {push: third: n: 1}, \"pass\"] "+
			"// \"second\" would move, but not what follows",
		"headers: second: fields: [{name: \"size\", bits: 8}, {name: \"data\", bytes: \"size\", max: 16}]\n"+
			"programs: p: do: [{pop: \"first\"}, \"pass\"] // what follows \"second\" moves with it")
	Send = diag.Define("FR0214", "a packet that can't be sent this way",
		"`send` needs a network header in the stack, and either `to` (with `from`) or `via`. from and to are\n"+
			"endpoints or addresses; via is a next hop in a row.",
		`do: [{send: {from: "ch.relayed"}}]`, `do: [{send: {from: "ch.relayed", to: "ch.peer"}}]`)
	Kernel = diag.Define("FR0215", "needs a newer kernel",
		"The spec names an oldest kernel (`kernel`), and uses a construct that needs a newer one.", `kernel: "5.4"`,
		`kernel: "5.10"`)
	Header = diag.Define("FR0216", "invalid layout of a header",
		"The fields of a header must add up to whole bytes. Bytes, varints and little-endian integers are\n"+
			"aligned to bytes, expressions use earlier fields only, and a checksum has 16 bits.",
		`fields: [{name: "a", bits: 4}]`, `fields: [{name: "a", bits: 4}, {name: "b", bits: 4}]`)
	Constraint = diag.Define("FR0217", "a constraint that is never true",
		"The values of a match or `is` must be values that the field can have.", `match: "ip.hop_limit": 300`,
		`match: "ip.hop_limit": <=30`)
	Divide = diag.Define("FR0218", "division or shift by a variable",
		"The divisor of / and % is a constant other than 0; the right side of << and >> is a constant below\n"+
			"64.", `when: "udp.length / ch.n > 3"`, `when: "udp.length > 3 * ch.n"`)
	Learn = diag.Define("FR0219", "a table that can't be learned into",
		"`learn` writes rows of hash and lru tables of their own: not rows of sessions, not next hops,\n"+
			"counters or per-CPU tables. What it asks to be `verified` is a header that every packet of the rule\n"+
			"has, with a checksum over what follows it. `with` names the row of a session, which is certainly there;\n"+
			"either all rules that learn into a table say it, or none does.",
		`do: [{learn: calls: {key: ["udp.src", 1], value: ["udp.dst"]}}, "pass"] // calls is the table of a session`,
		`do: [{learn: seen: {key: ["udp.src"], value: ["udp.dst"]}}, "pass"]`)
	Variable = diag.Define("FR0220", "a field without a fixed position",
		"The field has a variable length, or follows a field of variable length, and this use needs a fixed\n"+
			"position or size.",
		`do: [{set: "msg.id": 3}, "pass"] // id has a condition`, `do: [{set: "msg.kind": 3}, "pass"]`)
	Unused = diag.Define("FR0221", "never used",
		"A rule after one without conditions never runs.", `rules: [{do: ["pass"]}, {do: [{drop: "late"}]}]`,
		`rules: [{do: ["pass"]}]`)
	FanOut = diag.Define("FR0222", "invalid fan-out",
		"A fan-out sends copies of a packet that itself continues unmodified: it runs at tc/ingress on packets\n"+
			"with a link-layer header, ends its rule, and nothing in the rule changes the packet. Copies are\n"+
			"rewritten in place, so headers are neither pushed nor popped. A copy is sent to an endpoint of the\n"+
			"receiver's row `r`.",
		`do: [{set: "ip.dscp": 46}, {fan_out: {group: viewers: ["udp.dst"], each: [{send: {from: "r.local", `+
			`to: "r.remote"}}]}}]`,
		`do: [{fan_out: {group: viewers: ["udp.dst"], each: [{set: "ip.dscp": 46}, {send: {from: "r.local", `+
			`to: "r.remote"}}]}}]`)
	Admit = diag.Define("FR0223", "a credit that can't be spent this way",
		"`admit` spends a value of type credit or bucket. Its rule must send the packet or pass it to the\n"+
			"stack.",
		`do: [{admit: {credit: "r.remote", cost: 1}}, {send: {from: "r.local", to: "r.remote"}}]`,
		`do: [{admit: {credit: "r.credits[priority]", cost: 1}}, {send: {from: "r.local", to: "r.remote"}}]`)
	Event = diag.Define("FR0224", "an event that doesn't match its declaration",
		"`emit` gives a value to each field of a declared event. A rule that sends no copy to a receiver has\n"+
			"nothing to report.",
		`do: [{emit: sent: {}}, "pass"]`, `do: [{emit: sent: number: "rtp.sequence"}, "pass"]`)
	Alloc = diag.Define("FR0225", "a number that can't be allocated here",
		"alloc takes a number from a counter of a row; translate finds or makes one in a translation of a\n"+
			"row. Both are allowed in values of let, set, push, mark and emit. Conditions have no side effects,\n"+
			"so they can't use them.",
		`when: "alloc(r.next) > 5"`,
		`do: [{let: number: "alloc(r.next)"}, {set: "short.number": "low(number, 32)"}, "pass"]`)
	Priority = diag.Define("FR0226", "no such priority",
		"`priority` is the level that the spec declares (`priority: {levels, from}`); 0 is the most urgent.\n"+
			"Types with one value for each level need the declaration, too; of such a value, say which one:\n"+
			"r.credit[priority].",
		"programs: p: when: \"priority > 2\" // and no declaration", "priority: {levels: 8, from: \"ip.dscp >> 3\"}\n"+
			"programs: p: when: \"priority > 2\"")
	Elements = diag.Define("FR0227", "no list of elements",
		"has(HEADER.LIST, ID) and element(HEADER.LIST, ID, N) search a field with `elements` for an\n"+
			"identifier, which must not come from a table; N is a constant from 0 to 7.",
		`when: "has(rtp.csrc_list, 3)"`, `when: "has(rtp.extensions, 3)"`)
	Congestion = diag.Define("FR0228", "not at tcp/congestion, or only there",
		"At tcp/congestion there is no packet, but a TCP socket: the stack is \"socket\" and what happened\n"+
			"(init, ack, loss, release), and rules look up rows of integers, set fields, count, learn and report.",
		`programs: c: {hook: "tcp/congestion", stack: ["eth", "ip"], do: ["pass"]}`,
		`programs: c: {hook: "tcp/congestion", stack: ["socket", "ack"], do: [{set: "ack.cwnd": 10}]}`)
	Lapsed = diag.Define("FR0229", "nothing is sent without a lease",
		"A program whose expressions say `lapsed` runs also when the relay's lease has expired. It may pass\n"+
			"packets and drop them. It can't send any: the process that the addresses come from has ended.",
		`rules: [{when: "lapsed", do: [{drop: "closed"}]}, {do: [{send: {from: "udp.dst", to: "udp.src"}}]}]`,
		`rules: [{when: "lapsed", do: [{drop: "closed"}]}, {do: ["pass"]}]`)
	NotUsed = diag.Define("FR0240", "declared and not used",
		"A warning: the spec declares a header, alternatives, a setting, a table, a group or an event that no\n"+
			"program uses; a session's field, or a member of a row's value or of a receiver, that no program\n"+
			"reads or writes; or a rule gives a name to a value and doesn't use it. Unused declarations are left\n"+
			"out of the relay, unused members stay. `vet --strict` treats warnings as errors.",
		`settings: {port: {type: "u16", default: 7000}, prot: {type: "u16", default: 7001}}`,
		`settings: port: {type: "u16", default: 7000}`)
	Nothing = diag.Define("FR0241", "a relay that does nothing",
		"A warning: the spec has no programs, and a relay without programs processes no packets. `vet\n"+
			"--strict` treats warnings as errors.",
		`name: "gate"`, "name: \"gate\"\nprograms: gate: {hook: \"tc/ingress\", stack: [\"eth\"], do: [\"pass\"]}")
	Never = diag.Define("FR0242", "never reached",
		"A warning: no packet gets to a rule, to a header of the stack, or to any rule of a program, whatever\n"+
			"there is in tables and settings. The stack, the program's match, or a rule in front has excluded it\n"+
			"already, or it asks for what is never true. `vet --strict` treats warnings as errors.",
		`rules: [{match: "udp.dst_port": <1024, do: ["pass"]}, {match: "udp.dst_port": 53, do: [{drop: "dns"}]}]`,
		`rules: [{match: "udp.dst_port": 53, do: [{drop: "dns"}]}, {match: "udp.dst_port": <1024, do: ["pass"]}]`)
	Vain = diag.Define("FR0243", "never carried out",
		"A warning: a rule applies to packets, but its actions can't be carried out on any of them, so that\n"+
			"they all pass to the stack. `vet --strict` treats warnings as errors.",
		`rules: [{match: "udp.src_port": <10, do: [{set: "msg.id": "udp.src_port"}]}] // and msg.id is >=10`,
		`rules: [{match: "udp.src_port": >=10, do: [{set: "msg.id": "udp.src_port"}]}]`)
	Unverified = diag.Define("FR0244", "learned from what may be garbled",
		"A warning: a rule learns from packets whose checksum it doesn't verify, and one with a flipped bit\n"+
			"changes a row, although every socket would drop it. `verified` names the header whose checksum has\n"+
			"to be right; `verified: false` says that it does no harm. `vet --strict` treats warnings as errors.",
		`do: [{learn: seen: {key: ["tag.id"], value: ["udp.src"]}}, "pass"]`,
		`do: [{learn: seen: {key: ["tag.id"], value: ["udp.src"], verified: "udp"}}, "pass"]`)
	Untaken = diag.Define("FR0245", "XDP takes nothing",
		"A warning: a program's hook is [\"xdp\", \"tc/ingress\"], but XDP would leave all its packets to\n"+
			"tc/ingress. It takes packets that are sent or dropped; what goes on, and what only an skb has or can\n"+
			"do, it leaves. `vet` shows what is left of other programs. `vet --strict` treats warnings as errors.",
		`hook: ["xdp", "tc/ingress"], stack: ["eth", "ip", "udp"], do: ["pass"]`,
		`hook: "tc/ingress", stack: ["eth", "ip", "udp"], do: ["pass"]`)
	Undriven = diag.Define("FR0246", "XDP can't do this",
		"A program's hook is \"xdp\", and it does what only the kernel can do, with an skb: a fan-out, a\n"+
			"translation, skb.*, a header of variable size that is filled, a checksum over a whole datagram.",
		`hook: "xdp", stack: ["eth", "ip", "udp"], do: [{mark: mark: 7}, {send: via: "route"}]`,
		`hook: ["xdp", "tc/ingress"], stack: ["eth", "ip", "udp"], do: [{mark: mark: 7}, {send: via: "route"}]`)
	Internal = diag.Define("FR0299", "a fault of the compiler",
		"The compiler made a plan that contradicts itself. This is never the fault of the spec; please report\n"+
			"it, with the spec.",
		"$ fastrelay-gen build spec.cue     # whatever the spec says, this is not the answer to expect",
		"$ fastrelay-gen version            # with the spec and the message, all that a report needs")
)
