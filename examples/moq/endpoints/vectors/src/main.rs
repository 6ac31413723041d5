//! Another codec of MoQ Transport, moqtap-codec, as a source of test vectors for package wire, and as their reader.
//!
//! `moqtap-vectors draw SEED COUNT` prints COUNT vectors of each message of each draft, and of each kind of stream and datagram, as
//! lines of JSON: draft, kind, hex, and fields, which are those that it has encoded. `moqtap-vectors read` reads lines of JSON with
//! draft, kind and hex, and answers each with the fields that it decodes, or with an error. Numbers are those on the wire, bytes
//! are in hexadecimal.

mod codec;
mod draw;

use serde_json::{json, Value};
use std::io::{BufRead, Write};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let out = std::io::stdout();
    let mut out = out.lock();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[1..] {
        ["draw", seed, count] => {
            let mut rng = draw::Rng::new(seed.parse().expect("a seed is a number"));
            let count: usize = count.parse().expect("a count is a number");
            for vector in draw::all(&mut rng, count) {
                writeln!(out, "{vector}").expect("stdout");
            }
        }
        ["read"] => {
            for line in std::io::stdin().lock().lines() {
                let line = line.expect("stdin");
                let asked: Value = serde_json::from_str(&line).expect("a line of JSON");
                let draft = asked["draft"].as_u64().expect("draft");
                let kind = asked["kind"].as_str().expect("kind");
                let answer = match codec::read(draft, kind, &unhex(asked["hex"].as_str().expect("hex"))) {
                    Ok(fields) => json!({ "fields": fields }),
                    Err(error) => json!({ "error": error }),
                };
                writeln!(out, "{answer}").expect("stdout");
                out.flush().expect("stdout");
            }
        }
        _ => {
            eprintln!("usage: moqtap-vectors draw SEED COUNT | moqtap-vectors read");
            std::process::exit(2);
        }
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hexadecimal")).collect()
}
