package spectest

import "github.com/fastrelay/fastrelay-gen/internal/diag"

var (
	codeUnknownProgram = diag.Define("FR0301", "a test names an unknown program",
		"A test runs one program of its spec, by name.",
		`tests: "passes to the stack": {program: "to_per", packet: [{eth: {}}], expect: up: true}`,
		`tests: "passes to the stack": {program: "to_peer", packet: [{eth: {}}], expect: up: true}`)
	codeUnknownSession = diag.Define("FR0302", "a test names an unknown session or field",
		"`sessions` in a test opens sessions of the spec: each is the session's name with a value for each of\n"+
			"its fields.",
		`sessions: [{flow: {cleint: "198.51.100.7:40001", id: 7}}]`,
		`sessions: [{flow: {client: "198.51.100.7:40001", id: 7}}]`)
	codeUnknownTable = diag.Define("FR0303", "a test names an unknown table or member",
		"`rows` in a test are rows of tables: each is the table's name with values for members of its key and\n"+
			"value.",
		`rows: [{sources: {adr: "198.51.100.7"}}]`,
		`rows: [{sources: {addr: "198.51.100.7"}}]`)
	codeUnknownReason = diag.Define("FR0304", "a test expects an unknown reason",
		"`up` and `drop` in a test name a reason of the program. `fastrelay-gen explain SPEC --program NAME`\n"+
			"lists them.",
		`expect: up: "chanel_data_length"`,
		`expect: up: "channel_data_length"`)
	codeUnknownSetting = diag.Define("FR0305", "a test names an unknown setting or counter",
		"`settings` in a test gives values to settings of the spec; `counters` expects values of named\n"+
			"counters (`{count: \"hits\"}`) or of reasons.",
		`settings: prot: 4433`,
		`settings: port: 4433`)
	codeTestValue = diag.Define("FR0306", "a value of a test that doesn't fit",
		"Values of sessions, rows and settings have the type that the spec declares: integers in their range,\n"+
			"and strings for addresses (`\"192.0.2.1\"`), endpoints (`\"192.0.2.1:3478\"`), prefixes\n"+
			"(`\"192.0.2.0/24\"`), link-layer addresses and bytes (`\"01ff\"`).",
		`sessions: [{flow: {client: "198.51.100.7", id: 7}}]`,
		`sessions: [{flow: {client: "198.51.100.7:40001", id: 7}}]`)
	codeIncomplete = diag.Define("FR0307", "an incomplete test",
		"A session needs a value for each of its fields, a row for each member of its key, and a program for\n"+
			"each setting without a default. Two rows of a test can't have the same key, and a table can't hold\n"+
			"more rows than its size.",
		`sessions: [{flow: {client: "198.51.100.7:40001"}}]`,
		`sessions: [{flow: {client: "198.51.100.7:40001", id: 7}}]`)
	codeUnknownGroup = diag.Define("FR0308", "a test names an unknown group or value of a receiver",
		"`groups` in a test are groups of the spec, each with values for its key and the list of its\n"+
			"receivers, in the order of sending. Values of a receiver that aren't given are 0. The value of a\n"+
			"counter is its number, of a credit its limit, of a bucket its burst (at a rate of 1 a second), of a\n"+
			"translation the number of its namespace.",
		`groups: [{subscribers: {key: stream: 7, receivers: [{remot: "203.0.113.1:6000"}]}}]`,
		`groups: [{subscribers: {key: stream: 7, receivers: [{remote: "203.0.113.1:6000"}]}}]`)
	codeUnknownEvent = diag.Define("FR0309", "a test expects an unknown event or field",
		"`events` in a test are the records that are written, in order: each is the event's name with values\n"+
			"for the fields to be compared, and the receiver, counted from 0.",
		`expect: {pass: true, events: [{sent: {receiver: 0, sequense: 15}}]}`,
		`expect: {pass: true, events: [{sent: {receiver: 0, sequence: 15}}]}`)
)
