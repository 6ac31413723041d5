// Shows a broadcast by moq-dev's player, and says in window.shown what the player has shown. Its URL's query has url, the
// relay's; hash, that of the relay's certificate; name, that of the broadcast.
import "@moq/watch/element";

const query = new URLSearchParams(location.search);
const player = document.createElement("moq-watch");
const canvas = document.createElement("canvas");
const caption = document.createElement("p");
player.connection.webtransport = { serverCertificateHashes: [{ value: query.get("hash") }] };
player.connection.websocket = { enabled: false };
player.append(canvas);
player.setAttribute("url", query.get("url"));
player.setAttribute("name", query.get("name"));
document.body.append(player, caption);

window.said = []; // warnings and errors
for (const level of ["warn", "error"]) console[level] = (...words) => window.said.push(words.map(String).join(" "));
window.addEventListener("unhandledrejection", (event) => window.said.push(String(event.reason)));

window.shown = []; // number, timestamp (µs), hash (SHA-256 of the decoded picture)

player.renderer.out.frame.subscribe(async (drawn) => {
	if (!drawn) return;
	const number = read();
	const frame = drawn.clone(); // the player closes its own
	const pixels = new Uint8Array(frame.allocationSize());
	await frame.copyTo(pixels);
	const { format, timestamp } = frame;
	frame.close();
	if (format !== "I420") throw new Error(`the decoder's pictures are ${format}`);
	const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", pixels)).toHex();
	window.shown.push({ number, timestamp, hash });
	caption.textContent = `frame ${number}, at ${timestamp / 1e6} s; ${window.shown.length} frames shown`;
});

// read returns the number in the picture: squares of 20 pixels along its lower edge, the least significant bit first.
function read() {
	const { data } = canvas.getContext("2d").getImageData(0, canvas.height - 10, 160, 1);
	let number = 0;
	for (let bit = 0; bit < 8; bit++) {
		if (data[4 * (20 * bit + 10)] > 128) number += 1 << bit;
	}
	return number;
}
