//! Sessions that break a rule of the draft, and what the relay closes them with.

use crate::{authority, say, Failure};
use bytes::Bytes;
use moqtap_client::transport::{dial_quic, dial_webtransport, QuicDialOptions};
use moqtap_codec::dispatch::AnyControlMessage;
use moqtap_codec::types::TrackNamespace;
use moqtap_codec::varint::VarInt;
use moqtap_codec::version::DraftVersion;

/// Breaks one of the rules by its name.
pub async fn run(url: &str, draft: DraftVersion, rule: &str) -> Result<(), Failure> {
    let protocol = draft.quic_alpn().to_vec();
    let options = QuicDialOptions {
        skip_cert_verification: true,
        wt_protocols: vec![protocol.clone()],
        ..QuicDialOptions::new(vec![protocol])
    };
    let transport = match url.starts_with("https:") {
        true => dial_webtransport(url, &options).await?,
        false => dial_quic(authority(url)?, &options).await?.0,
    };
    let closed = transport.closed().ok_or("this transport doesn't say when it is closed")?;
    let mut control = transport.open_uni().await?;
    control.write_all(&setup(draft)?).await?;
    let (mut open, mut answers) = (Vec::new(), Vec::new()); // streams are reset or stopped when they are dropped
    match rule {
        "second-control-stream" => {
            let mut again = transport.open_uni().await?;
            again.write_all(&setup(draft)?).await?;
            open.push(again);
        }
        "second-setup" => control.write_all(&setup(draft)?).await?,
        "setup-as-request" => {
            let (mut send, receive) = transport.open_bi().await?;
            send.write_all(&setup(draft)?).await?;
            open.push(send);
            answers.push(receive);
        }
        "request-on-control-stream" => control.write_all(&subscribe(draft, 0)?).await?,
        "odd-request-id" => {
            let (mut send, receive) = transport.open_bi().await?;
            send.write_all(&subscribe(draft, 1)?).await?;
            open.push(send);
            answers.push(receive);
        }
        "same-request-id" => {
            for _ in 0..2 {
                let (mut send, receive) = transport.open_bi().await?;
                send.write_all(&subscribe(draft, 0)?).await?;
                open.push(send);
                answers.push(receive);
            }
        }
        "truncated-datagram" => transport.send_datagram(Bytes::from_static(&[0x00]))?,
        _ => return Err(format!("{rule:?} is no rule of these").into()),
    }
    say(&format!("{:?}", closed.await));
    Ok(())
}

macro_rules! message {
    ($draft:expr, $kind:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        let mut bytes = Vec::new();
        match $draft {
            DraftVersion::Draft18 => {
                use moqtap_codec::draft18::message::{$kind, ControlMessage};
                AnyControlMessage::Draft18(ControlMessage::$kind($kind { $($field: $value),* }))
            }
            _ => {
                use moqtap_codec::draft22::message::{$kind, ControlMessage};
                AnyControlMessage::Draft22(ControlMessage::$kind($kind { $($field: $value),* }))
            }
        }
        .encode(&mut bytes)?;
        Ok(bytes)
    }};
}

fn setup(draft: DraftVersion) -> Result<Vec<u8>, Failure> {
    message!(draft, Setup { options: Vec::new() })
}

fn subscribe(draft: DraftVersion, id: u64) -> Result<Vec<u8>, Failure> {
    message!(draft, Subscribe {
        request_id: VarInt::from_u64(id)?,
        track_namespace: TrackNamespace(vec![b"nobody".to_vec()]),
        track_name: b"track".to_vec(),
        parameters: Vec::new(),
    })
}
