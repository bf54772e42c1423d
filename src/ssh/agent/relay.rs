//! An agent that is a relay: opens its end on 127.0.0.1, answers the order, and hands the session over to what moves the
//! bytes.

use std::{
    io::{self, Cursor},
    net::Ipv4Addr,
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    net::TcpListener,
};

use super::{
    ControlReader, ControllerError,
    job::Applications,
    outbox::{ControlWriter, Outbox},
};
use crate::ssh::protocol::{
    AgentReport, EdgeId, FaultKind, FromAgent, Payload, RelayOrder, WorkFault,
};

pub(crate) struct RelayEnd {
    pub(crate) port: RelayPort,
    /// The silence after which the other relay counts as lost.
    pub(crate) timeout: Duration,
}

/// The connections of 127.0.0.1 that a relay carries.
pub(crate) enum RelayPort {
    /// Those that it accepts.
    Listen(TcpListener),
    /// Those that it makes to this port.
    Connect(u16),
}

impl RelayEnd {
    /// Opens the end that the order asks for. Returns it with its port.
    async fn open(order: &Payload) -> Result<(Self, u16), String> {
        let RelayOrder { connect, timeout } = order
            .decode()
            .map_err(|error| format!("received an invalid order ({error})"))?;
        let cannot = |error: io::Error| format!("cannot listen on 127.0.0.1: {error}");
        let (port, number) = if let Some(number) = connect {
            (RelayPort::Connect(number), number)
        } else {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
            let listener = listener.map_err(cannot)?;
            let number = listener.local_addr().map_err(cannot)?.port();
            (RelayPort::Listen(listener), number)
        };
        Ok((Self { port, timeout }, number))
    }
}

/// Carries out the order of a relay. `output` is the session's, for what follows after the messages in the outbox.
/// Fails if the session breaks, or the other relay is silent.
pub(super) async fn carry<A: Applications, R, W>(
    order: &Payload,
    inbox: ControlReader<R>,
    (outbox, writer): (Outbox, ControlWriter),
    output: W,
) -> Result<(), ControllerError>
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send,
{
    let opened = RelayEnd::open(order).await;
    outbox.send(match &opened {
        Ok((_, port)) => FromAgent::Listening {
            edge: EdgeId(0),
            port: *port,
        },
        Err(text) => FromAgent::Report(AgentReport {
            fault: Some(WorkFault {
                kind: FaultKind::Local,
                text: text.clone(),
            }),
            result: None,
        }),
    });
    writer.finish().await;
    let Ok((end, _)) = opened else {
        return Ok(());
    };
    let (rest, input) = inbox.into_input();
    let mut input = Cursor::new(rest).chain(input);
    // The newline behind the order.
    if input.read_u8().await? != b'\n' {
        return Err(ControllerError::Garbage("a frame without its end"));
    }
    A::relay(end, input, output).await?;
    Ok(())
}
