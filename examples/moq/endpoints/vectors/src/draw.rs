//! What moqtap-codec encodes, drawn at random.

use crate::{codec, hex};
use bytes::BufMut;
use moqtap_codec::auth_token::{AuthorizationToken, TokenAliasType};
use moqtap_codec::kvp::{KeyValuePair, KvpValue};
use moqtap_codec::types::TrackNamespace;
use moqtap_codec::varint::{Moqt18, VarInt};
use moqtap_codec::{draft18, draft22};
use serde_json::{json, Value};

/// A generator of random numbers (SplitMix64) and of what messages consist of.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// Numbers of all lengths on the wire.
    fn number(&mut self) -> u64 {
        let shift = self.below(64);
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => (1 << (7 * (1 + self.below(8)))) - self.below(2),
            _ => self.next() >> shift,
        }
    }

    fn vi(&mut self) -> VarInt {
        VarInt::from_u64_moqt(self.number())
    }

    fn bytes(&mut self, limit: u64) -> Vec<u8> {
        (0..self.below(limit + 1)).map(|_| self.next() as u8).collect()
    }

    fn namespace(&mut self) -> TrackNamespace {
        let fields = (0..self.below(4)).map(|_| self.bytes(12)).filter(|f| !f.is_empty()).collect();
        TrackNamespace(fields)
    }

    fn token(&mut self) -> Vec<u8> {
        let alias_type = TokenAliasType::from_id(self.below(4)).expect("an alias type");
        let both = alias_type.has_type_and_value();
        let token = AuthorizationToken {
            alias_type,
            alias: alias_type.has_alias().then(|| self.number()),
            token_type: both.then(|| self.number()),
            value: if both { self.bytes(20) } else { Vec::new() },
        };
        let mut bytes = Vec::new();
        token.encode_moqt::<Moqt18>(&mut bytes);
        bytes
    }

    /// Key-value pairs in the order of their types, which are above those that drafts define.
    fn key_values(&mut self) -> Vec<KeyValuePair> {
        let mut types: Vec<u64> = (0..self.below(4)).map(|_| 0x40 + self.number() / 2).collect();
        types.sort_unstable();
        types.dedup();
        types
            .into_iter()
            .map(|t| pair(t, if t % 2 == 0 { KvpValue::Varint(self.vi()) } else { KvpValue::Bytes(self.bytes(20)) }))
            .collect()
    }

    fn track_properties(&mut self) -> Vec<KeyValuePair> {
        let mut all = Vec::new();
        for (t, limit) in [(0x02, 1 << 40), (0x04, 1 << 40), (0x06, 1 << 40), (0x0E, 256), (0x30, 2)] {
            if self.below(4) == 0 {
                all.push(pair(t, KvpValue::Varint(VarInt::from_u64_moqt(self.below(limit)))));
            }
        }
        all.extend(self.key_values());
        all
    }

    fn options(&mut self, draft: u64) -> Vec<KeyValuePair> {
        let mut all = Vec::new();
        for t in 1..=8 {
            if t == 2 || t == 6 && draft == 18 || t == 8 && draft == 18 || self.coin() {
                continue;
            }
            match t {
                3 => (0..=self.below(2)).for_each(|_| all.push(pair(3, KvpValue::Bytes(self.token())))),
                4 | 6 | 8 => all.push(pair(t, KvpValue::Varint(VarInt::from_u64_moqt(1 + self.number() / 2)))),
                _ => all.push(pair(t, KvpValue::Bytes([vec![b'/'], self.bytes(20)].concat()))),
            }
        }
        all.extend(self.key_values());
        all
    }

    fn range_filter(&mut self, kind: u64) -> Vec<u8> {
        if self.below(8) == 0 {
            return Vec::new();
        }
        let mut bytes = vec![self.next() as u8];
        if kind >= 0x28 {
            put(&mut bytes, self.number() & !1);
        }
        let limit = if kind == 0x27 { 60 } else { 1 << 50 };
        for _ in 0..self.below(3) {
            put(&mut bytes, self.below(limit));
            put(&mut bytes, self.below(limit));
        }
        if self.coin() {
            put(&mut bytes, self.below(10));
        }
        bytes
    }

    fn filter(&mut self, draft: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (kind, count) = if draft == 18 {
            let kind = 1 + self.below(4);
            (kind, [0, 0, 0, 2, 3][kind as usize])
        } else {
            let kind = self.below(6);
            (kind, [0, 1, 2, 3, 4, 0][kind as usize])
        };
        put(&mut bytes, kind);
        for _ in 0..count {
            put(&mut bytes, self.number() / 2);
        }
        bytes
    }

    fn fill(&mut self) -> Vec<u8> {
        let mut count = 0;
        let mut bytes = Vec::new();
        let mut last = 0;
        for key in [0x0A, 0x20, 0x21, 0x22, 0x26, 0x28] {
            if self.coin() {
                continue;
            }
            put(&mut bytes, key - last);
            last = key;
            count += 1;
            match key {
                0x0A => put(&mut bytes, self.number()),
                0x20 => bytes.push(self.next() as u8),
                0x21 => bytes.extend(self.filter(22)),
                0x22 => bytes.push(1 + self.below(2) as u8),
                _ => {
                    let filter = self.range_filter(key);
                    put(&mut bytes, filter.len() as u64);
                    bytes.extend(filter);
                }
            }
        }
        let mut all = Vec::new();
        put(&mut all, count);
        all.extend(bytes);
        all
    }

    fn parameter(&mut self, draft: u64, key: u64) -> KvpValue {
        let number = |v| KvpValue::Varint(VarInt::from_u64_moqt(v));
        match key {
            0x03 => KvpValue::Bytes(self.token()),
            0x09 => {
                let mut bytes = Vec::new();
                put(&mut bytes, self.number());
                put(&mut bytes, self.number());
                KvpValue::Bytes(bytes)
            }
            0x10 | 0x35 => number(self.below(2)),
            0x20 => number(self.below(256)),
            0x21 => KvpValue::Bytes(self.filter(draft)),
            0x22 => number(1 + self.below(2)),
            0x23 => KvpValue::Bytes(self.fill()),
            0x25..=0x29 => KvpValue::Bytes(self.range_filter(key)),
            0x34 => {
                let mut bytes = Vec::new();
                self.namespace().encode_moqt::<Moqt18>(&mut bytes);
                KvpValue::Bytes(bytes)
            }
            _ => number(self.number()),
        }
    }
}

