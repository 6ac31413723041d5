//! Requests, and the objects that come.

use crate::{explain, filter, object, say, Failure};
use moqtap_client::dispatch::{
    AnyConnection, AnyConnectionError, AnyFetchReader, AnyRequest, AnySubgroupReader, ErrorCause, FetchRange,
};
use moqtap_codec::dispatch::AnyControlMessage;
use moqtap_codec::draft18::message::ControlMessage as Message18;
use moqtap_codec::draft22::message::ControlMessage as Message22;
use moqtap_codec::types::{GroupOrder, TrackNamespace};
use tokio::sync::mpsc::{unbounded_channel, UnboundedSender};

/// What a relay answers, as a line: its name, and for an error the code and the reason.
pub async fn answer(conn: &mut AnyConnection, request: &mut AnyRequest) -> Result<String, Failure> {
    macro_rules! line {
        ($message:expr, $draft:ident) => {
            match $message {
                $draft::RequestOk(_) => "ok".into(),
                $draft::SubscribeOk(_) => "ok".into(),
                $draft::FetchOk(m) => format!("ok {}.{}", m.end_group.into_inner(), m.end_object.into_inner()),
                $draft::RequestError(m) => {
                    format!("error {:#x} {}", m.error_code.into_inner(), String::from_utf8_lossy(&m.reason_phrase))
                }
                $draft::Namespace(_) => "namespace".into(),
                $draft::PublishDone(m) => {
                    format!("done {:#x} {}", m.status_code.into_inner(), m.stream_count.into_inner())
                }
                other => format!("{other:?}"),
            }
        };
    }
    Ok(match conn.recv_response(request).await? {
        Some(AnyControlMessage::Draft18(m)) => line!(m, Message18),
        Some(AnyControlMessage::Draft22(m)) => line!(m, Message22),
        other => format!("{other:?}"),
    })
}

/// Subscribes, and ends after some objects and PUBLISH_DONE.
pub async fn subscribe(
    conn: &mut AnyConnection,
    namespace: TrackNamespace,
    track: Vec<u8>,
    count: usize,
    filters: &[&str],
) -> Result<(), Failure> {
    let draft = conn.draft();
    let mut parameters =
        filters.iter().map(|text| filter::parameter(draft, text)).collect::<Result<Vec<_>, Failure>>()?;
    parameters.sort_by_key(|p| p.key);
    let mut request = match conn {
        AnyConnection::Draft18(c) => AnyRequest::Draft18(c.subscribe(namespace, track, parameters).await?),
        AnyConnection::Draft22(c) => AnyRequest::Draft22(c.subscribe(namespace, track, parameters).await?),
    };
    let said = answer(conn, &mut request).await?;
    say(&said);
    if !said.starts_with("ok") {
        return Ok(());
    }
    if filters.iter().any(|text| text.starts_with("fill=")) {
        fill(conn).await?; // it is the first stream, if the publisher sends no objects meanwhile
    }
    let (sender, mut objects) = unbounded_channel();
    let (mut seen, mut streams) = (0, 0);
    let mut accepting = Box::pin(conn.accept_subgroup()); // if it were dropped, it would lose a stream without a header
    while seen < count {
        tokio::select! {
            accepted = &mut accepting => {
                let (header, reader) = accepted?;
                accepting = Box::pin(conn.accept_subgroup());
                streams += 1;
                tokio::spawn(read(reader, header.group_id(), header.subgroup_id(), sender.clone()));
            }
            line = objects.recv() => {
                say(&line.expect("there is a sender")?);
                seen += 1;
            }
        }
    }
    drop(accepting);
    say(&format!("{} of {streams} streams", answer(conn, &mut request).await?));
    Ok(())
}

/// Reads a subgroup to its end.
async fn read(
    mut reader: AnySubgroupReader,
    group: u64,
    subgroup: Option<u64>,
    to: UnboundedSender<Result<String, String>>,
) {
    let mut subgroup = subgroup;
    loop {
        let line = match reader.read_object().await {
            Ok(o) => {
                let subgroup = *subgroup.get_or_insert(o.object_id); // that of its first object
                if o.status.is_some() {
                    continue; // END_OF_GROUP, END_OF_TRACK
                }
                Ok(object(group, Some(subgroup), o.object_id, &o.payload))
            }
            Err(e) if ended(&e) || cut_off(&e) => return,
            Err(e) => Err(explain(&e)),
        };
        let failed = line.is_err();
        if to.send(line).is_err() || failed {
            return;
        }
    }
}

fn ended(error: &AnyConnectionError) -> bool {
    matches!(error.cause(), ErrorCause::StreamEnded)
}

/// Whether a subgroup goes on with another stream, if at all.
fn cut_off(error: &AnyConnectionError) -> bool {
    matches!(error.cause(), ErrorCause::StreamReset(_))
}

/// Fetches a range, or the whole track in draft 22.
pub async fn fetch(
    conn: &mut AnyConnection,
    namespace: TrackNamespace,
    track: Vec<u8>,
    range: &[&str],
) -> Result<(), Failure> {
    let mut request = match (range, &mut *conn) {
        ([], AnyConnection::Draft22(c)) => AnyRequest::Draft22(c.fetch(namespace, track, Vec::new()).await?),
        ([text], _) => {
            let ((group, object), (end, last)) = filter::range(text)?;
            conn.fetch(namespace, track, FetchRange::through_object(group, object, end, last)).await?
        }
        _ => return Err("fetch takes a range".into()),
    };
    let said = answer(conn, &mut request).await?;
    say(&said);
    if said.starts_with("ok") {
        let (_, reader) = conn.accept_fetch(GroupOrder::Ascending).await?;
        fetched(reader).await?;
    }
    Ok(())
}

async fn fill(conn: &mut AnyConnection) -> Result<(), Failure> {
    let AnyConnection::Draft22(c) = conn else { return Err("draft 18 has no fill".into()) };
    let (_, stream) = c.accept_fill_stream().await?;
    fetched(AnyFetchReader::Draft22(stream)).await
}

async fn fetched(mut reader: AnyFetchReader) -> Result<(), Failure> {
    loop {
        match reader.read_object().await {
            Ok(o) => say(&match o.end_of_range {
                Some(code) => format!("{} - {} end {code:#x}", o.group_id, o.object_id),
                None => object(o.group_id, o.subgroup_id, o.object_id, &o.payload),
            }),
            Err(e) if ended(&e) => break,
            Err(e) => return Err(explain(&e).into()),
        }
    }
    say("fetched");
    Ok(())
}

pub async fn status(conn: &mut AnyConnection, namespace: TrackNamespace, track: Vec<u8>) -> Result<(), Failure> {
    let mut request = conn.track_status(namespace, track).await?;
    say(&answer(conn, &mut request).await?);
    Ok(())
}

/// Waits until a namespace has a publisher.
pub async fn namespace(conn: &mut AnyConnection, namespace: TrackNamespace) -> Result<(), Failure> {
    let mut request = conn.subscribe_namespace(namespace).await?;
    say(&answer(conn, &mut request).await?);
    say(&answer(conn, &mut request).await?);
    Ok(())
}
