//! What a stream reports to `tracing`: a span of its own, its start, and its end with the cause.

use std::{
    fmt::{self, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result, ensure};
use rdpipe::{Encryption, Key, Stream, TransportPolicy};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};
use tracing::{
    Dispatch, Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::DefaultGuard,
};

use crate::support::{limits::generous, waiting::until};

/// A subscriber that keeps spans and events of this crate as lines of text.
#[derive(Clone, Default)]
struct Kept(Arc<KeptInner>);

#[derive(Default)]
struct KeptInner {
    spans: AtomicU64,
    lines: Mutex<Vec<String>>,
    /// The spans that the one thread of the test has entered.
    entered: Mutex<Vec<u64>>,
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Kept {
    fn keep(&self, line: String) {
        self.0.lines.lock().expect("no panic").push(line);
    }

    fn lines(&self) -> Vec<String> {
        self.0.lines.lock().expect("no panic").clone()
    }

    fn has(&self, parts: &[&str]) -> bool {
        let lines = self.lines();
        lines
            .iter()
            .any(|line| parts.iter().all(|part| line.contains(part)))
    }

    /// Waits for a line that contains all `parts`.
    async fn soon_has(&self, parts: &[&str]) -> Result<()> {
        let kept = timeout(generous(), until(|| self.has(parts))).await;
        kept.with_context(|| format!("{parts:?} in {:#?}", self.lines()))
    }
}

impl Subscriber for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("rdpipe")
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let number = self.0.spans.fetch_add(1, Ordering::Relaxed) + 1;
        let mut text = Text(format!("span {number} {}", attributes.metadata().name()));
        attributes.record(&mut text);
        self.keep(text.0);
        span::Id::from_u64(number)
    }

    fn record(&self, span: &span::Id, values: &span::Record<'_>) {
        let mut text = Text(format!("span {}", span.into_u64()));
        values.record(&mut text);
        self.keep(text.0);
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let span = self.0.entered.lock().expect("no panic").last().copied();
        let mut text = Text(format!("event in {span:?}"));
        event.record(&mut text);
        self.keep(text.0);
    }

    fn enter(&self, span: &span::Id) {
        self.0
            .entered
            .lock()
            .expect("no panic")
            .push(span.into_u64());
    }

    fn exit(&self, _: &span::Id) {
        self.0.entered.lock().expect("no panic").pop();
    }
}

/// Keeps what this thread reports, until the guards are dropped.
///
/// While there is only one subscriber, `tracing` asks the thread that comes to a place in the code first whether
/// anybody wants its events, and remembers the answer. The threads of other tests want none. So there is a second
/// subscriber.
fn collect() -> (Kept, (DefaultGuard, Dispatch)) {
    let kept = Kept::default();
    let second = Dispatch::new(Kept::default());
    let guard = tracing::subscriber::set_default(kept.clone());
    (kept, (guard, second))
}

#[tokio::test]
async fn a_stream_has_a_span_and_tells_how_it_ends() -> Result<()> {
    let (kept, _guards) = collect();
    let key = Key::generate()?;
    let builder = Stream::builder(&key).transport(TransportPolicy::Tcp);
    let listener = builder.bind("127.0.0.1:0").await?;
    let dialing = builder.connect(listener.local_addr());
    let (mut dialed, mut accepted) = tokio::try_join!(dialing, listener.accept())?;
    let id = key.id().to_string();
    let address = dialed.local_addr().to_string();
    let opened: &[&[&str]] = &[
        &["span", "stream", &id, "addr=127.0.0.1"],
        &["span", "stream", &address],
        &["transport=TCP"],
        &["event in Some", "open", "reason="],
    ];
    for parts in opened {
        ensure!(kept.has(parts), "{parts:?} in {:#?}", kept.lines());
    }
    dialed.write_all(b"eight by").await?;
    accepted.read_exact(&mut [0; 8]).await?;
    dialed.abort("the disk is full");
    drop(dialed);
    ensure!(accepted.read(&mut [0]).await.is_err());
    kept.soon_has(&[
        "event in Some",
        "ended with an error",
        "the disk is full",
        "bytes_sent=8",
    ])
    .await?;
    kept.soon_has(&[
        "event in Some",
        "ended with an error",
        "gave up",
        "bytes_received=8",
    ])
    .await
}

#[tokio::test]
async fn a_connection_that_is_no_stream_is_reported() -> Result<()> {
    let (kept, _guards) = collect();
    let listener = Stream::builder(&Key::generate()?)
        .bind("127.0.0.1:0")
        .await?;
    let stranger = Stream::builder(&Key::generate()?);
    ensure!(stranger.connect(listener.local_addr()).await.is_err());
    kept.soon_has(&["a connection that is no stream", "the keys do not match"])
        .await
}

/// The ways in which an event could show these bytes.
fn forms(bytes: &[u8]) -> [String; 3] {
    let list = format!("{bytes:?}");
    let hexadecimal = data_encoding::HEXLOWER.encode(bytes);
    let text = String::from_utf8_lossy(bytes).into_owned();
    [text, list.trim_matches(['[', ']']).to_owned(), hexadecimal]
}

/// All levels are kept, and also what `Debug` shows of both ends.
#[tokio::test]
async fn no_event_of_an_encrypted_stream_shows_its_data_or_its_key() -> Result<()> {
    const SECRET: &[u8] = b"a text of the data";
    let (kept, _guards) = collect();
    let key = Key::generate()?;
    let builder = Stream::builder(&key)
        .transport(TransportPolicy::Tcp)
        .encryption(Encryption::Always);
    let listener = builder.bind("127.0.0.1:0").await?;
    let dialing = builder.connect(listener.local_addr());
    let (mut dialed, mut accepted) = tokio::try_join!(dialing, listener.accept())?;
    ensure!(dialed.cipher().is_some());
    for _ in 0..2 {
        dialed.write_all(SECRET).await?;
        accepted.read_exact(&mut [0; SECRET.len()]).await?;
        accepted.write_all(SECRET).await?;
        dialed.read_exact(&mut [0; SECRET.len()]).await?;
    }
    kept.keep(format!("{dialed:#?} {accepted:#?} {builder:#?}"));
    dialed.abort("the disk is full");
    drop(dialed);
    ensure!(accepted.read(&mut [0]).await.is_err());
    kept.soon_has(&["ended with an error", "gave up"]).await?;
    let key = key.text().to_string();
    let secrets = [forms(SECRET), forms(key.as_bytes())].concat();
    for secret in &secrets {
        ensure!(!kept.has(&[secret]), "{secret} in {:#?}", kept.lines());
    }
    // What is shown is found: the test can fail.
    tracing::trace!(target: "rdpipe", bytes = ?SECRET, "shown");
    ensure!(kept.has(&[&secrets[1]]));
    Ok(())
}