fn put(bytes: &mut Vec<u8>, v: u64) {
    VarInt::from_u64_moqt(v).encode_moqt::<Moqt18>(bytes);
}

fn pair(key: u64, value: KvpValue) -> KeyValuePair {
    KeyValuePair { key: VarInt::from_u64_moqt(key), value }
}

/// Puts a range filter into another set than one of the same kind before it: two of a set are a fault.
fn distinct(last: Option<&KeyValuePair>, key: u64, mut value: KvpValue) -> KvpValue {
    if let (0x25..=0x29, KvpValue::Bytes(b), Some(KeyValuePair { key: k, value: KvpValue::Bytes(before) })) =
        (key, &mut value, last)
    {
        if k.into_inner() == key && !b.is_empty() && !before.is_empty() {
            b[0] = before[0].wrapping_add(1);
        }
    }
    value
}

// The parameters of each draft, twice if they may be repeated.
const KEYS_18: &[u64] = &[0x02, 0x03, 0x03, 0x04, 0x06, 0x08, 0x09, 0x0A, 0x10, 0x20, 0x21, 0x22, 0x32, 0x34];
const KEYS_22: &[u64] = &[
    0x02, 0x03, 0x03, 0x04, 0x06, 0x08, 0x09, 0x0A, 0x10, 0x20, 0x21, 0x22, 0x23, 0x25, 0x25, 0x26, 0x26, 0x27, 0x28, 0x28,
    0x29, 0x32, 0x34, 0x35,
];

/// All vectors, `count` of each message and of each kind of stream and datagram.
pub fn all(rng: &mut Rng, count: usize) -> Vec<Value> {
    let mut vectors = Vec::new();
    d18::all(rng, count, &mut vectors);
    d22::all(rng, count, &mut vectors);
    vectors
}

