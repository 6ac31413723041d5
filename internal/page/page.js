// The page of a relay. It asks for the counters once a second. All text from the relay becomes text (textContent).
'use strict';

const colours = {
	sent: '#1a7f37', copy: '#2da44e', pass: '#0969da', drop: '#cf222e', up: '#57606a', declined: '#9a6700', fault: '#82071e',
};
const kinds = Object.keys(colours);
const word = (kind) => kind === 'up' ? 'to the stack' : kind; // for people
const turnKinds = ['copy', 'declined']; // of receivers; the packet that came has another reason
const minutes = 10;

const state = {
	program: '', reason: '', // what is plotted; no reason: all kinds
	started: '', programs: [], samples: [], decisions: {},
};

const find = (selector) => document.querySelector(selector);
const all = (selector) => [...document.querySelectorAll(selector)];

function make(name, text, className) {
	const e = document.createElement(name);
	if (text !== undefined) e.textContent = text;
	if (className) e.className = className;
	return e;
}

function draw(name, attributes, text) {
	const e = document.createElementNS('http://www.w3.org/2000/svg', name);
	for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
	if (text !== undefined) e.textContent = text;
	return e;
}

const whole = (n) => Math.round(n).toLocaleString('en');
const rate = (n) => (n === 0 ? '' : n < 9.95 ? n.toFixed(1) : whole(n));

async function get(path) {
	const answer = await fetch(path);
	const body = await answer.json();
	if (!answer.ok) throw new Error(body.detail || answer.statusText);
	return body;
}

// Packets a second of each reason of a program, between the last two samples.
function rates(program) {
	const i = state.programs.findIndex((p) => p.name === program);
	const [before, last] = state.samples.slice(-2);
	if (i < 0 || !last) return [];
	const seconds = (last.time - before.time) / 1000;
	return last.packets[i].map((n, r) => (n - before.packets[i][r]) / seconds);
}

// What comes to a step is what came to the program, without what ended at the steps before. Where a reason with packets
// is of steps before and after, the number is a bound.
function flow(program, n) {
	const stages = state.decisions[program];
	const reasons = state.programs.find((p) => p.name === program).reasons;
	const now = rates(program);
	const turn = stages[n].turn;
	const mine = (r) => turnKinds.includes(reasons[r].kind) === turn;
	let packets = 0, exact = true;
	for (let r = 0; r < now.length; r++) {
		if (!mine(r)) continue;
		const places = stages.flatMap((s, i) => (s.exits.includes(r) ? [i] : []));
		const before = places.filter((i) => i < n).length;
		if (places.length === 0 || before < places.length) {
			packets += now[r];
			if (before > 0 && now[r] > 0) exact = false;
		}
	}
	return packets === 0 ? '' : (exact ? '' : '\u2264 ') + rate(packets) + '/s';
}

function showDecision() {
	for (const div of all('.decision')) div.hidden = div.dataset.program !== state.program;
	const program = state.programs.find((p) => p.name === state.program);
	if (!program) return;
	const now = rates(program.name);
	for (const e of all(`.decision[data-program="${CSS.escape(program.name)}"] .exit`)) {
		const r = program.reasons.findIndex((x) => x.name === e.dataset.reason);
		e.querySelector('.rate').textContent = rate(now[r] || 0);
		e.classList.toggle('busy', (now[r] || 0) > 0);
		e.classList.toggle('chosen', e.dataset.reason === state.reason);
	}
	for (const e of all(`.flow[data-program="${CSS.escape(program.name)}"]`)) {
		e.textContent = flow(program.name, Number(e.dataset.stage));
	}
}

function row(...cells) {
	const tr = make('tr');
	for (const c of cells) {
		tr.append(typeof c === 'object' ? make('td', c.text, c.className) : make('td', c));
	}
	return tr;
}

const number = (text) => ({text, className: 'number'});

function showCounters() {
	const program = state.programs.find((p) => p.name === state.program);
	const now = rates(state.program);
	const rows = (program ? program.reasons : []).map((r, i) => [r, now[i] || 0]).filter(([r]) => r.packets > 0);
	find('#counters tbody').replaceChildren(...rows.map(([r, pps]) => {
		const tr = row(r.name, word(r.kind), number(rate(pps)), number((r.bits_per_second / 1e6).toFixed(1)), number(whole(r.packets)), r.doc || '');
		tr.dataset.reason = r.name;
		return tr;
	}));
}

