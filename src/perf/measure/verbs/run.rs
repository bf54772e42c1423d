//! The steps of all measurements: connect, measure, exchange what was counted; and the messages of the control
//! connection.
//!
//! A message is its length as 32 bits, the lowest byte first, and its bytes in the encoding of postcard. Each step has
//! a message each way: what the end has, or why it has failed. So both ends know what the other one knows.

use std::{
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split},
    select,
    time::timeout,
};

use super::endpoint::{EndpointFacts, EndpointPlan, VerbsEndpoint};
use crate::threads;

/// What an end has told when it has finished: a number, or why it has failed.
type FinishNotice = Result<u64, String>;

/// What an end has measured.
pub(super) struct Finished<T> {
    pub(super) endpoint: VerbsEndpoint,
    pub(super) result: T,
    /// The number that the other end has told.
    pub(super) told: u64,
}

/// Makes an endpoint at each end, posts `receives` receives of as many bytes as the longest operation has, and connects
/// the two. Both ends are ready afterwards.
/// The connection is of no use after the future was dropped.
pub(super) async fn connect(
    control: &mut (impl AsyncRead + AsyncWrite + Unpin),
    plan: EndpointPlan,
    receives: u32,
) -> Result<VerbsEndpoint, String> {
    let bytes = plan.size;
    let opened = threads::blocking(|| {
        let endpoint = VerbsEndpoint::open(plan)?;
        Ok((endpoint.facts()?, endpoint))
    });
    match opened.await.map_err(unstarted)? {
        Ok((facts, mut endpoint)) => {
            let theirs = exchange(control, Ok(facts)).await?;
            let posted = (0..receives).try_for_each(|_| endpoint.post_receive(bytes));
            let connected = posted.and_then(|()| endpoint.connect(&theirs));
            exchange(control, connected).await?;
            Ok(endpoint)
        }
        Err(text) => Err(exchange(control, Err::<EndpointFacts, _>(text))
            .await
            .err()
            .unwrap_or_default()),
    }
}

/// Runs `work` on a thread of its own, and tells the other end the number that it returns. If the other end finishes
/// first, `work` finds its number in the signal. If the other end fails, `work` is stopped. A wait without a result for
/// `silence` fails.
/// Dropping the future stops `work`. The connection is of no use afterwards.
pub(super) async fn run<T: Send + 'static>(
    control: &mut (impl AsyncRead + AsyncWrite + Unpin),
    mut endpoint: VerbsEndpoint,
    silence: Duration,
    work: impl FnOnce(&mut VerbsEndpoint, &RunSignal) -> Result<(T, u64), String> + Send + 'static,
) -> Result<Finished<T>, String> {
    let (mut reader, mut writer) = split(control);
    let mut theirs = pin!(receive::<FinishNotice>(&mut reader));
    let signal = RunSignal::new(silence);
    let _stop = StopOnDrop(Arc::clone(&signal));
    let of_thread = Arc::clone(&signal);
    let mut thread = pin!(threads::blocking(move || {
        let result = work(&mut endpoint, &of_thread);
        (endpoint, result)
    }));
    let mut told = None;
    let (endpoint, result) = loop {
        select! {
            finished = &mut thread => break finished.map_err(unstarted)?,
            finish = &mut theirs, if told.is_none() => {
                match &finish {
                    Ok(Ok(number)) => signal.set_number(*number),
                    Ok(Err(_)) | Err(_) => signal.stop(),
                }
                told = Some(finish);
            }
        }
    };
    // The thread was stopped because the other end has failed: that is the cause.
    let told = match told {
        Some(finish) => Some(finish?.map_err(|text| of_other_end(&text))?),
        None => None,
    };
    let finish: FinishNotice = result
        .as_ref()
        .map(|(_, number)| *number)
        .map_err(Clone::clone);
    let sent = send(&mut writer, &finish).await;
    let (result, _) = result?;
    sent?;
    let told = match told {
        Some(number) => number,
        None => within(silence, theirs)
            .await?
            .map_err(|text| of_other_end(&text))?,
    };
    Ok(Finished {
        endpoint,
        result,
        told,
    })
}

