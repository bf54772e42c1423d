//! A stage that writes a file: `> path`, all of it or nothing, and `>> path`, in place after the end of the file.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;
use tokio_util::sync::CancellationToken;

use super::{StageContext, StageEdges, path::refuse_own_descriptor};
use crate::{
    fd::{OutputTarget, Sink, open_in_place},
    ssh::{
        agent::connected_edge::{ConnectedEdge, EarlyEnd},
        protocol::FromAgent,
        stage::{FromStage, Status},
    },
};

/// Writes the input to the file, commits the file when all earlier stages have succeeded, and then sends an empty
/// output.
pub(super) async fn run(
    stage: &StageContext,
    path: PathBuf,
    append: bool,
    ends: StageEdges,
) -> Option<Status> {
    let StageEdges { input, output } = ends;
    let committed = CancellationToken::new();
    let storing = async {
        let is_stored = match input {
            Some((thread, edge)) => thread.run(store(stage.clone(), edge, path, append)).await,
            None => create(stage, &path, append).await,
        };
        if is_stored {
            committed.cancel();
        }
        Some(Status::Exited(u8::from(!is_stored)))
    };
    let ending = async {
        if let Some((thread, edge)) = output {
            thread.run(send_nothing(edge, committed.clone())).await;
        }
    };
    tokio::join!(storing, ending).0
}

/// Creates or truncates the file of a stage without input. Returns true if the file is committed.
async fn create(stage: &StageContext, path: &Path, append: bool) -> bool {
    let creating = async {
        let file = OutputFile::open(path, append).await?;
        stage.send(&FromStage::InputComplete);
        if !stage.may_proceed().await {
            return Ok(false);
        }
        file.commit(stage.fsync).await?;
        Ok::<_, io::Error>(true)
    };
    let created = tokio::select! {
        created = creating => created,
        () = stage.context.cause.failed() => Ok(false),
    };
    match &created {
        Ok(true) => stage.send(&FromStage::Ended(Status::Exited(0))),
        Ok(false) => {}
        Err(error) => stage
            .context
            .fail_local(&format!("cannot write {}: {error}", path.display())),
    }
    matches!(created, Ok(true))
}

/// Writes the input to the file. Returns true if the file is committed.
async fn store(stage: StageContext, mut edge: ConnectedEdge, path: PathBuf, append: bool) -> bool {
    let stored = match open(&edge, &path, append).await {
        Ok(file) => store_into(&stage, &mut edge, file).await,
        Err(end) => Err(("cannot open", end, String::new())),
    };
    let is_stored = stored.is_ok();
    match stored {
        Ok(()) => {
            stage.send(&FromStage::Ended(Status::Exited(0)));
            // This fails only if the peer is gone, and all its bytes have arrived.
            let _ = edge.stream.confirm();
        }
        Err((what, end, before)) => tell(&stage, &edge, &path, what, end, &before),
    }
    edge.close().await;
    is_stored
}

async fn open(edge: &ConnectedEdge, path: &Path, append: bool) -> Result<OutputFile, EarlyEnd> {
    let opened = edge.until(OutputFile::open(path, append)).await?;
    opened.map_err(|error| EarlyEnd::Local(error, 0))
}

/// Writes the input to the opened file and commits it. An error has the step that failed, and the earlier state of the
/// file if the failure leaves it changed.
async fn store_into(
    stage: &StageContext,
    edge: &mut ConnectedEdge,
    mut file: OutputFile,
) -> Result<(), (&'static str, EarlyEnd, String)> {
    let before = file.before();
    let failed = |what| move |end| (what, end, before.clone());
    let drained = edge.drain(file.sink()).await;
    drained.map_err(failed.clone()("cannot write"))?;
    stage.send(&FromStage::InputComplete);
    let proceeding = edge.until(stage.proceed.cancelled()).await;
    proceeding.map_err(failed.clone()("cannot write"))?;
    let committed = file.commit(stage.fsync).await;
    committed.map_err(|error| failed("cannot finish")(EarlyEnd::Local(error, 0)))
}