macro_rules! draft {
    ($name:ident, $codec:ident, $number:literal, $keys:ident, |$rng:ident| [$($differs:expr),* $(,)?], |$m:ident| { $($parameters:tt)* }) => {
        mod $name {
            use super::*;
            use $codec::data_stream::*;
            use $codec::message::*;

            fn messages($rng: &mut Rng) -> Vec<ControlMessage> {
                use ControlMessage as C;
                vec![
                    C::Setup(Setup { options: $rng.options($number) }),
                    C::RequestOk(RequestOk { parameters: Vec::new(), track_properties: $rng.track_properties() }),
                    C::RequestError(RequestError {
                        error_code: VarInt::from_u64_moqt($rng.below(0x30)),
                        retry_interval: $rng.vi(),
                        reason_phrase: $rng.bytes(30),
                        redirect: None,
                    }),
                    C::RequestError(RequestError {
                        error_code: VarInt::from_u64_moqt(0x34),
                        retry_interval: $rng.vi(),
                        reason_phrase: $rng.bytes(30),
                        redirect: Some(Redirect {
                            connect_uri: $rng.bytes(30),
                            track_namespace: $rng.namespace(),
                            track_name: $rng.bytes(20),
                        }),
                    }),
                    C::RequestUpdate(RequestUpdate { request_id: $rng.vi(), parameters: Vec::new() }),
                    C::Subscribe(Subscribe {
                        request_id: $rng.vi(),
                        track_namespace: $rng.namespace(),
                        track_name: $rng.bytes(20),
                        parameters: Vec::new(),
                    }),
                    C::SubscribeOk(SubscribeOk {
                        track_alias: $rng.vi(),
                        parameters: Vec::new(),
                        track_properties: $rng.track_properties(),
                    }),
                    C::Publish(Publish {
                        request_id: $rng.vi(),
                        track_namespace: $rng.namespace(),
                        track_name: $rng.bytes(20),
                        track_alias: $rng.vi(),
                        parameters: Vec::new(),
                        track_properties: $rng.track_properties(),
                    }),
                    C::PublishDone(PublishDone {
                        status_code: $rng.vi(),
                        stream_count: VarInt::from_u64_moqt($rng.number() >> 3),
                        reason_phrase: $rng.bytes(30),
                    }),
                    C::PublishNamespace(PublishNamespace {
                        request_id: $rng.vi(),
                        track_namespace: $rng.namespace(),
                        parameters: Vec::new(),
                    }),
                    C::Namespace(Namespace { namespace_suffix: $rng.namespace() }),
                    C::NamespaceDone(NamespaceDone { namespace_suffix: $rng.namespace() }),
                    C::SubscribeNamespace(SubscribeNamespace {
                        request_id: $rng.vi(),
                        namespace_prefix: $rng.namespace(),
                        parameters: Vec::new(),
                    }),
                    C::SubscribeTracks(SubscribeTracks {
                        request_id: $rng.vi(),
                        namespace_prefix: $rng.namespace(),
                        parameters: Vec::new(),
                    }),
                    C::TrackStatus(TrackStatus {
                        request_id: $rng.vi(),
                        track_namespace: $rng.namespace(),
                        track_name: $rng.bytes(20),
                        parameters: Vec::new(),
                    }),
                    C::FetchOk(FetchOk {
                        end_of_track: $rng.below(2) as u8,
                        end_group: $rng.vi(),
                        end_object: $rng.vi(),
                        parameters: Vec::new(),
                        track_properties: $rng.track_properties(),
                    }),
                    $($differs),*
                ]
            }

            fn parameters($m: &mut ControlMessage) -> Option<&mut Vec<KeyValuePair>> {
                use ControlMessage as C;
                Some(match $m {
                    C::RequestOk(m) => &mut m.parameters,
                    C::RequestUpdate(m) => &mut m.parameters,
                    C::Subscribe(m) => &mut m.parameters,
                    C::SubscribeOk(m) => &mut m.parameters,
                    C::Publish(m) => &mut m.parameters,
                    C::PublishNamespace(m) => &mut m.parameters,
                    C::SubscribeNamespace(m) => &mut m.parameters,
                    C::SubscribeTracks(m) => &mut m.parameters,
                    C::TrackStatus(m) => &mut m.parameters,
                    C::FetchOk(m) => &mut m.parameters,
                    $($parameters)*
                    _ => return None,
                })
            }

            fn encoded(m: &ControlMessage) -> Option<Vec<u8>> {
                let mut bytes = Vec::new();
                m.encode(&mut bytes).ok().map(|()| bytes)
            }

            /// Gives a message some of the parameters that the codec lets it have.
            fn with_parameters(rng: &mut Rng, m: &mut ControlMessage) {
                for &key in $keys {
                    let value = rng.parameter($number, key);
                    let Some(all) = parameters(m) else { return };
                    if rng.below(3) == 0 {
                        continue;
                    }
                    all.push(pair(key, distinct(all.last(), key, value)));
                    if encoded(m).is_none() {
                        parameters(m).expect("it has them").pop();
                    }
                }
            }

            fn subgroup(rng: &mut Rng) -> Vec<u8> {
                let header_type = 0x10 | rng.next() as u8 & 0x69 | (rng.below(3) as u8) << 1;
                let h = SubgroupHeader {
                    header_type,
                    track_alias: rng.vi(),
                    group_id: rng.vi(),
                    subgroup_id: rng.vi(),
                    publisher_priority: (header_type & 0x20 == 0).then(|| rng.next() as u8),
                };
                let mut bytes = Vec::new();
                h.encode_checked(&mut bytes).expect("a valid type");
                let mut writer = SubgroupObjectReader::new(&h);
                let mut id = 0;
                for _ in 0..rng.below(5) {
                    id += 1 + (rng.number() >> 5);
                    let payload = rng.bytes(30);
                    let normal = !payload.is_empty() || rng.coin();
                    let status = [$codec::types::ObjectStatus::EndOfGroup, $codec::types::ObjectStatus::EndOfTrack];
                    let o = SubgroupObject {
                        object_id: VarInt::from_u64_moqt(id),
                        extension_headers: if h.has_properties() && normal { properties(rng) } else { Vec::new() },
                        payload_length: VarInt::from_usize(payload.len()),
                        object_status: (!normal).then_some(status[rng.below(2) as usize]),
                        payload,
                    };
                    writer.write_object(&o, &mut bytes).expect("a valid object");
                }
                bytes
            }

            fn datagram(rng: &mut Rng) -> Vec<u8> {
                let mut datagram_type = rng.next() as u8 & 0x2F;
                if datagram_type & 0x20 != 0 {
                    datagram_type &= !0x03;
                }
                let mut properties = Vec::new();
                if datagram_type & 0x01 != 0 {
                    properties = super::properties(rng);
                    if properties.is_empty() {
                        datagram_type &= !0x01;
                    }
                }
                let status = [$codec::types::ObjectStatus::EndOfGroup, $codec::types::ObjectStatus::EndOfTrack];
                let h = DatagramHeader {
                    datagram_type,
                    track_alias: rng.vi(),
                    group_id: rng.vi(),
                    object_id: if datagram_type & 0x04 != 0 { VarInt::from_usize(0) } else { rng.vi() },
                    publisher_priority: (datagram_type & 0x08 == 0).then(|| rng.next() as u8),
                    properties,
                    object_status: (datagram_type & 0x20 != 0).then_some(status[rng.below(2) as usize]),
                };
                let mut bytes = Vec::new();
                h.encode_checked(&mut bytes).expect("a valid datagram");
                if datagram_type & 0x20 == 0 {
                    bytes.extend(rng.bytes(30));
                }
                bytes
            }

            fn fetched(rng: &mut Rng, descending: bool) -> Vec<u8> {
                let mut bytes = Vec::new();
                FetchHeader { request_id: rng.vi() }.encode(&mut bytes);
                let order = if descending { GroupOrder::Descending } else { GroupOrder::Ascending };
                let mut reader = FetchObjectReader::new(order);
                for first in [true, false, false, false, false, false] {
                    let mut flags = rng.next() & 0x7F;
                    if first {
                        flags |= 0x1C;
                    }
                    if flags & 0x40 != 0 {
                        flags &= !0x03;
                    }
                    let payload = rng.bytes(30);
                    let fields = if flags & 0x20 != 0 { properties(rng) } else { Vec::new() };
                    let group = if first { 1 << 62 } else { rng.number() >> 8 };
                    let object = 1 + (rng.number() >> 8);
                    let h = FetchObjectHeader {
                        serialization_flags: VarInt::from_u64_moqt(flags).into(),
                        group_id_delta: (flags & 0x08 != 0).then(|| VarInt::from_u64_moqt(group)),
                        subgroup_id: (flags & 0x43 == 0x03).then(|| rng.vi()),
                        object_id_delta: (flags & 0x04 != 0).then(|| VarInt::from_u64_moqt(object)),
                        publisher_priority: (flags & 0x10 != 0).then(|| rng.next() as u8),
                        properties: codec::Properties::new(flags & 0x20 != 0, fields),
                        payload_length: VarInt::from_usize(payload.len()),
                    };
                    let mut header = Vec::new();
                    h.encode(&mut header).expect("a valid header");
                    let before = reader.clone();
                    if reader.read_object_header(&mut &header[..]).is_ok() {
                        bytes.extend(header);
                        bytes.extend(payload);
                    } else {
                        reader = before;
                    }
                }
                bytes
            }

            pub fn all(rng: &mut Rng, count: usize, vectors: &mut Vec<Value>) {
                for _ in 0..count {
                    for mut m in messages(rng) {
                        with_parameters(rng, &mut m);
                        let bytes = encoded(&m).expect("a message without what the codec refuses");
                        let fields = codec::$name::fields(&m).expect("fields");
                        vectors.push(json!({ "draft": $number, "kind": "message", "hex": hex(&bytes), "fields": fields }));
                    }
                    let streams = [
                        ("subgroup", subgroup(rng)),
                        ("datagram", datagram(rng)),
                        ("ascending", fetched(rng, false)),
                        ("descending", fetched(rng, true)),
                    ];
                    for (kind, bytes) in streams {
                        let fields = codec::read($number, kind, &bytes).expect(kind);
                        vectors.push(json!({ "draft": $number, "kind": kind, "hex": hex(&bytes), "fields": fields }));
                    }
                }
            }
        }
    };
}

