//! The steps that every measurement with verbs has: connect two endpoints, let both measure, and exchange what they counted.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite, split},
    select,
    task::{JoinError, spawn_blocking},
};

use super::{
    endpoint::{EndpointFacts, EndpointPlan, VerbsEndpoint},
    exchange::{exchange, of_other_end, receive, send, within},
    patience::{RunSignal, SILENCE, StopOnDrop},
};

/// What an end has told when it has finished: a number, or why it has failed.
type FinishNotice = Result<u64, String>;

/// What an end has measured.
pub(super) struct Finished<T> {
    pub(super) endpoint: VerbsEndpoint,
    pub(super) result: T,
    /// The number that the other end has told.
    pub(super) told: u64,
}

/// Makes an endpoint at each end, posts `receives` receives of as many bytes as the longest operation has, and connects the
/// two. Both ends are ready afterwards.
///
/// # Errors
///
/// What failed, at which end.
///
/// # Cancel safety
///
/// None: the connection is of no use afterwards.
pub(super) async fn connect(
    control: &mut (impl AsyncRead + AsyncWrite + Unpin),
    plan: EndpointPlan,
    receives: u32,
) -> Result<VerbsEndpoint, String> {
    let bytes = plan.size;
    let opened = spawn_blocking(|| {
        let endpoint = VerbsEndpoint::open(plan)?;
        Ok((endpoint.facts()?, endpoint))
    });
    match opened.await.map_err(panicked)? {
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

/// Runs `work` on a thread of its own, and tells the other end the number that it returns. If the other end finishes first,
/// `work` finds its number in the signal. If the other end fails, `work` is stopped.
///
/// # Errors
///
/// What failed, at which end.
///
/// # Cancel safety
///
/// Stops `work`. The connection is of no use afterwards.
pub(super) async fn run<T: Send + 'static>(
    control: &mut (impl AsyncRead + AsyncWrite + Unpin),
    mut endpoint: VerbsEndpoint,
    work: impl FnOnce(&mut VerbsEndpoint, &RunSignal) -> Result<(T, u64), String> + Send + 'static,
) -> Result<Finished<T>, String> {
    let (mut reader, mut writer) = split(control);
    let mut theirs = pin!(receive::<FinishNotice>(&mut reader));
    let signal = RunSignal::new();
    let _stop = StopOnDrop(Arc::clone(&signal));
    let of_thread = Arc::clone(&signal);
    let mut thread = spawn_blocking(move || {
        let result = work(&mut endpoint, &of_thread);
        (endpoint, result)
    });
    let mut told = None;
    let (endpoint, result) = loop {
        select! {
            finished = &mut thread => break finished.map_err(panicked)?,
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
        None => within(SILENCE, theirs)
            .await?
            .map_err(|text| of_other_end(&text))?,
    };
    Ok(Finished {
        endpoint,
        result,
        told,
    })
}

/// Waits until the other end has finished, which takes at most `limit` by itself.
///
/// # Errors
///
/// The other end has failed, or does not finish.
///
/// # Cancel safety
///
/// None: the connection is of no use afterwards.
pub(super) async fn serve(
    control: &mut (impl AsyncRead + AsyncWrite + Unpin),
    limit: Duration,
) -> Result<(), String> {
    // Operations that are under way at the end of the time may take long too.
    let finish = within(limit + 2 * SILENCE, receive::<FinishNotice>(control)).await?;
    finish.map_err(|text| of_other_end(&text))?;
    send(control, &FinishNotice::Ok(0)).await
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn panicked(error: JoinError) -> String {
    format!("a thread of the measurement has failed: {error}")
}