// The lines of the plot: a name, a colour, and the reasons that count.
function lines() {
	const program = state.programs.find((p) => p.name === state.program);
	if (!program) return [];
	const reasons = program.reasons.map((r, i) => ({...r, i}));
	if (state.reason) {
		const r = reasons.find((x) => x.name === state.reason);
		return [{name: r.name, colour: colours[r.kind], reasons: [r.i]}];
	}
	return kinds.map((kind) => ({
		name: word(kind), colour: colours[kind], reasons: reasons.filter((r) => r.kind === kind).map((r) => r.i),
	})).filter((line) => line.reasons.some((r) => program.reasons[r].packets > 0));
}

function showPlot() {
	const [width, height, left, bottom] = [860, 240, 70, 22];
	const plot = find('#plot');
	const i = state.programs.findIndex((p) => p.name === state.program);
	const end = state.samples.length ? state.samples[state.samples.length - 1].time : Date.now();
	const shown = lines().map((line) => {
		const points = [];
		for (let k = 1; k < state.samples.length; k++) {
			const [a, b] = [state.samples[k - 1], state.samples[k]];
			const sum = (s) => line.reasons.reduce((n, r) => n + s.packets[i][r], 0);
			points.push([b.time, (sum(b) - sum(a)) * 1000 / (b.time - a.time)]);
		}
		return {...line, points};
	});
	const most = Math.max(1, ...shown.flatMap((line) => line.points.map((p) => p[1])));
	const step = [1, 2, 5, 10].map((n) => n * 10 ** Math.floor(Math.log10(most))).find((n) => n * 4 >= most);
	const top = Math.ceil(most / step) * step;
	const x = (time) => left + (width - left - 8) * (1 - (end - time) / (minutes * 60000));
	const y = (n) => 8 + (height - bottom - 8) * (1 - n / top);
	const parts = [];
	for (let n = 0; n <= top; n += step) {
		parts.push(draw('path', {d: `M${left} ${y(n)}H${width - 8}`, stroke: '#d0d7de', fill: 'none'}));
		parts.push(draw('text', {x: left - 8, y: y(n) + 4, 'text-anchor': 'end', fill: '#57606a'}, n.toLocaleString('en')));
	}
	for (let m = 0; m <= minutes; m += 2) {
		const at = x(end - m * 60000);
		parts.push(draw('text', {x: at, y: height - 6, 'text-anchor': m ? 'middle' : 'end', fill: '#57606a'}, m ? `\u2212${m} min` : 'now'));
	}
	for (const line of shown) {
		const d = line.points.map(([time, n], k) => `${k ? 'L' : 'M'}${x(time).toFixed(1)} ${y(n).toFixed(1)}`).join('');
		parts.push(draw('path', {d, stroke: line.colour, 'stroke-width': 2, fill: 'none', 'stroke-linejoin': 'round'}));
	}
	plot.replaceChildren(...parts);
	find('#shown').textContent = `${state.program}${state.reason ? ': ' + state.reason : ''}, packets a second`;
	find('#kinds').hidden = !state.reason;
	find('#legend').replaceChildren(...shown.map((line) => {
		const li = make('li'), mark = make('i');
		mark.style.background = line.colour;
		const last = line.points.length ? line.points[line.points.length - 1][1] : 0;
		li.append(mark, `${line.name} ${rate(last) || '0'}`);
		return li;
	}));
	for (const b of all('button.program')) b.setAttribute('aria-pressed', b.dataset.program === state.program);
}

function choose(program, reason) {
	Object.assign(state, {program, reason});
	showPlot();
	showDecision();
	showCounters();
}

const text = (v) => (v !== null && typeof v === 'object' ? JSON.stringify(v) : String(v));
const values = (o) => Object.entries(o).map(([k, v]) => `${k} ${text(v)}`).join(', ');
const missing = (hops) => hops.filter((h) => h.missing).map((h) => `${h.to}: ${h.missing}`).join('; ');