fn properties(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut last = 0;
    for p in rng.key_values() {
        let key = p.key.into_inner();
        put(&mut bytes, key - last);
        last = key;
        match p.value {
            KvpValue::Varint(v) => put(&mut bytes, v.into_inner()),
            KvpValue::Bytes(b) => {
                put(&mut bytes, b.len() as u64);
                bytes.put_slice(&b);
            }
        }
    }
    bytes
}

draft!(
    d18,
    draft18,
    18,
    KEYS_18,
    |rng| [
        C::GoAway(GoAway {
            new_session_uri: rng.bytes(30),
            timeout: rng.vi(),
            request_id: rng.coin().then(|| rng.vi()),
        }),
        C::Fetch({
            let group = rng.number() / 2;
            Fetch {
                request_id: rng.vi(),
                fetch_type: FetchType::Standalone,
                fetch_payload: FetchPayload::Standalone {
                    track_namespace: rng.namespace(),
                    track_name: rng.bytes(20),
                    start_group: VarInt::from_u64_moqt(group),
                    start_object: rng.vi(),
                    end_group: VarInt::from_u64_moqt(group + 1 + rng.number() / 4),
                    end_object: rng.vi(),
                },
                parameters: Vec::new(),
            }
        }),
        C::Fetch(Fetch {
            request_id: rng.vi(),
            fetch_type: if rng.coin() { FetchType::RelativeJoining } else { FetchType::AbsoluteJoining },
            fetch_payload: FetchPayload::Joining { joining_request_id: rng.vi(), joining_start: rng.vi() },
            parameters: Vec::new(),
        }),
        C::PublishBlocked(PublishBlocked { namespace_suffix: rng.namespace(), track_name: rng.bytes(20) }),
    ],
    |m| { C::Fetch(m) => &mut m.parameters, }
);

draft!(
    d22,
    draft22,
    22,
    KEYS_22,
    |rng| [
        C::GoAway(GoAway { new_session_uri: rng.bytes(30), timeout: rng.vi() }),
        C::Fetch(Fetch {
            request_id: rng.vi(),
            track_namespace: rng.namespace(),
            track_name: rng.bytes(20),
            parameters: Vec::new(),
        }),
        C::PublishStateNotify(PublishStateNotify { parameters: Vec::new() }),
        C::PublishSkipped(PublishSkipped { namespace_suffix: rng.namespace(), track_name: rng.bytes(20) }),
    ],
    |m| { C::Fetch(m) => &mut m.parameters, C::PublishStateNotify(m) => &mut m.parameters, }
);