/// Waits until the other end has finished, which takes at most `limit` by itself, and for each wait at most `silence`.
/// Fails if the other end has failed, or does not finish.
/// The connection is of no use after the future was dropped.
pub(super) async fn serve(
    control: &mut (impl AsyncRead + AsyncWrite + Unpin),
    limit: Duration,
    silence: Duration,
) -> Result<(), String> {
    // Operations that are under way at the end of the time may take long too.
    let finish = within(limit + 2 * silence, receive::<FinishNotice>(control)).await?;
    finish.map_err(|text| of_other_end(&text))?;
    send(control, &FinishNotice::Ok(0)).await
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn unstarted(error: io::Error) -> String {
    error.to_string()
}

/// The number of polls between two looks at the clock, which takes as long as a few polls.
const POLLS: u32 = 1024;

/// What the thread of a measurement is told while it runs.
#[derive(Debug)]
pub(super) struct RunSignal {
    /// How long a wait may be without a result.
    silence: Duration,
    is_stopped: AtomicBool,
    /// The number that the other end has told at its end; [`u64::MAX`] before.
    number: AtomicU64,
}

impl RunSignal {
    pub(super) fn new(silence: Duration) -> Arc<Self> {
        Arc::new(Self {
            silence,
            is_stopped: AtomicBool::new(false),
            number: AtomicU64::new(u64::MAX),
        })
    }

    /// Ends the measurement.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Passes on the number that the other end has told.
    pub(super) fn set_number(&self, number: u64) {
        self.number.store(number, Ordering::Relaxed);
    }

    /// Returns the number that the other end has told, for instance of its operations; none before the other end has
    /// finished.
    pub(super) fn number(&self) -> Option<u64> {
        let number = self.number.load(Ordering::Relaxed);
        (number != u64::MAX).then_some(number)
    }

    /// Begins a wait.
    pub(super) fn patience(&self) -> Patience<'_> {
        Patience::new(self, self.silence)
    }

    /// Checks whether the measurement may go on. A loop whose waits all end at once calls it by itself.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err("the measurement was stopped".to_owned());
        }
        Ok(())
    }
}

/// Stops a measurement when it is dropped: the task that measures was cancelled, or has failed.
pub(super) struct StopOnDrop(pub(super) Arc<RunSignal>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// One wait, and the time that it may take.
pub(super) struct Patience<'a> {
    signal: &'a RunSignal,
    limit: Duration,
    /// The time of the first look at the clock: a wait that ends soon takes none.
    since: Option<Instant>,
    polls: u32,
}

impl<'a> Patience<'a> {
    pub(super) fn new(signal: &'a RunSignal, limit: Duration) -> Self {
        Self {
            signal,
            limit,
            since: None,
            polls: 0,
        }
    }

    /// Counts a poll that found nothing. Returns true if it was time for a [`check`](Self::check), and for other checks
    /// that take longer than a poll.
    pub(super) fn has_polled(&mut self) -> Result<bool, String> {
        self.polls += 1;
        if self.polls < POLLS {
            return Ok(false);
        }
        self.polls = 0;
        // On a machine with fewer processors than threads that poll, the thread that is waited for may have none.
        thread::yield_now();
        self.check()?;
        Ok(true)
    }

    /// Checks whether the wait may go on.
    /// Fails if the measurement was stopped, or nothing has come for too long.
    pub(super) fn check(&mut self) -> Result<(), String> {
        self.signal.check()?;
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) >= self.limit {
            let seconds = self.limit.as_secs();
            return Err(format!("nothing has arrived for {seconds} s"));
        }
        Ok(())
    }
}

/// The longest message. The ports of an end, with their names, take a few kilobytes.
const MAX_BYTES: u32 = 64 << 10;

/// The longest time that one step of the other end takes: it registers memory, which for gigabytes takes seconds.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(30);

/// Sends what this end has or why it has failed, receives the same from the other end, and returns what the other end
/// has.
/// The error is the reason why one of the ends has failed, or a fault of the connection.
/// The connection is of no use after the future was dropped.
pub(super) async fn exchange<T: Serialize + DeserializeOwned>(
    control: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ours: Result<T, String>,
) -> Result<T, String> {
    let theirs = swap(control, &ours).await?;
    ours?;
    theirs.map_err(|text| of_other_end(&text))
}

/// Sends a message, and receives one of the same type.
/// The connection is of no use after the future was dropped.
pub(super) async fn swap<T: Serialize + DeserializeOwned>(
    control: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ours: &T,
) -> Result<T, String> {
    send(control, ours).await?;
    within(STEP_LIMIT, receive(control)).await
}

/// Names the end of a sentence that came from the other end.
pub(super) fn of_other_end(text: &str) -> String {
    format!("the other end: {text}")
}

