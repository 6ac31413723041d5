//! What moqtap-codec decodes, as JSON.

use crate::hex;
use bytes::Buf;
use moqtap_codec::auth_token::AuthorizationToken;
use moqtap_codec::kvp::{KeyValuePair, KvpValue};
use moqtap_codec::range_filter::{self, RangeFilter};
use moqtap_codec::types::TrackNamespace;
use moqtap_codec::varint::{Moqt18, VarInt};
use moqtap_codec::{draft18, draft22};
use serde_json::{json, Value};

/// The properties of an object on a fetch stream, of which the drafts have a type each.
pub trait Properties {
    fn bytes(&self) -> &[u8];
    fn new(present: bool, bytes: Vec<u8>) -> Self;
}

impl Properties for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn new(_: bool, bytes: Vec<u8>) -> Self {
        bytes
    }
}

impl Properties for Option<Vec<u8>> {
    fn bytes(&self) -> &[u8] {
        self.as_deref().unwrap_or_default()
    }

    fn new(present: bool, bytes: Vec<u8>) -> Self {
        present.then_some(bytes)
    }
}

type Answer = Result<Value, String>;

fn wrong(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Reads the whole of what a vector has.
pub fn read(draft: u64, kind: &str, bytes: &[u8]) -> Answer {
    match (draft, kind) {
        (18, "message") => d18::message(bytes),
        (22, "message") => d22::message(bytes),
        (18, "subgroup") => d18::subgroup(bytes),
        (22, "subgroup") => d22::subgroup(bytes),
        (18, "datagram") => d18::datagram(bytes),
        (22, "datagram") => d22::datagram(bytes),
        (18, _) => d18::fetched(bytes, kind == "descending"),
        (22, _) => d22::fetched(bytes, kind == "descending"),
        _ => Err(format!("no draft {draft}")),
    }
}

fn number(v: VarInt) -> u64 {
    v.into_inner()
}

fn namespace(n: &TrackNamespace) -> Value {
    n.0.iter().map(|f| Value::from(hex(f))).collect()
}

fn key_values(pairs: &[KeyValuePair]) -> Value {
    pairs
        .iter()
        .map(|p| match &p.value {
            KvpValue::Varint(v) => json!([number(p.key), number(*v)]),
            KvpValue::Bytes(b) => json!([number(p.key), hex(b)]),
        })
        .collect()
}

fn token(bytes: &[u8]) -> Value {
    let t = AuthorizationToken::decode_moqt::<Moqt18>(3, bytes).expect("a token that was decoded before");
    let mut f = json!({ "alias_type": t.alias_type.id() });
    if let Some(alias) = t.alias {
        f["alias"] = alias.into();
    }
    if let Some(token_type) = t.token_type {
        f["token_type"] = token_type.into();
        f["value"] = hex(&t.value).into();
    }
    f
}

/// SETUP's options: as key-value pairs, but for tokens.
fn options(pairs: &[KeyValuePair]) -> Value {
    let mut all = key_values(pairs);
    for (shown, p) in all.as_array_mut().expect("an array").iter_mut().zip(pairs) {
        if let (3, KvpValue::Bytes(b)) = (number(p.key), &p.value) {
            shown[1] = token(b);
        }
    }
    all
}

fn numbers(mut bytes: &[u8]) -> Vec<u64> {
    let mut all = Vec::new();
    while bytes.has_remaining() {
        all.push(number(VarInt::decode_moqt::<Moqt18>(&mut bytes).expect("numbers")));
    }
    all
}

fn range_filter(kind: u64, bytes: &[u8]) -> Answer {
    if bytes.is_empty() {
        return Ok(json!({ "removed": true }));
    }
    let r = RangeFilter::decode_moqt::<Moqt18>(kind, bytes).map_err(wrong)?;
    let ranges: Vec<Value> = r
        .ranges
        .iter()
        .map(|s| match s.end {
            Some(end) => json!([s.start, end]),
            None => json!([s.start]),
        })
        .collect();
    let mut f = json!({ "set": r.set_id, "ranges": ranges });
    if let Some(property) = r.property_type {
        f["property"] = property.into();
    }
    Ok(f)
}

fn parameters(draft: u64, pairs: &[KeyValuePair]) -> Answer {
    let kept = |p: &&KeyValuePair| !matches!(&p.value, KvpValue::Bytes(b) if b.is_empty());
    let present: Vec<KeyValuePair> = pairs.iter().filter(kept).cloned().collect();
    let filters = range_filter::decode_all_moqt::<Moqt18>(&present).map_err(wrong)?;
    if range_filter::first_repeated_key(&filters).is_some() {
        return Err("two range filters of one kind, set and property".into());
    }
    let mut all = Vec::new();
    for p in pairs {
        let key = number(p.key);
        let value = match &p.value {
            KvpValue::Varint(v) => json!(number(*v)),
            KvpValue::Bytes(b) => match key {
                0x03 => token(b),
                0x09 => json!(numbers(b)),
                0x21 => {
                    let n = numbers(b);
                    json!({ "type": n[0], "numbers": n[1..] })
                }
                0x23 => parameters(draft, &draft22::message::decode_fill_parameters(b).map_err(wrong)?)?,
                0x25..=0x29 => range_filter(key, b)?,
                0x34 => namespace(&TrackNamespace::decode_allow_empty_moqt::<Moqt18>(&mut &b[..]).map_err(wrong)?),
                _ => json!(hex(b)),
            },
        };
        all.push(json!([key, value]));
    }
    Ok(Value::from(all))
}

/// The readers of one draft: what the modules of both have alike, and the arms for the messages that differ.
macro_rules! draft {
    ($name:ident, $codec:ident, $number:literal, |$f:ident| { $($differs:tt)* }) => {
        pub mod $name {
            use super::*;
            use $codec::data_stream::*;
            use $codec::message::*;

            pub fn message(bytes: &[u8]) -> Answer {
                let mut buf = bytes;
                let m = ControlMessage::decode(&mut buf).map_err(wrong)?;
                if buf.has_remaining() {
                    return Err("something follows the message".into());
                }
                fields(&m)
            }

            pub fn fields(message: &ControlMessage) -> Answer {
                use ControlMessage as C;
                let mut $f = json!({ "type": message.message_type().id() });
                match message {
                    C::Setup(m) => $f["options"] = options(&m.options),
                    C::RequestOk(m) => {
                        $f["parameters"] = parameters($number, &m.parameters)?;
                        $f["properties"] = key_values(&m.track_properties);
                    }
                    C::RequestError(m) => {
                        $f["code"] = number(m.error_code).into();
                        $f["retry"] = number(m.retry_interval).into();
                        $f["reason"] = hex(&m.reason_phrase).into();
                        if let Some(r) = &m.redirect {
                            $f["redirect"] = json!({
                                "uri": hex(&r.connect_uri),
                                "track_namespace": namespace(&r.track_namespace),
                                "track_name": hex(&r.track_name),
                            });
                        }
                    }
                    C::Subscribe(m) => {
                        $f["request_id"] = number(m.request_id).into();
                        $f["track_namespace"] = namespace(&m.track_namespace);
                        $f["track_name"] = hex(&m.track_name).into();
                        $f["parameters"] = parameters($number, &m.parameters)?;
                    }
                    C::SubscribeOk(m) => {
                        $f["track_alias"] = number(m.track_alias).into();
                        $f["parameters"] = parameters($number, &m.parameters)?;
                        $f["properties"] = key_values(&m.track_properties);
                    }
                    C::RequestUpdate(m) => {
                        $f["request_id"] = number(m.request_id).into();
                        $f["parameters"] = parameters($number, &m.parameters)?;
                    }
                    C::Publish(m) => {
                        $f["request_id"] = number(m.request_id).into();
                        $f["track_namespace"] = namespace(&m.track_namespace);
                        $f["track_name"] = hex(&m.track_name).into();
                        $f["track_alias"] = number(m.track_alias).into();
                        $f["parameters"] = parameters($number, &m.parameters)?;
                        $f["properties"] = key_values(&m.track_properties);
                    }
                    C::PublishDone(m) => {
                        $f["code"] = number(m.status_code).into();
                        $f["streams"] = number(m.stream_count).into();
                        $f["reason"] = hex(&m.reason_phrase).into();
                    }
                    C::PublishNamespace(m) => {
                        $f["request_id"] = number(m.request_id).into();
                        $f["track_namespace"] = namespace(&m.track_namespace);
                        $f["parameters"] = parameters($number, &m.parameters)?;
                    }
                    C::Namespace(m) => $f["track_namespace"] = namespace(&m.namespace_suffix),
                    C::NamespaceDone(m) => $f["track_namespace"] = namespace(&m.namespace_suffix),
                    C::SubscribeNamespace(m) => {
                        $f["request_id"] = number(m.request_id).into();
                        $f["track_namespace"] = namespace(&m.namespace_prefix);
                        $f["parameters"] = parameters($number, &m.parameters)?;
                    }
                    C::SubscribeTracks(m) => {
                        $f["request_id"] = number(m.request_id).into();
                        $f["track_namespace"] = namespace(&m.namespace_prefix);
                        $f["parameters"] = parameters($number, &m.parameters)?;
                    }
                    C::TrackStatus(m) => {
                        $f["request_id"] = number(m.request_id).into();
                        $f["track_namespace"] = namespace(&m.track_namespace);
                        $f["track_name"] = hex(&m.track_name).into();
                        $f["parameters"] = parameters($number, &m.parameters)?;
                    }
                    C::FetchOk(m) => {
                        $f["end_of_track"] = m.end_of_track.into();
                        $f["end"] = json!([number(m.end_group), number(m.end_object)]);
                        $f["parameters"] = parameters($number, &m.parameters)?;
                        $f["properties"] = key_values(&m.track_properties);
                    }
                    $($differs)*
                }
                Ok($f)
            }

            pub fn subgroup(bytes: &[u8]) -> Answer {
                let mut buf = bytes;
                let h = SubgroupHeader::decode(&mut buf).map_err(wrong)?;
                let mut reader = SubgroupObjectReader::new(&h);
                let mut objects = Vec::new();
                while buf.has_remaining() {
                    let o = reader.read_object(&mut buf).map_err(wrong)?;
                    objects.push(json!({
                        "id": number(o.object_id),
                        "properties": hex(&o.extension_headers),
                        "status": o.object_status.map_or(0, |s| s.as_u64()),
                        "payload": hex(&o.payload),
                    }));
                }
                Ok(json!({
                    "track_alias": number(h.track_alias),
                    "group": number(h.group_id),
                    "subgroup": if h.subgroup_id_mode() == 1 { json!("first") } else { number(h.subgroup_id).into() },
                    "priority": h.publisher_priority,
                    "properties": h.has_properties(),
                    "end_of_group": h.is_end_of_group(),
                    "first_object": h.is_first_object(),
                    "objects": objects,
                }))
            }

            pub fn datagram(bytes: &[u8]) -> Answer {
                let mut buf = bytes;
                let (h, payload) = DatagramHeader::decode_object(&mut buf).map_err(wrong)?;
                Ok(json!({
                    "track_alias": number(h.track_alias),
                    "group": number(h.group_id),
                    "id": number(h.object_id),
                    "priority": h.publisher_priority,
                    "properties": hex(&h.properties),
                    "end_of_group": h.is_end_of_group(),
                    "status": h.object_status.map_or(0, |s| s.as_u64()),
                    "payload": hex(&payload),
                }))
            }

            pub fn fetched(bytes: &[u8], descending: bool) -> Answer {
                let mut buf = bytes;
                let h = FetchHeader::decode(&mut buf).map_err(wrong)?;
                let mut reader =
                    FetchObjectReader::new(if descending { GroupOrder::Descending } else { GroupOrder::Ascending });
                let mut objects = Vec::new();
                while buf.has_remaining() {
                    let o = reader.read_object_header(&mut buf).map_err(wrong)?;
                    if o.header.end_of_range().is_some() {
                        return Err("a marker, which TestDisagreements is about".into());
                    }
                    let length = number(o.header.payload_length) as usize;
                    if length > buf.remaining() {
                        return Err("the stream ends within a payload".into());
                    }
                    let payload = hex(&buf[..length]);
                    buf.advance(length);
                    objects.push(json!({
                        "group": o.group_id,
                        "id": o.object_id,
                        "subgroup": o.subgroup_id,
                        "priority": o.publisher_priority,
                        "properties": hex(o.header.properties.bytes()),
                        "payload": payload,
                    }));
                }
                Ok(json!({ "request_id": number(h.request_id), "objects": objects }))
            }
        }
    };
}

draft!(d18, draft18, 18, |f| {
    C::GoAway(m) => {
        f["uri"] = hex(&m.new_session_uri).into();
        f["timeout"] = number(m.timeout).into();
        if let Some(id) = m.request_id {
            f["request_id"] = number(id).into();
        }
    }
    C::Fetch(m) => {
        f["request_id"] = number(m.request_id).into();
        f["fetch_type"] = (m.fetch_type as u64).into();
        f["parameters"] = parameters(18, &m.parameters)?;
        match &m.fetch_payload {
            FetchPayload::Standalone { track_namespace, track_name, start_group, start_object, end_group, end_object } => {
                f["track_namespace"] = namespace(track_namespace);
                f["track_name"] = hex(track_name).into();
                f["start"] = json!([number(*start_group), number(*start_object)]);
                f["end"] = json!([number(*end_group), number(*end_object)]);
            }
            FetchPayload::Joining { joining_request_id, joining_start } => {
                f["joining_request_id"] = number(*joining_request_id).into();
                f["joining_start"] = number(*joining_start).into();
            }
        }
    }
    C::PublishBlocked(m) => {
        f["track_namespace"] = namespace(&m.namespace_suffix);
        f["track_name"] = hex(&m.track_name).into();
    }
});

draft!(d22, draft22, 22, |f| {
    C::GoAway(m) => {
        f["uri"] = hex(&m.new_session_uri).into();
        f["timeout"] = number(m.timeout).into();
    }
    C::Fetch(m) => {
        f["request_id"] = number(m.request_id).into();
        f["track_namespace"] = namespace(&m.track_namespace);
        f["track_name"] = hex(&m.track_name).into();
        f["parameters"] = parameters(22, &m.parameters)?;
    }
    C::PublishStateNotify(m) => f["parameters"] = parameters(22, &m.parameters)?,
    C::PublishSkipped(m) => {
        f["track_namespace"] = namespace(&m.namespace_suffix);
        f["track_name"] = hex(&m.track_name).into();
    }
});
