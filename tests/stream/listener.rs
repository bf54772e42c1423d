//! What servers expect of a listener, and what newcomers type to connect.

use std::{
    collections::HashMap,
    future::poll_fn,
    io::ErrorKind,
    net::SocketAddr,
    sync::{Arc, RwLock},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use futures::{FutureExt, StreamExt};
use rdpipe::{
    Builder, Direction, Error, HandshakeFault, Key, KeyId, Listener, Stream, StreamConfig,
    TransportPolicy, Watch,
};
use rustix::net::sockopt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    runtime::Runtime,
    task::JoinSet,
    time::timeout,
};

use crate::support::{
    PROTOCOL_VERSION,
    limits::{generous, patience},
    proxy::Proxy,
    waiting::until,
};

fn builder() -> Result<Builder> {
    let builder = Stream::builder(&Key::generate()?);
    Ok(builder.transport(TransportPolicy::Tcp))
}

/// Connects to the listener, and moves bytes over the new stream.
async fn connect(builder: &Builder, listener: &Listener) -> Result<()> {
    let dialing = builder.connect(listener.local_addr());
    exchange(tokio::try_join!(dialing, listener.accept())?).await
}

/// Sends a few bytes both ways, and ends the stream.
async fn exchange((mut here, mut there): (Stream, Stream)) -> Result<()> {
    here.write_all(b"question").await?;
    here.shutdown().await?;
    let mut question = String::new();
    there.read_to_string(&mut question).await?;
    ensure!(question == "question", "{question}");
    there.shutdown().await?;
    ensure!(here.read(&mut [0]).await? == 0);
    Ok(())
}

#[tokio::test]
async fn every_usual_form_of_an_address_connects() -> Result<()> {
    let builder = builder()?;
    let v4 = builder.bind("127.0.0.1:0").await?;
    let v6 = builder.bind(("::1", 0)).await?;
    let (port, port6) = (v4.local_addr().port(), v6.local_addr().port());
    let accepted = async |listener: &Listener, dialed: Result<Stream, Error>| -> Result<()> {
        let stream = listener.accept().await?;
        let dialed = dialed?;
        ensure!(dialed.peer_addr() == stream.local_addr(), "{dialed:?}");
        exchange((dialed, stream)).await
    };
    accepted(&v4, builder.connect(format!("127.0.0.1:{port}")).await).await?;
    accepted(&v4, builder.connect(&*format!("localhost:{port}")).await).await?;
    accepted(&v4, builder.connect(("127.0.0.1", port)).await).await?;
    accepted(&v4, builder.connect(v4.local_addr()).await).await?;
    accepted(&v6, builder.connect(format!("[::1]:{port6}")).await).await?;
    accepted(&v6, builder.connect(("::1", port6)).await).await?;
    accepted(&v6, builder.connect(v6.local_addr()).await).await
}

#[tokio::test]
async fn without_retries_a_closed_port_is_an_error_at_once() -> Result<()> {
    let closed = closed_port().await?;
    // With retries this would take longer than any guard.
    let builder = builder()?.connect_timeout(Duration::MAX).retry(false);
    let error = timeout(generous(), builder.connect(closed))
        .await?
        .unwrap_err();
    ensure!(error.kind() == ErrorKind::ConnectionRefused, "{error:?}");
    Ok(())
}

#[tokio::test]
async fn the_time_limit_of_connect_holds_at_a_silent_port() -> Result<()> {
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let builder = builder()?
        .connect_timeout(patience(Duration::from_millis(500)))
        .handshake_timeout(Duration::MAX);
    let dialing = builder.connect(silent.local_addr()?);
    let error = timeout(generous(), dialing).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::TimedOut, "{error:?}");
    Ok(())
}

/// Returns an address at which no socket listens.
async fn closed_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0").await?.local_addr()?)
}