/// Limits the time of [`receive`].
/// Fails if the connection does, or if the time has passed.
pub(super) async fn within<T>(
    limit: Duration,
    message: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let silent = || {
        let seconds = limit.as_secs();
        Err(format!("the other end was silent for {seconds} s"))
    };
    timeout(limit, message).await.unwrap_or_else(|_| silent())
}

/// Sends a message.
/// The connection is of no use after the future was dropped.
pub(super) async fn send(
    control: &mut (impl AsyncWrite + Unpin),
    message: &impl Serialize,
) -> Result<(), String> {
    let bytes = postcard::to_stdvec(message).map_err(|error| error.to_string())?;
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    if length > MAX_BYTES {
        return Err(format!("a message of {length} bytes is too long"));
    }
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend(bytes);
    let sent = async {
        control.write_all(&frame).await?;
        control.flush().await
    };
    within(STEP_LIMIT, async { sent.await.map_err(lost) }).await
}

/// Receives a message.
/// The connection is of no use after the future was dropped.
pub(super) async fn receive<T: DeserializeOwned>(
    control: &mut (impl AsyncRead + Unpin),
) -> Result<T, String> {
    let mut length = [0; 4];
    control.read_exact(&mut length).await.map_err(lost)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_BYTES {
        return Err(format!(
            "the other end has sent a message of {length} bytes, which is too long"
        ));
    }
    let mut bytes = vec![0; length as usize];
    control.read_exact(&mut bytes).await.map_err(lost)?;
    postcard::from_bytes(&bytes)
        .map_err(|error| format!("the other end has sent a message that is none: {error}"))
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn lost(error: io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return "the other end has closed the connection".to_owned();
    }
    format!("the connection to the other end is lost: {error}")
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[test]
    fn a_wait_ends_when_it_is_stopped_and_when_its_time_has_passed() {
        let signal = RunSignal::new(Duration::from_millis(20));
        let mut patience = signal.patience();
        let fault = loop {
            if let Err(fault) = patience.has_polled() {
                break fault;
            }
        };
        assert!(fault.contains("nothing has arrived"), "{fault}");
        drop(StopOnDrop(Arc::clone(&signal)));
        let mut patience = signal.patience();
        assert!(patience.check().unwrap_err().contains("stopped"));
    }

    #[test]
    fn a_number_is_known_when_the_other_end_has_told_it() {
        let signal = RunSignal::new(Duration::ZERO);
        assert_eq!(signal.number(), None);
        signal.set_number(0);
        assert_eq!(signal.number(), Some(0));
    }

    #[tokio::test]
    async fn both_ends_know_what_the_other_one_has() {
        let (mut one, mut two) = duplex(1000);
        let ours = exchange(&mut one, Ok(1_u32));
        let theirs = exchange(&mut two, Ok(2_u32));
        assert_eq!(tokio::join!(ours, theirs), (Ok(2), Ok(1)));
    }

    #[tokio::test]
    async fn both_ends_know_why_one_has_failed() {
        let (mut one, mut two) = duplex(1000);
        let ours = exchange(&mut one, Err::<u32, _>("no port".to_owned()));
        let theirs = exchange(&mut two, Ok(2_u32));
        let (ours, theirs) = tokio::join!(ours, theirs);
        assert_eq!(ours.unwrap_err(), "no port");
        assert_eq!(theirs.unwrap_err(), "the other end: no port");
    }

    #[tokio::test]
    async fn a_closed_connection_and_nonsense_are_errors() {
        let (mut one, two) = duplex(1000);
        drop(two);
        assert!(
            receive::<u32>(&mut one)
                .await
                .unwrap_err()
                .contains("closed")
        );
        let (mut one, mut two) = duplex(1000);
        two.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
        assert!(
            receive::<u32>(&mut one)
                .await
                .unwrap_err()
                .contains("too long")
        );
        let (mut one, mut two) = duplex(1000);
        two.write_all(&[1, 0, 0, 0, 0xff]).await.unwrap();
        assert!(receive::<u32>(&mut one).await.unwrap_err().contains("none"));
    }

    #[tokio::test]
    async fn a_silent_end_is_an_error() {
        let (mut one, _two) = duplex(1000);
        let silent = within(Duration::ZERO, receive::<u32>(&mut one));
        let error = silent.await.unwrap_err();
        assert_eq!(error, "the other end was silent for 0 s");
    }
}