// Sessions, groups, and what a relay in user space has in tables: the first ones of each kind.
async function showOpen(relay) {
	const parts = [];
	const limit = 20;
	const table = (kind, columns, rows, more) => {
		parts.push(make('h2', `${kind.name}: ${whole(kind.open || 0)}` + (kind.limit ? ` open of at most ${whole(kind.limit)}` : '')));
		if (!rows.length) return;
		const t = make('table'), head = make('tr');
		head.append(...columns.map((c) => make('th', c)));
		t.append(head, ...rows);
		parts.push(t);
		if (more) parts.push(make('p', `The first ${rows.length}. fastrelay-gen show lists all.`, 'hint'));
	};
	for (const kind of relay.sessions) {
		const page = await get(`v1/sessions/${encodeURIComponent(kind.name)}?limit=${limit}`);
		table(kind, ['id', 'session', 'packets', 'last used', ''], page.items.map((s) => row(s.id, values(s.fields),
			number(s.rows.map((r) => whole(r.packets)).join(' + ')),
			s.last_used ? new Date(s.last_used).toLocaleTimeString('en-GB') : '', {text: missing(s.next_hops), className: 'bad'})), page.next);
	}
	for (const kind of relay.groups) {
		const page = await get(`v1/groups/${encodeURIComponent(kind.name)}?limit=${limit}`);
		table(kind, ['group', 'receivers'], page.items.map((g) => row(values(g.key), number(whole(g.receivers)))), page.next);
	}
	for (const kind of relay.tables.filter((t) => t.open !== undefined)) { // of a relay in user space
		const page = await get(`v1/tables/${encodeURIComponent(kind.name)}?limit=${limit}`);
		table(kind, [...kind.key, ...kind.values].map((m) => m.name), page.items.map((r) => row(
			...Object.values(r.key).map(text), ...Object.values(r.value).map((v) => (typeof v === 'number' ? number(whole(v)) : text(v))))), page.next);
	}
	find('#open').replaceChildren(...parts);
}

function showFacts(relay) {
	const facts = {
		process: relay.pid, since: new Date(relay.started).toLocaleString('en-GB'),
		lease: relay.lease ? `${relay.lease.seconds} s` : 'none: user space',
		state: relay.draining ? 'draining' : !relay.lease || relay.lease.left_seconds > 0 ? 'forwarding' : 'its lease has lapsed',
		attached: state.programs.flatMap((p) => p.attachments.map((a) => `${p.name} ${a.interface}${a.attached ? '' : ' (lost)'}`)).join(', ') || 'nothing',
	};
	if (relay.xdp_drops) facts['dropped after XDP'] = relay.xdp_drops.map((d) => `${d.interface} ${d.reason} ${whole(d.packets)}`).join(', ');
	if (relay.no_xdp_drops) facts['dropped after XDP'] = `not counted: ${relay.no_xdp_drops}`;
	find('#facts').replaceChildren(...Object.entries(facts).map(([name, value]) => {
		const div = make('div');
		div.append(make('dt', name), make('dd', value));
		return div;
	}));
}

async function look() {
	const last = state.samples.length ? state.samples[state.samples.length - 1].time : 0;
	const [relay, programs, history] = await Promise.all([get('v1'), get('v1/programs'), get(`history.json?after=${last}`)]);
	if (state.started && state.started !== relay.started) {
		location.reload(); // another relay has this address now
		return;
	}
	state.started = relay.started;
	state.programs = programs.items;
	state.samples = state.samples.concat(history.samples).slice(-(minutes * 60 + 1));
	if (!state.program && state.programs.length) state.program = (state.programs.find((p) => p.attachments.length) || state.programs[0]).name;
	showFacts(relay);
	choose(state.program, state.reason);
	await showOpen(relay);
}

async function run() {
	state.decisions = await get('decisions.json');
	for (;;) {
		try {
			await look();
			find('#problem').hidden = true;
		} catch (err) {
			find('#problem').textContent = `The relay doesn't answer: ${err.message}`;
			find('#problem').hidden = false;
		}
		await new Promise((done) => setTimeout(done, 1000));
	}
}

for (const b of all('button.program')) b.addEventListener('click', () => choose(b.dataset.program, ''));
for (const e of all('.exit')) e.addEventListener('click', () => choose(e.dataset.program, e.dataset.reason === state.reason ? '' : e.dataset.reason));
find('#kinds').addEventListener('click', () => choose(state.program, ''));
run();
