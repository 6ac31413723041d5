//! The publisher.

use crate::{object, say, Failure};
use moqtap_client::dispatch::{AnyArrival, AnyConnection, AnyInboundRequest};
use moqtap_codec::dispatch::AnyControlMessage;
use moqtap_codec::draft18::message::ControlMessage as Message18;
use moqtap_codec::draft22::message::ControlMessage as Message22;
use moqtap_codec::types::TrackNamespace;
use moqtap_codec::varint::VarInt;
use moqtap_codec::{draft18, draft22};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, BufReader};

/// The track's alias.
const ALIAS: u64 = 7;

pub async fn run(
    conn: &mut AnyConnection,
    namespace: TrackNamespace,
    track: Vec<u8>,
    first: u64,
) -> Result<(), Failure> {
    let mut announced = conn.publish_namespace(namespace).await?;
    say(&crate::request::answer(conn, &mut announced).await?);
    let mut subscription = None;
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let (mut group, mut streams) = (first, 0);
    loop {
        // Its input is read once the track is subscribed to.
        tokio::select! {
            arrival = conn.recv_inbound() => match arrival? {
                AnyArrival::Subscribe { message, request } if name(&message) == track => {
                    let alias = VarInt::from_u64(ALIAS)?;
                    conn.accept_subscribe(subscription.insert(request), alias).await?;
                    say("subscribed");
                }
                AnyArrival::Subscribe { request, .. } => refuse(conn, request).await?,
                AnyArrival::Other(message) => say(&format!("refused {message:?}")),
            },
            line = input.next_line(), if subscription.is_some() => {
                let Some(line) = line? else { return Ok(()) };
                match line.split(' ').collect::<Vec<_>>()[..] {
                    ["done"] => {
                        done(conn, subscription.as_mut().expect("there is one"), streams).await?;
                        say("done");
                    }
                    [objects, bytes] => {
                        streams += send(conn, &track, group, objects.parse()?, bytes.parse()?).await?;
                        group += 1;
                    }
                    _ => return Err(format!("{line:?} is neither OBJECTS BYTES nor done").into()),
                }
            }
        }
    }
}

/// Sends a group in two subgroups, the even objects and the odd ones, and returns how many streams that took.
async fn send(conn: &AnyConnection, track: &[u8], group: u64, objects: u64, bytes: usize) -> Result<u64, Failure> {
    let count = objects.min(2);
    let mut streams = Vec::new();
    for subgroup in 0..count {
        streams.push(conn.open_subgroup(ALIAS, group, subgroup, 100 + subgroup as u8).await?);
    }
    for id in 0..objects {
        let subgroup = id % count;
        let payload = payload(track, group, id, bytes);
        streams[subgroup as usize].write_object(id, &payload).await?;
        say(&object(group, Some(subgroup), id, &payload));
    }
    for stream in &mut streams {
        stream.finish().await?;
    }
    Ok(count)
}

/// Bytes that are those of one object only.
fn payload(track: &[u8], group: u64, id: u64, bytes: usize) -> Vec<u8> {
    let mut block = Sha256::digest([track, &group.to_be_bytes(), &id.to_be_bytes()].concat());
    let mut payload = Vec::with_capacity(bytes + block.len());
    while payload.len() < bytes {
        payload.extend_from_slice(&block);
        block = Sha256::digest(block);
    }
    payload.truncate(bytes);
    payload
}

/// The track that a SUBSCRIBE names.
fn name(message: &AnyControlMessage) -> &[u8] {
    match message {
        AnyControlMessage::Draft18(Message18::Subscribe(m)) => &m.track_name,
        AnyControlMessage::Draft22(Message22::Subscribe(m)) => &m.track_name,
        _ => &[],
    }
}

/// Refuses a SUBSCRIBE of another track, with DOES_NOT_EXIST.
async fn refuse(conn: &mut AnyConnection, request: AnyInboundRequest) -> Result<(), Failure> {
    let (error_code, retry_interval) = (VarInt::from_u64(0x10)?, VarInt::from_u64(0)?);
    let reason_phrase = b"there is no such track".to_vec();
    match (conn, request) {
        (AnyConnection::Draft18(c), AnyInboundRequest::Draft18(mut r)) => {
            let error = draft18::message::RequestError { error_code, retry_interval, reason_phrase, redirect: None };
            c.respond_error(&mut r, error).await?;
        }
        (AnyConnection::Draft22(c), AnyInboundRequest::Draft22(mut r)) => {
            let error = draft22::message::RequestError { error_code, retry_interval, reason_phrase, redirect: None };
            c.respond_error(&mut r, error).await?;
        }
        _ => unreachable!("a request is of its connection's draft"),
    }
    Ok(())
}

/// Ends the subscription: the track has ended.
async fn done(conn: &mut AnyConnection, request: &mut AnyInboundRequest, streams: u64) -> Result<(), Failure> {
    let (code, streams) = (VarInt::from_u64(2)?, VarInt::from_u64(streams)?);
    match (conn, request) {
        (AnyConnection::Draft18(c), AnyInboundRequest::Draft18(r)) => {
            c.publish_done_on(r, code, streams, Vec::new()).await?;
            r.finish().await?;
        }
        (AnyConnection::Draft22(c), AnyInboundRequest::Draft22(r)) => {
            c.publish_done_on(r, code, streams, Vec::new()).await?;
        }
        _ => unreachable!("a request is of its connection's draft"),
    }
    Ok(())
}
