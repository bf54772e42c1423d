//! The far end of a tunnel whose stream this program has accepted.

use super::reports;
use crate::{
    Stream,
    cli::shared::message::Console,
    forward::tunnel::{Tunnel, TunnelFault, TunnelRole},
    ssh::edge::about_peer,
};

/// Carries the connections of a tunnel until it ends. If `cut` becomes ready, the tunnel ends with its reason. Returns the
/// failure, as a sentence for the user.
pub(super) async fn carry(
    mut stream: Stream,
    role: TunnelRole,
    console: &Console,
    cut: impl Future<Output = &'static str>,
) -> Result<(), String> {
    let tunnel = Tunnel::far(role, reports::observer(console, &[]));
    let peer = stream.peer().to_owned();
    let ended = tokio::select! {
        ended = tunnel.run(&mut stream) => ended.map_err(|fault| match fault {
            TunnelFault::Stream(error) => about_peer(error, &peer).to_string(),
            fault => {
                stream.abort(&fault.to_string());
                format!("{peer}: {fault}")
            }
        }),
        reason = cut => {
            stream.abort(reason);
            Ok(())
        }
    };
    stream.close().await;
    ended
}
