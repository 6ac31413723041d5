//! A subscriber by quinn, as it is published or with null protection of 1-RTT packets.
//!
//!     quinn-subscriber HOST:PORT FEED null|stock STREAMS
//!
//! It prints "ok null" or "ok protected" when it is subscribed, for each stream "stream SHA256" or "reset CODE", and ends with
//! its input after as many streams as it was told: with "acks SENT ASKED", how many ACK frames it has sent, and how many
//! ACK_FREQUENCY frames it got.

mod null;

use std::{
    error::Error,
    net::SocketAddr,
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
};

use quinn::{crypto::rustls::QuicClientConfig, ReadError, ReadToEndError, RecvStream, VarInt};
use ring::digest;
use rustls::{
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime},
    DigitallySignedStruct, SignatureScheme,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, feed, protection, streams] = &args[..] else {
        return Err("want: HOST:PORT FEED null|stock STREAMS".into());
    };
    let address: SocketAddr = address.parse()?;
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_protocol_versions(&[&rustls::version::TLS13])?
    .dangerous()
    .with_custom_certificate_verifier(Arc::new(Anyone))
    .with_no_client_auth();
    tls.alpn_protocols = vec![b"fastrelay".to_vec()];
    let tls = Arc::new(tls);
    let stock = Arc::new(QuicClientConfig::try_from(tls.clone())?);
    let null = Arc::new(AtomicBool::new(false));
    let mut config = match protection.as_str() {
        "null" => quinn::ClientConfig::new(Arc::new(null::Config {
            tls,
            stock,
            null: null.clone(),
        })),
        _ => quinn::ClientConfig::new(stock),
    };
    let mut transport = quinn::TransportConfig::default();
    transport.max_concurrent_uni_streams(VarInt::from_u32(4096));
    config.transport_config(Arc::new(transport));
    let endpoint = quinn::Endpoint::client("0.0.0.0:0".parse()?)?;
    let connection = endpoint.connect_with(config, address, "relay")?.await?;
    let (mut request, mut answer) = connection.open_bi().await?;
    request
        .write_all(format!("subscribe {feed}\n").as_bytes())
        .await?;
    request.finish()?;
    let answer = String::from_utf8(answer.read_to_end(256).await?)?;
    println!(
        "{} {}",
        answer.trim(),
        if null.load(Ordering::Relaxed) {
            "null"
        } else {
            "protected"
        }
    );
    let mut tasks = Vec::new();
    for _ in 0..streams.parse()? {
        let stream = connection.accept_uni().await?;
        tasks.push(tokio::spawn(read(stream)));
    }
    for task in tasks {
        task.await?;
    }
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()))
        .await??;
    let stats = connection.stats();
    println!(
        "acks {} {}",
        stats.frame_tx.acks, stats.frame_rx.ack_frequency
    );
    connection.close(0u32.into(), b"");
    endpoint.wait_idle().await;
    Ok(())
}

async fn read(mut stream: RecvStream) {
    match stream.read_to_end(1 << 24).await {
        Ok(data) => {
            let hash = digest::digest(&digest::SHA256, &data);
            println!(
                "stream {}",
                hash.as_ref()
                    .iter()
                    .map(|b| format!("{b:02x}"))
                    .collect::<String>()
            );
        }
        Err(ReadToEndError::Read(ReadError::Reset(code))) => println!("reset {code}"),
        Err(e) => println!("failed: {e}"),
    }
}

/// Takes any certificate: a test's server has one that it made itself.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer,
        _: &[CertificateDer],
        _: &ServerName,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("QUIC has no TLS 1.2".into()))
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}
