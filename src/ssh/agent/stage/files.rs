//! Stages of files: those that read, `< path` and the files of rdcat, and those that write, `> path`, all of it or
//! nothing, and `>> path`, in place after the end of the file.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;
use tokio_util::sync::CancellationToken;

use super::{StageContext, StageEdges};
use crate::{
    fd::{EntryIdentity, OutputTarget, Sink, Source, is_emptied, open_in_place},
    ssh::{
        agent::edges::{ConnectedEdge, EarlyEnd},
        protocol::FromAgent,
        stage::{FromStage, StageWork, Status, TargetFile},
    },
};

/// Returns the regular file that a stage will read, or write before all of its input has arrived, and true if it writes
/// it; none if there is no such file yet.
pub(super) fn opened(work: &StageWork) -> Option<(EntryIdentity, bool)> {
    let (path, is_written) = match work {
        StageWork::Read(path) => (path, false),
        StageWork::Write { path, .. } => (path, true),
        StageWork::Command(_)
        | StageWork::CommandWithoutStdin(_)
        | StageWork::SshCommand(_)
        | StageWork::Files(_) => {
            return None;
        }
    };
    let path = resolve(path.clone());
    if matches!(work, StageWork::Write { append: false, .. }) && !is_emptied(&path) {
        return None;
    }
    Some((EntryIdentity::of_file(&path)?, is_written))
}

/// Reads the input to its end, if there is one, waits until all earlier stages have succeeded, and sends the file.
pub(super) async fn read(stage: &StageContext, path: PathBuf, ends: StageEdges) -> Option<Status> {
    let StageEdges { input, output } = ends;
    let start = CancellationToken::new();
    let draining = async {
        if let Some((thread, edge)) = input {
            thread.run(discard(edge)).await;
            if stage.context.first_fault.has_failed() {
                return;
            }
            stage.send(&FromStage::InputComplete);
            if !stage.may_proceed().await {
                return;
            }
        }
        start.cancel();
    };
    let sending = async {
        let (thread, edge) = output?;
        let sending = send(stage.clone(), edge, path, start.clone());
        Some(thread.run(sending).await)
    };
    tokio::join!(draining, sending).1
}

/// Reads the input to its end, discards it, and confirms it.
async fn discard(mut edge: ConnectedEdge) {
    match edge.discard().await {
        Ok(()) => {
            let _ = edge.stream.confirm();
        }
        Err(EarlyEnd::Stream(error)) => edge.broken(error),
        Err(EarlyEnd::Local(error, _) | EarlyEnd::Buffer(error)) => {
            edge.fail_local(error.to_string());
        }
        Err(EarlyEnd::Stopped | EarlyEnd::Elsewhere) => {}
    }
    edge.close().await;
}

/// Sends the file after `start` is cancelled.
async fn send(
    stage: StageContext,
    mut edge: ConnectedEdge,
    path: PathBuf,
    start: CancellationToken,
) -> Status {
    let sent = send_from(&stage, &mut edge, &path, &start).await;
    let sent = sent.map(|()| Status::Exited(0));
    conclude(&stage, edge, &path, sent).await
}

/// Ends the output of a stage that has sent files: with a FIN if it succeeded, else with the failure. `path` is the
/// last file that it sent.
pub(super) async fn conclude(
    stage: &StageContext,
    mut edge: ConnectedEdge,
    path: &Path,
    sent: Result<Status, EarlyEnd>,
) -> Status {
    let mut status = Status::Exited(0);
    match sent {
        Ok(sent) => {
            status = sent;
            stage.send(&FromStage::Ended(status));
        }
        Err(EarlyEnd::Stopped) => {
            edge.first_fault.output_stopped.set();
            stage.send(&FromStage::Ended(status));
        }
        Err(end) => {
            status = Status::Exited(1);
            report_unread(&edge, path, end);
        }
    }
    if sent_all(&edge) {
        match edge.finish().await {
            Ok(()) | Err(EarlyEnd::Elsewhere) => {}
            Err(EarlyEnd::Stopped) => edge.first_fault.output_stopped.set(),
            Err(end) => report_unread(&edge, path, end),
        }
    }
    edge.close().await;
    status
}

fn sent_all(edge: &ConnectedEdge) -> bool {
    !edge.first_fault.has_failed() && !edge.first_fault.output_stopped.is_set()
}

async fn send_from(
    stage: &StageContext,
    edge: &mut ConnectedEdge,
    path: &Path,
    start: &CancellationToken,
) -> Result<(), EarlyEnd> {
    edge.until(start.cancelled()).await?;
    let opened = refuse_own_descriptor(path).and_then(|()| Source::open(path));
    let mut source = opened.map_err(|error| EarlyEnd::Local(error, 0))?;
    if let Some(bytes) = source.bytes_left() {
        let _ = stage.file_bytes.set(bytes);
    }
    edge.fill(&mut source, stage.flow).await
}

/// Returns true if a path is not there, and looks like one that a shell expands.
fn is_pattern(error: &io::Error, path: &str) -> bool {
    error.kind() == io::ErrorKind::NotFound && path.contains(['*', '?'])
}

