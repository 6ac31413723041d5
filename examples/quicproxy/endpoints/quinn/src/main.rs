//! A QUIC endpoint by quinn, as it is published: an echo server, or a client that wants its own bytes back.
//!
//!     quinn-endpoint server|client HOST:PORT CERTIFICATES ID_LENGTH ID_LIFETIME_MS BYTES[,BYTES…]
//!
//! Before it sends the second and each later portion of bytes, the client waits for a line of its input.
//! Each side retires its connection IDs after their lifetime, if that isn't 0, and issues new ones.

use std::{error::Error, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use quinn::{
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
    Endpoint, EndpointConfig, TokioRuntime,
};
use quinn_proto::RandomConnectionIdGenerator;
use ring::{digest, rand::{SecureRandom, SystemRandom}};
use rustls::pki_types::{pem::PemObject, CertificateDer, PrivateKeyDer};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [side, address, certificates, length, lifetime, bytes] = &args[..] else {
        return Err("want: server|client HOST:PORT CERTIFICATES ID_LENGTH ID_LIFETIME_MS BYTES[,BYTES…]".into());
    };
    let (address, length, lifetime): (SocketAddr, usize, u64) = (address.parse()?, length.parse()?, lifetime.parse()?);
    let folder = Path::new(certificates);
    let mut config = EndpointConfig::default();
    config.cid_generator(move || {
        let mut ids = RandomConnectionIdGenerator::new(length);
        if lifetime > 0 {
            ids.set_lifetime(Duration::from_millis(lifetime));
        }
        Box::new(ids)
    });
    let runtime = Arc::new(TokioRuntime);
    if side == "server" {
        let chain = vec![CertificateDer::from_pem_file(folder.join("cert.pem"))?];
        let key = PrivateKeyDer::from_pem_file(folder.join("key.pem"))?;
        let mut tls = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
        tls.alpn_protocols = vec![b"echo".to_vec()];
        let server = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
        let endpoint = Endpoint::new(config, Some(server), std::net::UdpSocket::bind(address)?, runtime)?;
        println!("listening");
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(async move {
                if let Err(e) = echo(incoming).await {
                    eprintln!("connection ended: {e}");
                }
            });
        }
        return Ok(());
    }
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("ca.pem"))?)?;
    let mut tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    tls.alpn_protocols = vec![b"echo".to_vec()];
    let any: SocketAddr = if address.is_ipv4() { "0.0.0.0:0".parse()? } else { "[::]:0".parse()? };
    let mut endpoint = Endpoint::new(config, None, std::net::UdpSocket::bind(any)?, runtime)?;
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?)));
    let connection = endpoint.connect(address, "target")?.await?;
    let (mut send, mut receive) = connection.open_bi().await?;
    let portions = bytes.split(',').map(str::parse).collect::<std::result::Result<Vec<usize>, _>>()?;
    let sending = tokio::spawn(async move {
        let (random, mut hash) = (SystemRandom::new(), digest::Context::new(&digest::SHA256));
        let mut data = vec![0; 1 << 14];
        for (i, mut left) in portions.into_iter().enumerate() {
            if i > 0 {
                let line = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
                line.await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
            }
            while left > 0 {
                let n = left.min(data.len());
                random.fill(&mut data[..n]).map_err(|_| "no random bytes")?;
                hash.update(&data[..n]);
                send.write_all(&data[..n]).await.map_err(|e| e.to_string())?;
                left -= n;
            }
        }
        send.finish().map_err(|e| e.to_string())?;
        Ok::<_, String>(hash.finish())
    });
    let (mut hash, mut size) = (digest::Context::new(&digest::SHA256), 0);
    let mut data = vec![0; 1 << 16];
    while let Some(n) = receive.read(&mut data).await? {
        hash.update(&data[..n]);
        size += n;
        println!("{size}");
    }
    let right = sending.await??.as_ref() == hash.finish().as_ref();
    println!("{}", if right { "right" } else { "wrong" });
    connection.close(0u32.into(), b"");
    endpoint.wait_idle().await;
    Ok(())
}

async fn echo(incoming: quinn::Incoming) -> Result<()> {
    let connection = incoming.await?;
    loop {
        let (mut send, mut receive) = connection.accept_bi().await?;
        tokio::spawn(async move {
            let mut data = vec![0; 1 << 16];
            while let Ok(Some(n)) = receive.read(&mut data).await {
                if send.write_all(&data[..n]).await.is_err() {
                    return;
                }
            }
            let _ = send.finish();
        });
    }
}
