//! Carries bytes with the options `--buffer` and `--bwlimit`. Without them the bytes go as without this module.

use tokio::io::AsyncBufRead;

use super::{
    CarryError, Finish, Watched,
    buffer::{BufferedSink, BufferedSource},
    pace::Paced,
    pump::{receive_all, send_all, settle},
};
use crate::{
    fd::{Sink, Source},
    options::FlowOptions,
    transport::FillSlots,
};

/// Sends all of `source` through `stream`, as [`send_all`] does.
/// Fails as [`send_all`] does, and if the system gives no thread for the buffer.
/// Cancelling is as with [`send_all`]; bytes in the buffer are lost.
pub(crate) async fn send<T>(
    source: &mut Source,
    stream: &mut T,
    flow: FlowOptions,
) -> Result<u64, CarryError>
where
    T: FillSlots + Watched,
{
    let unstarted = |source| CarryError::Source { offset: 0, source };
    match (flow.buffer, flow.bwlimit) {
        (None, None) => send_all(source, stream).await,
        (None, Some(rate)) => send_all(&mut Paced::new(source, rate), stream).await,
        (Some(most), rate) => {
            let mut source = BufferedSource::start(source, most).map_err(unstarted)?;
            match rate {
                None => send_all(&mut source, stream).await,
                Some(rate) => send_all(&mut Paced::new(&mut source, rate), stream).await,
            }
        }
    }
}

/// Sends all of `source` and the end of the stream, as [`send_all_and_finish`](super::send_all_and_finish) does.
/// Fails as [`send`] and the end do, and if the system gives no thread for the buffer.
/// Cancelling is as with [`send`]; bytes in the buffer are lost.
pub(crate) async fn send_and_finish<T>(
    source: &mut Source,
    stream: &mut T,
    flow: FlowOptions,
) -> Result<u64, CarryError>
where
    T: FillSlots + Watched + Finish,
{
    let sent = send(source, stream, flow).await?;
    settle(source).await;
    stream.finish().await?;
    Ok(sent)
}

/// Receives all of `stream` into `sink`, as [`receive_all`] does.
/// Fails as [`receive_all`] does, and if the system gives no thread for the buffer.
/// Cancelling is as with [`receive_all`]; bytes in the buffer are lost.
pub(crate) async fn receive<R>(
    stream: &mut R,
    sink: &mut Sink,
    flow: FlowOptions,
) -> Result<u64, CarryError>
where
    R: AsyncBufRead + Watched + Unpin,
{
    let most = match (flow.buffer, flow.bwlimit) {
        (None, None) => return receive_all(stream, sink).await,
        (None, Some(rate)) => return receive_all(stream, &mut Paced::new(sink, rate)).await,
        (Some(most), _) => most,
    };
    let unstarted = |source| CarryError::Sink { offset: 0, source };
    let mut buffered = BufferedSink::start(sink, most).map_err(unstarted)?;
    let received = match flow.bwlimit {
        None => receive_all(stream, &mut buffered).await,
        Some(rate) => receive_all(stream, &mut Paced::new(&mut buffered, rate)).await,
    };
    match received {
        Ok(bytes) => {
            buffered.finish().await;
            Ok(bytes)
        }
        Err(CarryError::Sink { source, .. }) => Err(CarryError::Sink {
            offset: buffered.written(),
            source,
        }),
        Err(error) => Err(error),
    }
}
