//! The measurements, each with two ends: the end that dials and the end that listens run the same module.
//!
//! A task makes its own streams: their number, direction and transport are what is measured. They are no edges of the
//! order: an edge is one stream, which both ends connect before the work begins, and whose fault ends the run. A task
//! has up to 64 streams, or one after the other, or sockets, and a port that cannot be reached is a result.
//!
//! Each task has a fresh key, from which each of its streams has one of its own (SHA-256), so all streams of a task share
//! one port. Sockets without the protocol begin with a proof of the task's key in both directions. Verbs use threads that
//! poll, beside a control connection over TCP that is idle while they run. The peer's key to write or read memory is given
//! out only here: it belongs to a region that has nothing but the measurement's bytes.

mod bandwidth;
mod connections;
pub(crate) mod counters;
mod latency;
pub(crate) mod path;
pub(crate) mod storage;
pub(crate) mod verbs;

use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use self::connections::{
    PendingSockets, PendingStreams, SocketTerms, StreamTerms, broken, control_settings,
};
use crate::{
    Direction, Key, Rails, Stream, StreamConfig,
    options::StreamOptions,
    perf::messages::{Layer, TaskEnd, TaskFault, TaskKind, TaskOrder, TaskResult, TaskTarget},
};

/// What all tasks of an agent share.
#[derive(Clone)]
pub(crate) struct TaskSettings {
    /// How streams are set up. Each task has its own transport.
    pub(crate) stream: StreamOptions,
    /// The first and the last port to listen on; none is any port.
    pub(crate) ports: Option<(u16, u16)>,
    pub(crate) control_runtime: Handle,
}

/// One end of a task before the other end is there.
pub(crate) struct OpenTask {
    order: TaskOrder,
    rdma: crate::RdmaConfig,
    silence: Duration,
    pending: PendingConnections,
}

enum PendingConnections {
    Streams(PendingStreams),
    Sockets(PendingSockets, SocketTerms),
}

impl OpenTask {
    /// Opens this end of a task. A task that is cancelled fails soon.
    /// Cancel safe: dropping the future closes what it has opened.
    pub(crate) async fn open(
        order: TaskOrder,
        settings: &TaskSettings,
        cancelled: CancellationToken,
    ) -> Result<Self, TaskFault> {
        order.kind.check()?;
        let key = Key::parse_generated(&order.key);
        let key = key.map_err(|_| "received an invalid key".to_owned())?;
        let config = config(&order, settings);
        let (rdma, silence) = (config.rdma.clone(), config.timeout);
        let (peer, target) = (order.peer.clone(), order.target.clone());
        let pending = match streams(&order.kind) {
            None => {
                let terms = SocketTerms {
                    key,
                    peer,
                    silence,
                    count: sockets(&order.kind),
                    cancelled,
                };
                let pending = match target {
                    Some(TaskTarget { addresses, port }) => {
                        PendingSockets::Dial { addresses, port }
                    }
                    None => connections::listen_sockets(settings.ports)?,
                };
                PendingConnections::Sockets(pending, terms)
            }
            Some(count) => {
                let terms = StreamTerms {
                    key,
                    peer,
                    config,
                    ports: settings.ports,
                    count,
                };
                PendingConnections::Streams(match target {
                    Some(TaskTarget { addresses, port }) => terms.dial(addresses, port)?,
                    None => terms.listen().await?,
                })
            }
        };
        Ok(Self {
            order,
            rdma,
            silence,
            pending,
        })
    }

    /// Returns the port for the other end, if this end listens.
    pub(crate) fn port(&self) -> Option<u16> {
        match &self.pending {
            PendingConnections::Streams(pending) => pending.port(),
            PendingConnections::Sockets(pending, _) => pending.port(),
        }
    }

