//! A publisher and a subscriber of MoQ Transport made of moqtap-client, drafts 18 and 22, on QUIC and WebTransport.
//!
//! `moqtap-peer URL DRAFT publish NAMESPACE TRACK [FIRST]` announces a namespace and waits for a SUBSCRIBE of the track.
//! Then each line of its input, `OBJECTS BYTES`, is a group to be sent, from FIRST on, in two subgroups; `done` sends
//! PUBLISH_DONE. It ends with its input.
//!
//! `… subscribe NAMESPACE TRACK COUNT [FILTER…]` subscribes, and ends after COUNT objects and PUBLISH_DONE, `… fetch
//! NAMESPACE TRACK [RANGE]` fetches, `… status NAMESPACE TRACK` asks for a track's status, `… namespace NAMESPACE TRACK`
//! waits until there is a publisher, and `… violate RULE` breaks a rule of the draft.
//!
//! What happens is printed a line each; objects, sent or received, as group, subgroup, object, and the payload's
//! SHA-256.

mod filter;
mod publish;
mod request;
mod violate;

use moqtap_client::dispatch::{AnyClientConfig, AnyConnection, AnyConnectionError, AnyTransportType};
use moqtap_codec::types::TrackNamespace;
use moqtap_codec::version::DraftVersion;
use sha2::{Digest, Sha256};
use std::io::Write;

/// Whatever ends the program, with what it says.
pub type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if let Err(error) = run(&args).await {
        say(&format!("failed {error}"));
        std::process::exit(1);
    }
}

async fn run(args: &[&str]) -> Result<(), Failure> {
    match args {
        [url, draft, "violate", rule] => violate::run(url, version(draft)?, rule).await,
        [url, draft, command, namespace, track, rest @ ..] => {
            let draft = version(draft)?;
            let mut conn = connect(url, draft).await?;
            let namespace = TrackNamespace(vec![namespace.as_bytes().to_vec()]);
            let track = track.as_bytes().to_vec();
            match (*command, rest) {
                ("publish", []) => publish::run(&mut conn, namespace, track, 0).await,
                ("publish", [first]) => publish::run(&mut conn, namespace, track, first.parse()?).await,
                ("subscribe", [count, filters @ ..]) => {
                    request::subscribe(&mut conn, namespace, track, count.parse()?, filters).await
                }
                ("fetch", range) => request::fetch(&mut conn, namespace, track, range).await,
                ("namespace", []) => request::namespace(&mut conn, namespace).await,
                ("status", []) => request::status(&mut conn, namespace, track).await,
                _ => Err(format!("{args:?}: see the head of main.rs").into()),
            }
        }
        _ => Err(format!("{args:?}: see the head of main.rs").into()),
    }
}

fn version(draft: &str) -> Result<DraftVersion, Failure> {
    match draft {
        "18" => Ok(DraftVersion::Draft18),
        "22" => Ok(DraftVersion::Draft22),
        _ => Err(format!("{draft:?} is neither 18 nor 22").into()),
    }
}

/// The host and port of a URL.
pub fn authority(url: &str) -> Result<&str, Failure> {
    let (_, rest) = url.split_once("://").ok_or("a URL is moqt://HOST:PORT or https://HOST:PORT/")?;
    Ok(rest.split('/').next().unwrap_or(rest))
}

async fn connect(url: &str, draft: DraftVersion) -> Result<AnyConnection, Failure> {
    let transport = match url.starts_with("https:") {
        true => AnyTransportType::WebTransport { url: url.into() },
        false => AnyTransportType::Quic,
    };
    let config = AnyClientConfig {
        draft,
        additional_versions: Vec::new(),
        transport,
        skip_cert_verification: true,
        ca_certs: Vec::new(),
        setup_parameters: Vec::new(),
    };
    Ok(AnyConnection::connect(authority(url)?, config).await?)
}

/// Prints a line at once.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("stdout");
}

/// An object as it is printed.
pub fn object(group: u64, subgroup: Option<u64>, id: u64, payload: &[u8]) -> String {
    let subgroup = subgroup.map_or("-".into(), |s| s.to_string());
    let hash: String = Sha256::digest(payload).iter().map(|b| format!("{b:02x}")).collect();
    format!("{group} {subgroup} {id} {hash}")
}

/// An error with its cause, which tests compare.
pub fn explain(error: &AnyConnectionError) -> String {
    format!("{:?} {error}", error.cause())
}
