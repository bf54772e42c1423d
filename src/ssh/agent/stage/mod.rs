//! The application *stage*: runs a command, or reads or writes files, between connected edges.

mod command;
pub(super) mod files;

use std::{
    future::pending,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use tokio::time::interval;
use tokio_util::sync::CancellationToken;

use self::command::EmptyStdin;
use super::{
    edges::Meter,
    job::{ConnectedEdges, Job, JobContext, Messages, OrderedEdges, PlacedEdge},
};
use crate::{
    Direction,
    fd::EntryIdentity,
    options::FlowOptions,
    ssh::{
        protocol::{EdgeId, FaultKind, FromAgent, Payload},
        stage::{
            FromStage, StageOrder, StageProgress, StageReport, StageWork, Status, TargetFile,
            ToStage,
        },
    },
};

/// What all tasks that work on the stage share.
#[derive(Clone)]
pub(super) struct StageContext {
    pub(super) context: JobContext,
    /// Cancelled when every earlier stage has succeeded.
    pub(super) proceed: CancellationToken,
    /// Whether files are fsynced before they are committed.
    pub(super) fsync: bool,
    output_file: Option<EntryIdentity>,
    /// What limits and holds the bytes of each edge.
    pub(super) flow: FlowOptions,
    /// Whether a user watches the progress.
    pub(super) is_watched: bool,
    /// The bytes of the files that the stage sends, once they are known.
    pub(super) file_bytes: Arc<OnceLock<u64>>,
    /// What is under the name of the stage's file.
    pub(super) file: Arc<Mutex<TargetFile>>,
}

/// The input and the output edge of a stage, each if it has one.
pub(super) struct StageEdges {
    pub(super) input: Option<PlacedEdge>,
    pub(super) output: Option<PlacedEdge>,
}

impl StageContext {
    /// Does the work of the stage. Returns its status when all of its processes have exited and both edges are
    /// closed. The status is none if the work never began.
    pub(super) async fn run(&self, work: StageWork, ends: StageEdges) -> Option<Status> {
        match work {
            StageWork::Command(command) => {
                command::run(self, &command, EmptyStdin::Readable, ends).await
            }
            StageWork::CommandWithoutStdin(command) => {
                command::run(self, &command, EmptyStdin::Unreadable, ends).await
            }
            StageWork::SshCommand(command) => command::run_as_sshd(self, &command, ends).await,
            StageWork::Files(paths) => files::run_files(self, paths, ends).await,
            StageWork::Read(path) => files::read(self, files::resolve(path), ends).await,
            StageWork::Write { path, append } => {
                files::write(self, files::resolve(path), append, ends).await
            }
        }
    }

    /// Sends a message to the controller.
    fn send(&self, message: &FromStage) {
        match Payload::encode(message) {
            Ok(payload) if matches!(message, FromStage::Progress(_)) => {
                self.context.outbox.replace(payload);
            }
            Ok(payload) => self.context.outbox.send(FromAgent::Application(payload)),
            // Only a message with a path of nearly 256 KiB and the reason of a failure can be too long.
            Err(error) => self.context.fail_local(&error.to_string()),
        }
    }

    /// Records what is under the name of the stage's file now.
    fn set_file(&self, file: TargetFile) {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
    }

    /// Waits until every earlier stage has succeeded. Returns false if this stage has to end before that.
    async fn may_proceed(&self) -> bool {
        tokio::select! {
            () = self.proceed.cancelled() => true,
            () = self.context.first_fault.failed() => false,
        }
    }
}

/// The pause between two progress messages to the controller.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// The job of a stage, from its order to its report.
pub(in crate::ssh::agent) struct StageJob {
    stage: StageContext,
    order: StageOrder,
    input: Arc<Meter>,
    output: Arc<Meter>,
    started: Option<Instant>,
    status: Option<Status>,
}

impl Job for StageJob {
    fn prepare(
        context: &JobContext,
        order: &Payload,
        edges: &OrderedEdges,
    ) -> Result<Self, String> {
        let order: StageOrder = order
            .decode()
            .map_err(|error| format!("received an invalid order ({error})"))?;
        let meter = |id: Option<EdgeId>, direction| {
            id.map_or_else(|| Ok(Arc::default()), |id| edges.meter(id, direction))
        };
        let stage = StageContext {
            context: context.clone(),
            proceed: CancellationToken::new(),
            fsync: order.fsync,
            output_file: order.output_file,
            flow: order.flow,
            is_watched: order.is_watched,
            file_bytes: Arc::default(),
            file: Arc::default(),
        };
        if let Some((file, is_written)) = files::opened(&order.work) {
            stage.send(&FromStage::Opens { file, is_written });
        }
        Ok(Self {
            input: meter(order.input, Direction::Receive)?,
            output: meter(order.output, Direction::Send)?,
            stage,
            order,
            started: None,
            status: None,
        })
    }

    async fn run(&mut self, mut edges: ConnectedEdges, messages: Messages) {
        self.started = Some(Instant::now());
        let ends = StageEdges {
            input: self.order.input.and_then(|id| edges.take(id)),
            output: self.order.output.and_then(|id| edges.take(id)),
        };
        let working = async {
            let status = self.stage.run(self.order.work.clone(), ends).await;
            edges.close().await;
            status
        };
        let status = tokio::select! {
            biased;
            status = working => status,
            () = receive(&self.stage, messages) => None,
            () = self.show_progress() => None,
        };
        self.status = status;
    }

    fn report(&self) -> Option<Payload> {
        let elapsed = self
            .started
            .map_or(Duration::ZERO, |started| started.elapsed());
        let first_fault = &self.stage.context.first_fault;
        let progress = self.progress();
        let file = self.stage.file.lock();
        let report = StageReport {
            status: self.status,
            output_stopped: first_fault.output_stopped.is_set(),
            input_stopped: first_fault.input_stopped.is_set(),
            bytes_in: progress.bytes_in,
            bytes_out: progress.bytes_out,
            elapsed_us: micros(elapsed),
            blocked_on_input_us: progress.blocked_on_input_us,
            blocked_on_output_us: progress.blocked_on_output_us,
            file: *file.unwrap_or_else(PoisonError::into_inner),
        };
        Payload::encode(&report).ok()
    }
}

impl StageJob {
    fn progress(&self) -> StageProgress {
        StageProgress {
            bytes_in: self.input.bytes(),
            bytes_out: self.output.bytes(),
            blocked_on_input_us: micros(self.input.blocked()),
            blocked_on_output_us: micros(self.output.blocked()),
            file_bytes: self.stage.file_bytes.get().copied(),
        }
    }

    /// Sends the progress of the stage to the controller: if a user watches it always, else whenever bytes have moved.
    /// Does not return.
    async fn show_progress(&self) {
        let mut ticks = interval(PROGRESS_INTERVAL);
        let mut shown = (0, 0);
        loop {
            ticks.tick().await;
            let progress = self.progress();
            let now = (progress.bytes_in, progress.bytes_out);
            if self.stage.is_watched || now != shown {
                shown = now;
                self.stage.send(&FromStage::Progress(progress));
            }
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Carries out the controller's messages to the stage. Does not return.
async fn receive(stage: &StageContext, mut messages: Messages) {
    while let Some(message) = messages.recv().await {
        match message.decode() {
            Ok(ToStage::Proceed) => stage.proceed.cancel(),
            Err(error) => {
                let text = format!("received an invalid message from the controller ({error})");
                stage.context.fail(FaultKind::Ordered, &text);
            }
        }
    }
    pending::<()>().await;
}