    /// Carries out the task with the other end.
    /// Dropping the future closes the streams of the task. Threads with sockets end when they look at the cancellation.
    pub(crate) async fn carry_out(self) -> Result<TaskResult, TaskFault> {
        let Self {
            mut order,
            rdma,
            silence,
            pending,
        } = self;
        let end = order.end();
        let peer = std::mem::take(&mut order.peer);
        let mut pending = match pending {
            PendingConnections::Streams(pending) => pending,
            PendingConnections::Sockets(pending, terms) => {
                let kind = order.kind.clone();
                let measuring = move || measure_sockets(&pending, end, &kind, &terms);
                let measured = crate::threads::blocking(measuring).await;
                return measured.unwrap_or_else(|error| Err(error.to_string().into()));
            }
        };
        match &order.kind {
            TaskKind::Bandwidth(task) => {
                bandwidth::measure_streams(&mut pending, end, *task, &peer).await
            }
            TaskKind::Latency(task) => {
                latency::measure_streams(&mut pending, end, *task, &peer).await
            }
            TaskKind::Connect { millis } => {
                let time = Duration::from_millis((*millis).into());
                latency::measure_connects(&mut pending, end, time, &peer).await
            }
            TaskKind::Reach | TaskKind::Path | TaskKind::Ports | TaskKind::Verbs(_) => {
                let kind = order.kind.clone();
                let (thread, stream) = pending.connect_one().await?;
                thread
                    .run(beside_control(stream, end, kind, rdma, silence, peer))
                    .await
            }
        }
    }
}

/// Carries out a task whose two ends exchange messages about it over a stream.
async fn beside_control(
    mut control: Stream,
    end: TaskEnd,
    kind: TaskKind,
    rdma: crate::RdmaConfig,
    silence: Duration,
    peer: String,
) -> Result<TaskResult, TaskFault> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (local, remote) = (control.local_addr().ip(), control.peer_addr().ip());
    let result = match kind {
        TaskKind::Path => path::probe_path(end, remote, local, &mut control).await,
        TaskKind::Ports => verbs::prove_ports(end, &rdma, &mut control).await,
        TaskKind::Verbs(task) => verbs::measure_verbs(end, &task, silence, &mut control).await,
        _ => Ok(match end {
            TaskEnd::Dialer => TaskResult::Reached {
                address: remote.to_canonical().to_string(),
            },
            TaskEnd::Listener => TaskResult::Served,
        }),
    };
    if let Err(why) = &result {
        control.abort(why);
    }
    let ended = async {
        control.shutdown().await?;
        // The other end has ended, too.
        control.read_to_end(&mut Vec::new()).await
    };
    let ended = ended.await;
    control.close().await;
    let result = result?;
    ended.map_err(|error| broken(&error, &peer))?;
    Ok(result)
}

fn measure_sockets(
    pending: &PendingSockets,
    end: TaskEnd,
    kind: &TaskKind,
    terms: &SocketTerms,
) -> Result<TaskResult, TaskFault> {
    match kind {
        TaskKind::Bandwidth(task) => bandwidth::measure_sockets(pending, end, *task, terms),
        TaskKind::Latency(task) => latency::measure_sockets(pending, end, *task, terms),
        _ => Err("this measurement needs streams".to_owned().into()),
    }
}

/// Returns the number of streams of a task; none if the task has sockets.
fn streams(kind: &TaskKind) -> Option<usize> {
    match kind {
        TaskKind::Bandwidth(task) if task.layer == Layer::Socket => None,
        TaskKind::Latency(task) if task.layer == Layer::Socket => None,
        TaskKind::Bandwidth(task) => Some(task.streams.into()),
        _ => Some(1),
    }
}

fn sockets(kind: &TaskKind) -> usize {
    match kind {
        TaskKind::Bandwidth(task) => task.streams.into(),
        _ => 1,
    }
}

fn config(order: &TaskOrder, settings: &TaskSettings) -> StreamConfig {
    let stream = StreamOptions {
        transport: order.transport,
        ..settings.stream.clone()
    };
    let config = StreamConfig {
        control_runtime: Some(settings.control_runtime.clone()),
        ..stream.config(Direction::Both)
    };
    match &order.kind {
        TaskKind::Bandwidth(task) => StreamConfig {
            direction: bandwidth::direction(task.traffic, order.end()),
            rails: task.rails.map_or(config.rails, Rails::Exactly),
            ..config
        },
        TaskKind::Latency(task) => latency::settings(config, task.wait),
        TaskKind::Connect { .. } => StreamConfig {
            direction: Direction::Both,
            ..config
        },
        TaskKind::Reach | TaskKind::Path | TaskKind::Ports | TaskKind::Verbs(_) => {
            control_settings(config)
        }
    }
}
