//! The publisher.

use crate::{object, say, Failure};
use moqtap_client::dispatch::{AnyArrival, AnyConnection, AnyInboundRequest};
use moqtap_codec::types::TrackNamespace;
use moqtap_codec::varint::VarInt;
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
                AnyArrival::Subscribe { request, .. } => {
                    let alias = VarInt::from_u64(ALIAS)?;
                    conn.accept_subscribe(subscription.insert(request), alias).await?;
                    say("subscribed");
                }
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
    let mut block = Sha256::new().chain_update(track).chain_update(group.to_be_bytes()).chain_update(id.to_be_bytes()).finalize();
    let mut payload = Vec::with_capacity(bytes + block.len());
    while payload.len() < bytes {
        payload.extend_from_slice(&block);
        block = Sha256::digest(block);
    }
    payload.truncate(bytes);
    payload
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
