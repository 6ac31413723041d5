//! TLS for quinn that asks for null protection of 1-RTT packets, and does without protection if the server has asked as well.

use std::{
    any::Any,
    io::Cursor,
    sync::{
        atomic::{AtomicBool, AtomicU8, Ordering},
        Arc,
    },
};

use bytes::BytesMut;
use quinn_proto::{
    crypto::{
        rustls::QuicClientConfig, ClientConfig, CryptoError, ExportKeyingMaterialError, HeaderKey,
        KeyPair, Keys, PacketKey, Session,
    },
    transport_parameters::TransportParameters,
    ConnectError, ConnectionId, Side, TransportError, TransportErrorCode,
};
use rustls::{
    pki_types::ServerName,
    quic::{ClientConnection, Connection, KeyChange, Secrets, Version},
};

/// The transport parameter 0x3f66724e55, without a value: an integer of 8 bytes, and a length of 0.
const NULL_PROTECTION: [u8; 9] = [0xc0, 0, 0, 0x3f, 0x66, 0x72, 0x4e, 0x55, 0];
const TAG: usize = 16;

pub struct Config {
    pub tls: Arc<rustls::ClientConfig>,
    pub stock: Arc<QuicClientConfig>,
    pub null: Arc<AtomicBool>, // packets aren't protected
}

impl ClientConfig for Config {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        name: &str,
        parameters: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let server = ServerName::try_from(name)
            .map_err(|_| ConnectError::InvalidServerName(name.into()))?
            .to_owned();
        let mut ours = Vec::new();
        parameters.write(&mut ours);
        ours.extend(NULL_PROTECTION);
        let client = ClientConnection::new(self.tls.clone(), Version::V1, server, ours)
            .map_err(|_| ConnectError::UnsupportedVersion)?;
        let stateless = self
            .stock
            .clone()
            .start_session(version, name, parameters)?;
        let tls = Connection::Client(client);
        Ok(Box::new(Tls {
            tls,
            stateless,
            next: None,
            null: self.null.clone(),
            phase: Arc::default(),
        }))
    }
}

struct Tls {
    tls: Connection,
    stateless: Box<dyn Session>, // for what has to do with no session
    next: Option<Secrets>,
    null: Arc<AtomicBool>,
    phase: Arc<AtomicU8>,
}

impl Session for Tls {
    fn initial_keys(&self, id: &ConnectionId, side: Side) -> Keys {
        self.stateless.initial_keys(id, side)
    }
    fn is_valid_retry(&self, id: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.stateless.is_valid_retry(id, header, payload)
    }
    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        None
    }
    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }
    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }
    fn early_data_accepted(&self) -> Option<bool> {
        Some(false)
    }
    fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }
    fn read_handshake(&mut self, data: &[u8]) -> Result<bool, TransportError> {
        self.tls.read_hs(data).map_err(|e| TransportError {
            code: TransportErrorCode::PROTOCOL_VIOLATION,
            frame: None,
            reason: e.to_string(),
        })?;
        Ok(false)
    }
    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(theirs) = self.tls.quic_transport_parameters() else {
            return Ok(None);
        };
        Ok(Some(TransportParameters::read(
            Side::Client,
            &mut Cursor::new(theirs),
        )?))
    }
    fn write_handshake(&mut self, data: &mut Vec<u8>) -> Option<Keys> {
        let keys = match self.tls.write_hs(data)? {
            KeyChange::Handshake { keys } => keys,
            KeyChange::OneRtt { keys, next } => {
                self.next = Some(next);
                if self.tls.quic_transport_parameters().is_some_and(asks) {
                    self.null.store(true, Ordering::Relaxed);
                    let header = || Box::new(NullHeader(self.phase.clone()));
                    return Some(Keys {
                        header: KeyPair {
                            local: header(),
                            remote: header(),
                        },
                        packet: KeyPair {
                            local: Box::new(NullPacket),
                            remote: Box::new(NullPacket),
                        },
                    });
                }
                keys
            }
        };
        Some(Keys {
            header: KeyPair {
                local: Box::new(keys.local.header),
                remote: Box::new(keys.remote.header),
            },
            packet: KeyPair {
                local: Box::new(keys.local.packet),
                remote: Box::new(keys.remote.packet),
            },
        })
    }
    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        if self.null.load(Ordering::Relaxed) {
            return Some(KeyPair {
                local: Box::new(NullPacket),
                remote: Box::new(NullPacket),
            });
        }
        let keys = self.next.as_mut()?.next_packet_keys();
        Some(KeyPair {
            local: Box::new(keys.local),
            remote: Box::new(keys.remote),
        })
    }
    fn export_keying_material(
        &self,
        out: &mut [u8],
        label: &[u8],
        c: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.tls
            .export_keying_material(out, label, Some(c))
            .map(|_| ())
            .map_err(|_| ExportKeyingMaterialError)
    }
}

/// Whether transport parameters ask for null protection.
fn asks(mut parameters: &[u8]) -> bool {
    while let (Some(name), Some(size)) = (integer(&mut parameters), integer(&mut parameters)) {
        if name == 0x3f66724e55 {
            return true;
        }
        parameters = parameters.get(size as usize..).unwrap_or(&[]);
    }
    false
}

/// Takes an integer of variable length (RFC 9000, section 16).
fn integer(from: &mut &[u8]) -> Option<u64> {
    let size = 1 << (from.first()? >> 6);
    let (bytes, rest) = (from.get(..size)?, &from[size..]);
    *from = rest;
    Some(bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b)) & ((1 << (8 * size - 2)) - 1))
}

struct NullPacket;

impl PacketKey for NullPacket {
    fn encrypt(&self, _: u64, packet: &mut [u8], _: usize) {
        let end = packet.len() - TAG;
        packet[end..].fill(0);
    }
    fn decrypt(&self, _: u64, _: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        let end = payload.len().checked_sub(TAG).ok_or(CryptoError)?;
        if payload[end..] != [0; TAG] {
            return Err(CryptoError);
        }
        payload.truncate(end);
        Ok(())
    }
    fn tag_len(&self) -> usize {
        TAG
    }
    fn confidentiality_limit(&self) -> u64 {
        u64::MAX
    }
    fn integrity_limit(&self) -> u64 {
        u64::MAX
    }
}

/// With null protection the key phase is 0. Quinn updates its keys all the same: it sees the phase that it wrote last.
struct NullHeader(Arc<AtomicU8>);

const LONG: u8 = 0x80;
const PHASE: u8 = 4;

impl HeaderKey for NullHeader {
    fn encrypt(&self, _: usize, packet: &mut [u8]) {
        if packet[0] & LONG == 0 {
            self.0.store(packet[0] & PHASE, Ordering::Relaxed);
            packet[0] &= !PHASE;
        }
    }
    fn decrypt(&self, _: usize, packet: &mut [u8]) {
        if packet[0] & LONG == 0 {
            packet[0] |= self.0.load(Ordering::Relaxed);
        }
    }
    fn sample_size(&self) -> usize {
        TAG
    }
}
