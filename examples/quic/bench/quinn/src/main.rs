//! A relay by quinn, as it is published, for the benchmark: what a publisher sends on its unidirectional streams goes
//! to a stream of each subscriber of its feed. It speaks the protocol of package server: a client opens a bidirectional
//! stream and sends a line, "publish NAME" or "subscribe NAME", which is answered by "ok".
//!
//!     quinnrelay --listen ADDRESS:PORT [--acks PACKETS,MILLISECONDS]
//!
//! All connections are served by one thread; a second one only waits for the bench's questions. A subscriber that
//! can't take what it is sent holds up the others of its feed, which package server avoids: the bench has no such
//! subscribers.

use std::{
    cell::RefCell, collections::HashMap, error::Error, future, io::BufRead, net::SocketAddr,
    net::UdpSocket, process, rc::Rc, sync::Arc, thread, time::Duration,
};

use bytes::Bytes;
use nix::sys::socket::{setsockopt, sockopt};
use quinn::{
    crypto::rustls::QuicServerConfig, AckFrequencyConfig, Connection, Endpoint, EndpointConfig,
    Incoming, ReadError, RecvStream, TokioRuntime, TransportConfig, VarInt,
};
use rustls::pki_types::PrivateKeyDer;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    task::{spawn_local, LocalSet},
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A Feed is the subscribers of a name.
type Feed = Rc<RefCell<Vec<Connection>>>;

type Feeds = Rc<RefCell<HashMap<String, Feed>>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let options = Options::parse()?;
    let socket = UdpSocket::bind(options.listen)?;
    // As large as quic-go's, which takes 7 MB if it may.
    setsockopt(&socket, sockopt::RcvBufForce, &(7 << 20))?;
    setsockopt(&socket, sockopt::SndBufForce, &(7 << 20))?;
    let endpoint = Endpoint::new(
        EndpointConfig::default(),
        Some(options.server()?),
        socket,
        Arc::new(TokioRuntime),
    )?;
    thread::spawn(answer);
    let accept = async {
        let feeds = Feeds::default();
        while let Some(incoming) = endpoint.accept().await {
            let feeds = feeds.clone();
            spawn_local(async move {
                // An error is that of a connection that ended, which the bench notices itself.
                let _ = serve(incoming, feeds, options.acks.is_some()).await;
            });
        }
    };
    LocalSet::new().run_until(accept).await;
    Ok(())
}

/// Tells the bench that the relay is ready, answers each of its questions, which is for the kernel's share of what was
/// sent, and ends the relay with its input.
fn answer() {
    println!("ready");
    for _ in std::io::stdin().lock().lines() {
        println!("0");
    }
    process::exit(0);
}

#[derive(Clone, Copy)]
struct Options {
    listen: SocketAddr,
    acks: Option<(VarInt, Duration)>, // what clients are asked for (ACK_FREQUENCY)
}

impl Options {
    fn parse() -> Result<Options> {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let (listen, acks) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["--listen", listen] => (listen, None),
            ["--listen", listen, "--acks", acks] => (listen, Some(acks)),
            _ => return Err("want: --listen ADDRESS:PORT [--acks PACKETS,MILLISECONDS]".into()),
        };
        Ok(Options {
            listen: listen.parse()?,
            acks: acks.map(parse_acks).transpose()?,
        })
    }

    /// Is the configuration of the server: with windows that hold nothing up, and a certificate that no client checks.
    fn server(&self) -> Result<quinn::ServerConfig> {
        let made = rcgen::generate_simple_self_signed(["relay".to_string()])?;
        let key = PrivateKeyDer::Pkcs8(made.key_pair.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.into()], key)?;
        tls.alpn_protocols = vec![b"fastrelay".to_vec()];
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_uni_streams(VarInt::from_u32(1 << 14))
            .stream_receive_window(VarInt::from_u32(1 << 20))
            .receive_window(VarInt::from_u32(1 << 24))
            .send_window(1 << 24);
        if let Some((packets, delay)) = self.acks {
            let mut wanted = AckFrequencyConfig::default();
            wanted
                .ack_eliciting_threshold(packets)
                .max_ack_delay(Some(delay));
            transport.ack_frequency_config(Some(wanted));
        }
        let mut server =
            quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
        server.transport_config(Arc::new(transport));
        Ok(server)
    }
}

fn parse_acks(text: &str) -> Result<(VarInt, Duration)> {
    let (packets, delay) = text
        .split_once(',')
        .ok_or("--acks: want PACKETS,MILLISECONDS")?;
    Ok((
        // With more packets than the threshold an ACK is due.
        VarInt::from_u32(packets.parse::<u32>()?.saturating_sub(1)),
        Duration::from_millis(delay.parse()?),
    ))
}

/// Does what a client asks for.
async fn serve(incoming: Incoming, feeds: Feeds, thinned: bool) -> Result<()> {
    let connection = incoming.await?;
    let (mut answer, request) = connection.accept_bi().await?;
    let mut request = BufReader::new(request.take(256)); // kept: without it the client's stream would be refused
    let mut line = String::new();
    request.read_line(&mut line).await?;
    let (publishes, name) = match line.trim_end().split_once(' ') {
        Some(("publish", name)) => (true, name),
        Some(("subscribe", name)) => (false, name),
        _ => {
            connection.close(
                VarInt::from_u32(1),
                b"a request is \"publish NAME\" or \"subscribe NAME\"",
            );
            return Ok(());
        }
    };
    let feed = feeds
        .borrow_mut()
        .entry(name.to_string())
        .or_default()
        .clone();
    if !publishes {
        feed.borrow_mut().push(connection.clone());
    }
    answer.write_all(b"ok\n").await?;
    answer.finish()?;
    if publishes {
        loop {
            let stream = connection.accept_uni().await?;
            let subscribers = feed.borrow().clone();
            spawn_local(copy(stream, subscribers));
        }
    }
    // Figures of a relay whose clients acknowledge as ever would be taken for those of thinned ACKs.
    answer.stopped().await?; // or acknowledged: ACK_FREQUENCY is in the first packets
    if thinned && connection.stats().frame_tx.ack_frequency == 0 {
        eprintln!("quinnrelay: a subscriber doesn't take ACK_FREQUENCY");
        process::exit(1);
    }
    connection.closed().await;
    feed.borrow_mut()
        .retain(|c| c.stable_id() != connection.stable_id());
    Ok(())
}

/// Copies a stream to all subscribers. One that doesn't allow a stream at once goes without.
async fn copy(mut from: RecvStream, subscribers: Vec<Connection>) {
    let mut to = Vec::with_capacity(subscribers.len());
    for s in &subscribers {
        tokio::select! {
            biased;
            Ok(stream) = s.open_uni() => to.push(stream),
            () = future::ready(()) => {}
        }
    }
    // What has arrived is written together; its bytes aren't copied.
    let mut chunks: [Bytes; 32] = Default::default();
    let mut copies = Vec::with_capacity(chunks.len());
    loop {
        match from.read_chunks(&mut chunks).await {
            Ok(Some(n)) => {
                for s in &mut to {
                    copies.clear();
                    copies.extend_from_slice(&chunks[..n]);
                    let _ = s.write_all_chunks(&mut copies).await; // of a subscriber that is gone
                }
            }
            Ok(None) => {
                for s in &mut to {
                    let _ = s.finish();
                }
                return;
            }
            Err(e) => {
                let code = if let ReadError::Reset(code) = e {
                    code
                } else {
                    VarInt::from_u32(0)
                };
                for s in &mut to {
                    let _ = s.reset(code);
                }
                return;
            }
        }
    }
}
