//! What a hostile client does to `rdforward serve`: frames of a tunnel in any order.

use std::{io, net::SocketAddr};

use tokio::{io::AsyncWriteExt, task::JoinSet};

use super::{
    HostileDeeds,
    valid::{Choices, valid},
};
use crate::{
    Key, StreamConfig, TransportPolicy, connect,
    forward::{
        mux::frame::{FrameHead, FrameKind, MAX_CONTROL_BYTES},
        policy::ForwardTarget,
        tunnel::messages::{OpenTarget, TUNNEL_VERSION, TunnelMessage},
    },
};

/// A server of tunnels, as a hostile client reaches it.
#[derive(Clone)]
pub(super) struct TunnelServer {
    pub(super) address: SocketAddr,
    pub(super) key: Key,
    /// A port to which the server connects.
    pub(super) port: u16,
}

impl TunnelServer {
    /// Plays a client that sends valid frames in any order, up to an end that its decisions choose.
    pub(super) async fn play(
        &self,
        choices: &mut Choices<'_>,
        deeds: &HostileDeeds,
    ) -> io::Result<()> {
        let config = StreamConfig {
            transport: TransportPolicy::Tcp,
            ..StreamConfig::default()
        };
        let stream = connect(self.address, &self.key, &config).await;
        let (mut read, mut write) = stream.map_err(io::Error::other)?.into_split();
        deeds.sessions.add();
        let mut readers = JoinSet::new();
        if !choices.once_in(3) {
            readers.spawn(async move {
                let mut sink = tokio::io::sink();
                let _ = tokio::io::copy(&mut read, &mut sink).await;
            });
        }
        let hello = TunnelMessage::Hello {
            version: TUNNEL_VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
        };
        write.write_all(&message(&hello)).await?;
        deeds.orders.add();
        let mut opened = 0;
        for _ in 0..choices.one_of(&[0, 5, 50, 500, 5000]) {
            let frame = self.frame(&mut opened, choices);
            write.write_all(&frame).await?;
            deeds.messages.add();
        }
        match choices.below(4) {
            0 => return Ok(()),
            1 => write.shutdown().await?,
            _ => {}
        }
        std::future::pending::<()>().await;
        drop((write, readers));
        Ok(())
    }

    /// Returns any frame. `opened` is the number of connections so far.
    fn frame(&self, opened: &mut u32, choices: &mut Choices<'_>) -> Vec<u8> {
        let any = u32::try_from(choices.below(usize::try_from(*opened).unwrap_or(0) + 1));
        let flow = any.unwrap_or(0) * 2 + 1;
        let head = |kind, value| FrameHead { kind, flow, value }.encode().to_vec();
        match choices.below(12) {
            0..=3 => {
                let flow = *opened * 2 + 1;
                *opened += 1;
                let target = if choices.once_in(4) {
                    valid(choices)
                } else {
                    OpenTarget::Connect(ForwardTarget::Tcp {
                        host: "127.0.0.1".to_owned(),
                        port: self.port,
                    })
                };
                let window = choices.one_of(&[0, 1, 16 << 10, 1 << 20, u32::MAX]);
                let target = postcard::to_stdvec(&target).unwrap_or_default();
                let payload = [&window.to_le_bytes()[..], &target].concat();
                with_payload(FrameKind::Open, flow, &payload)
            }
            4..=7 => {
                let length = choices.one_of(&[1, 100, 2000, 16 << 10]);
                with_payload(FrameKind::Data, flow, &vec![7; length])
            }
            8 => head(FrameKind::Fin, 0),
            9 => head(FrameKind::Reset, 0),
            10 => head(FrameKind::Window, choices.one_of(&[0, 1, 1 << 20])),
            _ => message(&valid(choices)),
        }
    }
}

fn message(message: &TunnelMessage) -> Vec<u8> {
    let payload = postcard::to_stdvec(message).unwrap_or_default();
    with_payload(FrameKind::Message, 0, &payload)
}

/// Returns a frame. A payload that is too long for it is cut.
fn with_payload(kind: FrameKind, flow: u32, payload: &[u8]) -> Vec<u8> {
    let most = match kind {
        FrameKind::Data => payload.len(),
        _ => payload.len().min(MAX_CONTROL_BYTES),
    };
    let value = u32::try_from(most).unwrap_or(0);
    let head = FrameHead { kind, flow, value };
    [&head.encode()[..], &payload[..most]].concat()
}