fn report_unread(edge: &ConnectedEdge, path: &Path, end: EarlyEnd) {
    let path = path.display();
    match end {
        EarlyEnd::Stream(error) => edge.broken(error),
        EarlyEnd::Buffer(error) => edge.fail_local(error.to_string()),
        EarlyEnd::Local(error, 0) => {
            let advice = if is_pattern(&error, &path.to_string()) {
                "; no shell expands a path: give a command, as in HOST:'cat *.log'"
            } else {
                ""
            };
            edge.fail_local(format!("cannot read {path}: {error}{advice}"));
        }
        EarlyEnd::Local(error, offset) => {
            edge.fail_local(format!("cannot read {path} at byte {offset}: {error}"));
        }
        EarlyEnd::Stopped | EarlyEnd::Elsewhere => {}
    }
}

/// Sends every file that can be opened. The status is 1 if a file could not be opened, else 0.
pub(super) async fn run_files(
    stage: &StageContext,
    paths: Vec<Vec<u8>>,
    ends: StageEdges,
) -> Option<Status> {
    let (thread, edge) = ends.output?;
    Some(thread.run(send_files(stage.clone(), edge, paths)).await)
}

async fn send_files(stage: StageContext, mut edge: ConnectedEdge, paths: Vec<Vec<u8>>) -> Status {
    let mut status = Status::Exited(0);
    let mut at = PathBuf::new();
    if let (true, Some(bytes)) = (stage.is_watched, bytes_of(&paths)) {
        let _ = stage.file_bytes.set(bytes);
    }
    let sending = async {
        for typed in paths {
            at = resolve(typed.clone());
            if let Err(error) = send_one(&stage, &mut edge, &at).await? {
                status = Status::Exited(1);
                let mut why = plain(&error);
                if is_pattern(&error, &at.to_string_lossy()) {
                    why += "; no shell expands a path: rdpipe HOST:'cat *.log' uses one";
                }
                stage.context.outbox.room().await;
                stage.send(&FromStage::Unreadable { path: typed, why });
            }
        }
        Ok(status)
    };
    let sent = sending.await;
    conclude(&stage, edge, &at, sent).await
}

/// Returns the bytes of all files together; none if one is no regular file. Missing ones have none.
fn bytes_of(paths: &[Vec<u8>]) -> Option<u64> {
    let bytes = |path: &Vec<u8>| match fs::metadata(resolve(path.clone())) {
        Ok(metadata) => metadata.is_file().then_some(metadata.len()),
        Err(_) => Some(0),
    };
    paths.iter().map(bytes).sum()
}

/// Sends one file. The inner error is that of a file none of whose bytes were sent: the next file may follow. A file
/// that fails after its first byte ends the output, because the next file would look like the rest of this one.
async fn send_one(
    stage: &StageContext,
    edge: &mut ConnectedEdge,
    path: &Path,
) -> Result<io::Result<()>, EarlyEnd> {
    let output_file = stage.output_file;
    if output_file.is_some() && EntryIdentity::of_file(path) == output_file {
        return Ok(Err(io::Error::other(
            "the output goes to this file, which would grow while it is read",
        )));
    }
    let opened = refuse_own_descriptor(path).and_then(|()| Source::open(path));
    let mut source = match opened {
        Ok(source) => source,
        Err(error) => return Ok(Err(error)),
    };
    match edge.fill(&mut source, stage.flow).await {
        Err(EarlyEnd::Local(error, 0)) => Ok(Err(error)),
        filled => filled.map(Ok),
    }
}

/// Returns the text of an error as cat shows it: without the number of the error.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((name, _)) => name.to_owned(),
        None => text,
    }
}

/// Writes the input to the file, commits the file when all earlier stages have succeeded, and then sends an empty
/// output.
pub(super) async fn write(
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
        stage.set_file(file.uncommitted());
        stage.send(&FromStage::InputComplete);
        if !stage.may_proceed().await {
            return Ok(false);
        }
        stage.set_file(TargetFile::New);
        file.commit(stage.fsync).await?;
        Ok::<_, io::Error>(true)
    };
    let created = tokio::select! {
        created = creating => created,
        () = stage.context.first_fault.failed() => Ok(false),
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
        Err((what, end, before)) => report_unwritten(&stage, &edge, &path, what, end, &before),
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
    stage.set_file(file.uncommitted());
    let failed = |what| move |end| (what, end, before.clone());
    let drained = edge.drain(file.sink(), stage.flow).await;
    drained.map_err(failed.clone()("cannot write"))?;
    stage.send(&FromStage::InputComplete);
    let proceeding = edge.until(stage.proceed.cancelled()).await;
    proceeding.map_err(failed.clone()("cannot write"))?;
    stage.set_file(TargetFile::New);
    let committed = file.commit(stage.fsync).await;
    committed.map_err(|error| failed("cannot finish")(EarlyEnd::Local(error, 0)))
}