#[tokio::test]
async fn a_stream_is_connected_over_sockets_of_the_caller() -> Result<()> {
    let builder = builder()?;
    let listener = builder.bind("127.0.0.1:0").await?;
    let proxy = Proxy::start(listener.local_addr(), None);
    let through_the_proxy = || TcpStream::connect(("127.0.0.1", proxy.port()));
    let dialing = builder.connect_with("hostB", through_the_proxy);
    let (dialed, accepted) = tokio::try_join!(dialing, listener.accept())?;
    ensure!(dialed.peer() == "hostB");
    ensure!(proxy.connections() == 2, "{}", proxy.connections());
    exchange((dialed, accepted)).await?;
    let address = listener.local_addr();
    let from_an_address = || async {
        let socket = TcpSocket::new_v4()?;
        socket.bind("127.0.0.9:0".parse().expect("an address"))?;
        socket.connect(address).await
    };
    let dialing = builder.connect_with("hostB", from_an_address);
    let (dialed, accepted) = tokio::try_join!(dialing, listener.accept())?;
    ensure!(accepted.peer_addr().ip().to_string() == "127.0.0.9");
    exchange((dialed, accepted)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_tasks_accept_from_one_listener() -> Result<()> {
    let builder = builder()?;
    let listener = Arc::new(builder.bind("127.0.0.1:0").await?);
    let mut serving = JoinSet::new();
    for _ in 0..4 {
        let listener = Arc::clone(&listener);
        serving.spawn(async move {
            let mut served = Vec::new();
            while served.len() < 5 {
                // Most of these are cancelled before a stream is there.
                let accepting = timeout(Duration::from_millis(1), listener.accept());
                if let Ok(stream) = accepting.await {
                    served.push(stream?);
                }
            }
            anyhow::Ok(served)
        });
    }
    let mut dialed = Vec::new();
    for _ in 0..20 {
        dialed.push(builder.connect(listener.local_addr()).await?);
    }
    let served = timeout(generous(), serving.join_all()).await?;
    let served = served.into_iter().collect::<Result<Vec<_>>>()?;
    ensure!(served.into_iter().flatten().count() == 20);
    Ok(())
}

#[tokio::test]
async fn streams_can_be_polled_for_and_come_as_a_stream() -> Result<()> {
    let builder = builder()?;
    let listener = builder.bind("127.0.0.1:0").await?;
    let dialing = builder.connect(listener.local_addr());
    let polling = poll_fn(|cx| listener.poll_accept(cx));
    exchange(tokio::try_join!(dialing, polling)?).await?;
    let address = listener.local_addr();
    let mut incoming = listener.incoming();
    let (dialed, accepted) = tokio::join!(builder.connect(address), incoming.next());
    exchange((dialed?, accepted.context("no stream")??)).await?;
    ensure!(incoming.get_ref().stats().streams == 2);
    Ok(())
}

/// A listener whose runtime is gone says so once, and does not spin.
#[test]
fn a_listener_whose_runtime_has_ended_says_so_and_does_not_spin() -> Result<()> {
    let (own, other) = (Runtime::new()?, Runtime::new()?);
    let builder = builder()?.control_runtime(other.handle().clone());
    let listeners = own.block_on(async {
        anyhow::Ok([
            builder.bind("127.0.0.1:0").await?,
            builder.bind("127.0.0.1:0").await?,
        ])
    })?;
    let [accepting, incoming] = listeners;
    drop(other);
    own.block_on(async move {
        let told = timeout(generous(), accepting.accept()).await?;
        ensure!(matches!(told, Err(Error::Listen { .. })), "{told:?}");
        let again = accepting.accept();
        ensure!(
            again.now_or_never().is_none(),
            "the next error came at once"
        );
        let ends: Vec<_> = timeout(generous(), incoming.incoming().collect()).await?;
        ensure!(matches!(ends[..], [Err(Error::Listen { .. })]), "{ends:?}");
        Ok(())
    })
}

/// A peer whose settings exclude those of the listener is counted, and is no error of `accept`.
#[tokio::test]
async fn what_is_no_stream_is_counted() -> Result<()> {
    let builder = builder()?;
    let receiving = builder.clone().direction(Direction::Receive);
    let listener = receiving.bind("127.0.0.1:0").await?;
    let address = listener.local_addr();
    let error = receiving.connect(address).await.unwrap_err();
    ensure!(
        is_fault(&error, |fault| matches!(
            fault,
            HandshakeFault::Direction(_) | HandshakeFault::Refused(_)
        )),
        "{error:?}"
    );
    let stranger = Stream::builder(&Key::generate()?);
    let error = stranger.connect(address).await.unwrap_err();
    ensure!(
        is_fault(&error, |fault| matches!(fault, HandshakeFault::Key)),
        "{error:?}"
    );
    let mut foreign = TcpStream::connect(address).await?;
    foreign.write_all(b"GET / HTTP/1.1\r\n\r\n").await?;
    let _ = foreign.read(&mut [0]).await;
    let sending = builder.direction(Direction::Send);
    let dialing = sending.connect(address);
    let (dialed, accepted) = tokio::try_join!(dialing, listener.accept())?;
    let counts = || {
        let stats = listener.stats();
        [
            stats.streams,
            stats.live,
            stats.incompatible,
            stats.wrong_keys,
            stats.foreign,
        ]
    };
    until(|| counts() == [1; 5]).await;
    drop((dialed, accepted));
    until(|| listener.stats().live == 0).await;
    Ok(())
}

fn is_fault(error: &Error, is: impl Fn(&HandshakeFault) -> bool) -> bool {
    matches!(error, Error::Handshake { fault, .. } if is(fault))
}

#[tokio::test]
async fn the_port_is_free_after_close() -> Result<()> {
    let builder = builder()?;
    let first = builder.bind("127.0.0.1:0").await?;
    let address = first.local_addr();
    first.close().await;
    for number in 0..1000 {
        let listener = builder.bind(address).await;
        let listener = listener.with_context(|| format!("round {number}"))?;
        if number % 100 == 0 {
            connect(&builder, &listener).await?;
        }
        listener.close().await;
    }
    Ok(())
}

#[tokio::test]
async fn live_streams_finish_after_close() -> Result<()> {
    let builder = builder()?;
    let listener = builder.bind("127.0.0.1:0").await?;
    let address = listener.local_addr();
    let (dialed, accepted) = tokio::try_join!(builder.connect(address), listener.accept())?;
    let live = listener.close().await;
    ensure!(live.count() == 1 && live.ended().now_or_never().is_none());
    let refused = builder
        .clone()
        .retry(false)
        .connect(address)
        .await
        .unwrap_err();
    ensure!(
        refused.kind() == ErrorKind::ConnectionRefused,
        "{refused:?}"
    );
    let watches = [dialed.watch(), accepted.watch()];
    exchange((dialed, accepted)).await?;
    timeout(generous(), live.ended()).await?;
    ensure!(watches.iter().all(|watch: &Watch| watch.error().is_none()));
    Ok(())
}

/// A listening socket that was opened elsewhere, as by systemd.
#[tokio::test]
async fn a_socket_that_listens_already_is_taken() -> Result<()> {
    let builder = builder()?;
    let socket = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = socket.local_addr()?;
    let listener = builder.listener_from_std(socket)?;
    ensure!(listener.local_addr() == address);
    ensure!(
        sockopt::socket_acceptconn(&listener)?,
        "no listening socket"
    );
    connect(&builder, &listener).await
}

/// A port with many keys: every stream has the id of its key. A key that is removed opens no stream, and those of
/// others go on.
#[tokio::test]
async fn many_keys_share_one_port() -> Result<()> {
    let made = [Key::generate()?, Key::generate()?, Key::generate()?];
    let keys: HashMap<KeyId, Key> = made
        .iter()
        .map(|key| (key.id(), key.key().clone()))
        .collect();
    let keys = Arc::new(RwLock::new(keys));
    let known = Arc::clone(&keys);
    let lookup = move |id| known.read().expect("no panic").get(&id).cloned();
    let mut config = StreamConfig::default();
    config.transport = TransportPolicy::Tcp;
    let listener = Listener::bind_with("127.0.0.1:0", lookup, config).await?;
    let address = listener.local_addr();
    let mut streams = Vec::new();
    for key in &made {
        let builder = Stream::builder(key).transport(TransportPolicy::Tcp);
        let (dialed, accepted) = tokio::try_join!(builder.connect(address), listener.accept())?;
        ensure!(dialed.key_id() == key.id() && accepted.key_id() == key.id());
        streams.push((dialed, accepted));
    }
    keys.write().expect("no panic").remove(&made[1].id());
    let refused = Stream::builder(&made[1])
        .connect(address)
        .await
        .unwrap_err();
    ensure!(
        is_fault(&refused, |fault| matches!(fault, HandshakeFault::Key)),
        "{refused:?}"
    );
    for pair in streams {
        exchange(pair).await?;
    }
    let builder = Stream::builder(&made[2]).transport(TransportPolicy::Tcp);
    connect(&builder, &listener).await
}

/// What a listener answers to an id that it does not know is what it answers to a message that does not verify.
#[tokio::test]
async fn an_unknown_id_gets_the_answer_to_a_wrong_key() -> Result<()> {
    let key = Key::generate()?;
    let listener = Stream::builder(&key).bind("127.0.0.1:0").await?;
    let mut answers = Vec::new();
    for id in [key.id().to_string(), Key::generate()?.id().to_string()] {
        let id = data_encoding::HEXLOWER.decode(id.as_bytes())?;
        let opening = [b"RDPIPE", &[PROTOCOL_VERSION, b'C'][..], &id, &[7; 48]].concat();
        let mut socket = TcpStream::connect(listener.local_addr()).await?;
        socket.write_all(&opening).await?;
        socket.shutdown().await?;
        let mut answer = Vec::new();
        timeout(generous(), socket.read_to_end(&mut answer)).await??;
        answers.push(answer);
    }
    ensure!(
        answers[0] == [&b"RDPIPE"[..], &[PROTOCOL_VERSION, b'K']].concat()
            && answers[0] == answers[1],
        "{answers:?}"
    );
    Ok(())
}

/// Streams that wait for `accept` when the listener is dropped are errors at their dialers.
#[tokio::test]
async fn a_stream_that_was_not_accepted_is_an_error_at_its_dialer() -> Result<()> {
    let builder = builder()?;
    let listener = builder.bind("127.0.0.1:0").await?;
    let mut dialed = builder.connect(listener.local_addr()).await?;
    listener.close().await;
    match timeout(generous(), dialed.read(&mut [0])).await? {
        Err(_) => Ok(()),
        Ok(count) => bail!("read {count}"),
    }
}
