//! The client of redis, which drops its connection without a shutdown.

use anyhow::{Result, ensure};
use rdpipe::{OnDrop, Stream, StreamConfig};
use redis::{
    AsyncCommands, AsyncConnectionConfig, RedisConnectionInfo, aio::MultiplexedConnection,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use super::House;
use crate::support::{data_path::DataPath, limits::generous};

/// Several tasks share a multiplexed connection, which is then dropped: the server reads an end of file.
pub(crate) async fn a_dropped_client_is_an_end_of_file(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let mut base = base;
    base.on_drop = OnDrop::Fin;
    let house = House::open(over, base).await?;
    let stream = house.connect().await?;
    let accepted = house
        .watches
        .over("the server", house.listener.accept().await?);
    let server = tokio::spawn(answer(accepted));
    let info = RedisConnectionInfo::default();
    // The client's default is half a second, which a busy machine exceeds.
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(generous()));
    let (connection, driver) =
        MultiplexedConnection::new_with_config(&info, stream, config).await?;
    let driver = tokio::spawn(driver);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..20 {
        let mut connection = connection.clone();
        tasks.spawn(async move { connection.incr::<_, _, usize>("counter", number).await });
    }
    for answer in tasks.join_all().await {
        ensure!(answer? == 7);
    }
    drop(connection);
    driver.await?;
    let commands = server.await??;
    ensure!(commands >= 20, "{commands} commands");
    house.watches.check(2)
}

/// Answers every command of a client with a number until it ends. Returns the number of commands.
async fn answer(stream: Stream) -> Result<usize> {
    let mut stream = BufReader::new(stream);
    let mut commands = 0;
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        let parts: usize = line.trim_start_matches('*').trim().parse()?;
        for _ in 0..parts {
            line.clear();
            stream.read_line(&mut line).await?;
            let bytes: usize = line.trim_start_matches('$').trim().parse()?;
            stream.read_exact(&mut vec![0; bytes + 2]).await?;
        }
        line.clear();
        commands += 1;
        stream.get_mut().write_all(b":7\r\n").await?;
    }
    stream.get_mut().shutdown().await?;
    Ok(commands)
}