fn report_unwritten(
    stage: &StageContext,
    edge: &ConnectedEdge,
    path: &Path,
    what: &str,
    end: EarlyEnd,
    before: &str,
) {
    let path = path.display();
    match end {
        EarlyEnd::Buffer(error) => return edge.fail_local(format!("{error}{before}")),
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
        Err(EarlyEnd::Stopped) => edge.first_fault.output_stopped.set(),
        Err(EarlyEnd::Stream(error)) => edge.broken(error),
        Ok(()) | Err(EarlyEnd::Local(..) | EarlyEnd::Buffer(_) | EarlyEnd::Elsewhere) => {}
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
    /// Fails as open(2) and [`refuse_own_descriptor`] do.
    /// Cancelling is as with [`OutputTarget::create`]; for `>>`, it may leave an empty file behind.
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

    /// Returns what is under the name of the file before the commit.
    fn uncommitted(&self) -> TargetFile {
        match self {
            Self::Target(target) => match target.replaces() {
                Some(true) => TargetFile::Old,
                Some(false) => TargetFile::Missing,
                None => TargetFile::New,
            },
            Self::Append(_) => TargetFile::New,
        }
    }

    /// Closes the file, and gives it its name.
    /// Fails as [`OutputTarget::commit`] does.
    /// Not cancel safe: after the future is dropped the commit goes on, and its result is lost.
    pub(super) async fn commit(self, fsync: bool) -> io::Result<()> {
        match self {
            Self::Target(target) => target.commit(fsync).await,
            Self::Append(append) => append.commit(fsync).await,
        }
    }
}

/// Returns the path with a leading `~/` replaced by the home directory. No shell handles the path, so the agent
/// expands it.
pub(crate) fn resolve(path: Vec<u8>) -> PathBuf {
    in_home(path, env::var_os("HOME"))
}

fn in_home(path: Vec<u8>, home: Option<OsString>) -> PathBuf {
    match (path.strip_prefix(b"~/"), home) {
        (Some(rest), Some(home)) => Path::new(&home).join(OsString::from_vec(rest.to_vec())),
        _ => OsString::from_vec(path).into(),
    }
}

/// The number of links after which the kernel gives up as well (`path_resolution(7)`).
const MOST_LINKS: usize = 40;

/// Fails if `path` leads to a descriptor of this agent, as `/dev/stdout` does. The agent's standard streams are its
/// session with the controller and not the pipeline's, so bytes that are written there would be lost. A descriptor that
/// the agent has inherited, as one of the shell's `<(...)`, is allowed.
pub(super) fn refuse_own_descriptor(path: &Path) -> io::Result<()> {
    match own_descriptor(path) {
        Some(number) if number <= 2 || !is_inherited(number) => Err(io::Error::other(
            "it is a descriptor of the agent, not of rdpipe: leave this stage out, and the pipeline uses the stdin and stdout of rdpipe",
        )),
        _ => Ok(()),
    }
}

/// Returns the number of the descriptor of this process to which a path leads through links.
fn own_descriptor(path: &Path) -> Option<u32> {
    let process = fs::canonicalize("/proc/self").ok()?;
    let mut path = std::path::absolute(path).ok()?;
    for _ in 0..MOST_LINKS {
        let folder = fs::canonicalize(path.parent()?).ok()?;
        if folder.starts_with(&process) && folder.ends_with("fd") {
            return path.file_name()?.to_str()?.parse().ok();
        }
        path = folder.join(fs::read_link(&path).ok()?);
    }
    None
}

/// Returns true if a descriptor of this process is one that programs pass on: no descriptor that Rust or tokio opened.
fn is_inherited(number: u32) -> bool {
    let Ok(facts) = fs::read_to_string(format!("/proc/self/fdinfo/{number}")) else {
        return false;
    };
    let flags = facts.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & OFlags::CLOEXEC.bits() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_leads_to_an_own_descriptor_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink("/dev/stdout", &link).unwrap();
        let opened = fs::File::create(scratch.path().join("file")).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&opened);
        let own = format!("/proc/self/fd/{number}");
        for path in [
            "/dev/stdout",
            "/dev/stdin",
            "/dev/fd/2",
            &own,
            link.to_str().unwrap(),
        ] {
            let refused = refuse_own_descriptor(Path::new(path));
            assert!(refused.is_err(), "{path}");
        }
        let inherited = rustix::io::dup(&opened).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&inherited);
        let passed_on = format!("/dev/fd/{number}");
        for path in [
            "/dev/null",
            "/proc/self/comm",
            "missing",
            "file",
            &passed_on,
        ] {
            assert!(refuse_own_descriptor(Path::new(path)).is_ok(), "{path}");
        }
    }

    #[test]
    fn only_a_leading_tilde_and_slash_means_the_home_directory() {
        let home = Some(OsString::from("/home/u"));
        let path = |text: &str| in_home(text.as_bytes().to_vec(), home.clone());
        assert_eq!(path("~/a b"), Path::new("/home/u/a b"));
        assert_eq!(path("~a"), Path::new("~a"));
        assert_eq!(path("a/~/b"), Path::new("a/~/b"));
        assert_eq!(in_home(b"~/a".to_vec(), None), Path::new("~/a"));
    }
}