fn tell(
    stage: &StageContext,
    edge: &ConnectedEdge,
    path: &Path,
    what: &str,
    end: EarlyEnd,
    before: &str,
) {
    let path = path.display();
    match end {
        EarlyEnd::Local(error, 0) => {
            return edge.fail_local(format!("{what} {path}: {error}{before}"));
        }
        EarlyEnd::Local(error, offset) => {
            return edge.fail_local(format!("{what} {path} at byte {offset}: {error}{before}"));
        }
        EarlyEnd::Stream(error) => edge.broken(error),
        EarlyEnd::Stopped | EarlyEnd::Elsewhere => {}
    }
    if let Some(before) = before.strip_prefix("; it") {
        stage
            .context
            .outbox
            .send(FromAgent::Warning(format!("{path}{before}")));
    }
}

/// Sends an empty output after the file is committed.
async fn send_nothing(mut edge: ConnectedEdge, committed: CancellationToken) {
    let sent = match edge.until(committed.cancelled()).await {
        Ok(()) => edge.finish().await,
        Err(end) => Err(end),
    };
    match sent {
        Err(EarlyEnd::Stopped) => edge.cause.output_stopped.set(),
        Err(EarlyEnd::Stream(error)) => edge.broken(error),
        Ok(()) | Err(EarlyEnd::Local(..) | EarlyEnd::Elsewhere) => {}
    }
    edge.close().await;
}

/// A file that is being appended to.
pub(super) struct Append {
    sink: Sink,
    /// The length of the file before it was opened; none if it is not a regular file.
    length: Option<u64>,
}

impl Append {
    /// Opens the file, and creates it if it is missing. For a FIFO, waits until it has a reader.
    ///
    /// # Errors
    ///
    /// Those of open(2).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave an empty file behind.
    pub(super) async fn open(path: &Path) -> io::Result<Self> {
        let file = File::from(open_in_place(path, OFlags::APPEND | OFlags::CREATE).await?);
        let metadata = file.metadata()?;
        let length = metadata.is_file().then_some(metadata.len());
        let sink = Sink::new(file.into(), path.display().to_string())?;
        Ok(Self { sink, length })
    }

    pub(super) fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    /// Returns the length of the file before it was opened, in words that follow a failure. Returns an empty text if
    /// it is not a regular file.
    pub(super) fn before(&self) -> String {
        let before = |length| {
            format!("; it had {length} bytes before, and the bytes after those are incomplete")
        };
        self.length.map(before).unwrap_or_default()
    }

    /// Closes the file, after an fsync if requested.
    ///
    /// # Errors
    ///
    /// Those of fsync(2) and close(2).
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: after the future is dropped the close goes on, and its result is lost.
    pub(super) async fn commit(self, fsync: bool) -> io::Result<()> {
        self.sink.close(fsync).await
    }
}

/// An output file while it is written.
pub(super) enum OutputFile {
    /// The file of `>`: it gets its name at the commit.
    Target(OutputTarget),
    /// The file of `>>`: it is written in place, after its end.
    Append(Append),
}

impl OutputFile {
    /// Opens the file: for `>>` if `append` is true, else for `>`.
    ///
    /// # Errors
    ///
    /// Those of open(2), and that of [`refuse_own_descriptor`].
    ///
    /// # Cancel safety
    ///
    /// That of [`OutputTarget::create`]. For `>>`, dropping the future may leave an empty file behind.
    pub(super) async fn open(path: &Path, append: bool) -> io::Result<Self> {
        refuse_own_descriptor(path)?;
        if append {
            Append::open(path).await.map(Self::Append)
        } else {
            OutputTarget::create(path).await.map(Self::Target)
        }
    }

    pub(super) fn sink(&mut self) -> &mut Sink {
        match self {
            Self::Target(target) => target.sink(),
            Self::Append(append) => append.sink(),
        }
    }

    /// Returns the state that a failure leaves the file in, in words that follow the reason. Returns an empty text if
    /// the old file is then unchanged.
    pub(super) fn before(&self) -> String {
        match self {
            Self::Target(target) => target.left(),
            Self::Append(append) => append.before(),
        }
    }

    /// Closes the file, and gives it its name.
    ///
    /// # Errors
    ///
    /// Those of [`OutputTarget::commit`].
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: after the future is dropped the commit goes on, and its result is lost.
    pub(super) async fn commit(self, fsync: bool) -> io::Result<()> {
        match self {
            Self::Target(target) => target.commit(fsync).await,
            Self::Append(append) => append.commit(fsync).await,
        }
    }
}
