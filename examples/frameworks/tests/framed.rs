//! Codecs of `tokio_util`, with many clients at once.

use anyhow::{Context, Result, ensure};
use futures::{SinkExt, StreamExt};
use rdpipe::{OnDrop, StreamConfig};
use tokio::{task::JoinSet, try_join};
use tokio_util::codec::{Framed, LinesCodec};

use super::House;
use crate::support::data_path::DataPath;

/// More than wait for `accept` at once; fewer where it is slow.
const CLIENTS: usize = 200;
const FEW_CLIENTS: usize = 40;

/// Clients ask and drop their `Framed`, and the server drops its own when it reads the end.
pub(crate) async fn many_clients_end_without_an_error(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let many = if over.is_slow() { FEW_CLIENTS } else { CLIENTS };
    let mut base = base;
    (base.chunk_bytes, base.depth) = (16 << 10, 4);
    base.on_drop = OnDrop::Fin;
    let house = House::open(over, base).await?;
    let mut clients = JoinSet::new();
    for number in 0..many {
        let (builder, watches) = (house.builder.clone(), house.watches.clone());
        let address = house.listener.local_addr();
        clients.spawn(async move {
            let stream = builder.connect(address).await?;
            let mut lines = Framed::new(watches.over("the client", stream), LinesCodec::new());
            lines.send(format!("client {number}")).await?;
            let answer = lines.next().await.context("no answer")??;
            ensure!(answer == format!("hello client {number}"), "{answer}");
            Ok(())
        });
    }
    let mut served = JoinSet::new();
    let serve = async {
        for _ in 0..many {
            let stream = house.listener.accept().await?;
            let mut lines =
                Framed::new(house.watches.over("the server", stream), LinesCodec::new());
            served.spawn(async move {
                while let Some(line) = lines.next().await {
                    lines.send(format!("hello {}", line?)).await?;
                }
                anyhow::Ok(())
            });
        }
        Ok(())
    };
    // A client that fails is not waited for in `accept`.
    try_join!(all(&mut clients), serve)?;
    all(&mut served).await?;
    let live = house.listener.live_streams();
    live.ended().await;
    house.watches.check(2 * many)
}

/// Waits for all tasks, or for the first that fails.
async fn all(tasks: &mut JoinSet<Result<()>>) -> Result<()> {
    while let Some(end) = tasks.join_next().await {
        end??;
    }
    Ok(())
}
