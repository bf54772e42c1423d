//! A pipeline, as the supervisor runs it: one agent for each stage, and the stages that may commit or open their file.
//! Pure, no I/O.

use super::{
    Action, Notice, RunOutcome, SupervisedWork,
    edge_setup::{EdgeSetup, Node},
};
use crate::{
    fd::EntryIdentity,
    options::FlowOptions,
    ssh::{
        outcome::{PipelineOutcome, SIGPIPE_STATUS, Site, StageOutcome, describe, shell_status},
        plan::{Plan, StageHost},
        protocol::{EdgeId, EdgeOrder, FaultKind, Payload, PayloadError, ToAgent, Work, WorkFault},
        stage::{FromStage, StageOrder, StageProgress, StageReport, StageWork, Status, ToStage},
    },
};

#[cfg(any(test, fuzzing))]
pub(crate) type PipelineMachine = super::machine::SupervisorMachine<PipelineWork>;

/// A pipeline: its plan, and what its stages have reported.
pub(crate) struct PipelineWork {
    plan: Plan,
    options: PipelineOptions,
    own_files: OwnFiles,
    stages: Vec<StageState>,
    /// The file that is read and written at once, if there is one: why the pipeline does not begin.
    loop_found: Option<(Site, String)>,
}

/// The regular files that the controller's own stdin and stdout are.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OwnFiles {
    pub(crate) input: Option<EntryIdentity>,
    pub(crate) output: Option<EntryIdentity>,
}

/// What a user has chosen for all stages of a pipeline.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PipelineOptions {
    /// Whether files are fsynced before they are committed.
    pub(crate) fsync: bool,
    /// What limits and holds the bytes of each edge.
    pub(crate) flow: FlowOptions,
    /// Whether a user watches the progress.
    pub(crate) is_watched: bool,
}

/// What a stage has reported so far.
#[derive(Debug, Default)]
pub(crate) struct StageState {
    /// How its command, or its file, has ended.
    pub(crate) ended: Option<Status>,
    /// How far it is.
    pub(crate) progress: StageProgress,
    pub(crate) reports: u64,
    report: Option<StageReport>,
    turn: ProceedState,
    /// The file that the stage reads or writes, and true if it writes it.
    file: Option<(EntryIdentity, bool)>,
}

impl StageState {
    /// Returns true if the stage has nothing left to do but to wait for the earlier stages.
    pub(crate) fn waits_for_stages(&self) -> bool {
        self.turn == ProceedState::Waits
    }
}

/// Whether a stage waits for the earlier stages before it commits or opens its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ProceedState {
    /// The stage has not reported that its input is complete.
    #[default]
    NotYet,
    Waits,
    /// The stage was told to proceed, or to end.
    Answered,
}

impl PipelineWork {
    /// Returns a pipeline before its first message.
    pub(crate) fn new(plan: Plan, options: PipelineOptions, own_files: OwnFiles) -> Self {
        Self {
            stages: plan.stages.iter().map(|_| StageState::default()).collect(),
            own_files: OwnFiles {
                input: own_files.input.filter(|_| plan.has_input),
                ..own_files
            },
            plan,
            options,
            loop_found: None,
        }
    }

    /// Looks for a file that one stage reads while it or a later one writes it: the pipeline would read its own
    /// output, or empty what it reads.
    fn find_loop(&self) -> Option<(Site, String)> {
        let of_stages = self.stages.iter().enumerate().filter_map(|(index, stage)| {
            let (file, is_written) = stage.file?;
            Some((file, is_written, Site::Agent(index)))
        });
        let input = self.own_files.input.map(|file| (file, false, Site::Input));
        let output = self.own_files.output.map(|file| (file, true, Site::Output));
        let mut read = Vec::new();
        for (file, is_written, site) in input.into_iter().chain(of_stages).chain(output) {
            if !is_written {
                read.push((file, site));
            } else if let Some((_, reader)) = read.iter().find(|(other, _)| *other == file) {
                return Some((site, self.loop_text(*reader, site)));
            }
        }
        None
    }

    fn loop_text(&self, reader: Site, writer: Site) -> String {
        let path = |stage: usize| match &self.plan.stages[stage].work {
            StageWork::Read(path) | StageWork::Write { path, .. } => String::from_utf8_lossy(path),
            _ => "it".into(),
        };
        let program = self.plan.program();
        let what = match writer {
            Site::Agent(stage) => path(stage).into_owned(),
            _ => format!("the file of the standard output of {program}"),
        };
        let reads = match reader {
            Site::Agent(stage) => format!("{} reads, as {}", self.plan.site(stage), path(stage)),
            _ => format!("{program} reads as its standard input"),
        };
        format!(
            "{what} is the file that {reads}: it would change while it is read, so nothing was done; write to another file"
        )
    }

    /// Returns the largest number of bytes that any stage has reported so far.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = self.stages.iter().map(|stage| stage.progress.bytes());
        bytes.max().unwrap_or(0)
    }

    /// Returns the bytes of the files that the first stage sends, if they are known.
    pub(crate) fn file_bytes(&self) -> Option<u64> {
        self.stages.first()?.progress.file_bytes
    }

    /// Returns what the stages have reported so far, in order.
    pub(crate) fn stages(&self) -> &[StageState] {
        &self.stages
    }
}

impl SupervisedWork for PipelineWork {
    type Outcome = PipelineOutcome;

    const NOUN: &'static str = "pipeline";

    fn places(&self) -> Vec<&StageHost> {
        self.plan.stages.iter().map(|stage| &stage.place).collect()
    }

    fn edges(&self) -> Vec<Option<EdgeSetup>> {
        let count = self.plan.stages.len();
        let setup = |edge: usize| {
            let from = edge.checked_sub(1).map_or(Node::Controller, Node::Agent);
            let to = if edge < count {
                Node::Agent(edge)
            } else {
                Node::Controller
            };
            (edge > 0 || self.plan.has_input).then(|| EdgeSetup::new(from, to))
        };
        (0..=count).map(setup).collect()
    }

    fn site(&self, agent: usize) -> String {
        self.plan.site(agent)
    }

    fn program(&self) -> &'static str {
        self.plan.program()
    }

    fn order(&self, agent: usize, edges: &[EdgeOrder]) -> Result<Work, PayloadError> {
        let id = |index| {
            let wanted = EdgeId::of_index(index);
            edges.iter().map(|edge| edge.id).find(|id| *id == wanted)
        };
        let order = StageOrder {
            work: self.plan.stages[agent].work.clone(),
            input: id(agent),
            output: id(agent + 1),
            fsync: self.options.fsync,
            output_file: self.own_files.output,
            flow: self.options.flow,
            is_watched: self.options.is_watched,
        };
        Payload::encode(&order).map(Work::Stage)
    }

    fn handle(&mut self, agent: usize, message: &Payload) -> Result<Vec<Action>, PayloadError> {
        let stage = &mut self.stages[agent];
        match message.decode()? {
            FromStage::InputComplete => {
                if stage.turn == ProceedState::NotYet {
                    stage.turn = ProceedState::Waits;
                }
            }
            FromStage::Ended(status) => stage.ended = Some(status),
            FromStage::Progress(progress) => {
                stage.progress = progress;
                stage.reports += 1;
            }
            FromStage::Opens { file, is_written } => {
                stage.file = Some((file, is_written));
                self.loop_found = self.find_loop();
            }
            FromStage::Unreadable { path, why } => {
                let text = format!("{}: {why}", String::from_utf8_lossy(&path));
                return Ok(vec![Action::Notify(Notice::Unreadable(agent, text))]);
            }
        }
        Ok(Vec::new())
    }

    fn handle_report(
        &mut self,
        agent: usize,
        result: Option<&Payload>,
        fault: Option<&WorkFault>,
    ) -> Result<(), PayloadError> {
        let report = result.map(Payload::decode::<StageReport>).transpose();
        let (report, decoded) = match report {
            Ok(report) => (report.unwrap_or_default(), Ok(())),
            Err(error) => (StageReport::default(), Err(error)),
        };
        let stage = &mut self.stages[agent];
        // After a fault the status may be that of the agent's own SIGTERM. A status that was reported before the
        // fault is the command's own.
        if fault.is_none() {
            stage.ended = stage.ended.or(report.status);
        }
        stage.progress = StageProgress {
            bytes_in: report.bytes_in,
            bytes_out: report.bytes_out,
            blocked_on_input_us: report.blocked_on_input_us,
            blocked_on_output_us: report.blocked_on_output_us,
            ..stage.progress
        };
        stage.report = Some(report);
        decoded
    }

    fn is_infrastructure(&self, _: usize, fault: &WorkFault, is_connecting: bool) -> bool {
        // Files are opened after all edges are connected: a local fault before that is a failure to connect.
        is_connecting && fault.kind <= FaultKind::Edge
    }

    fn requests(&mut self) -> Vec<Action> {
        self.answers()
    }

    fn refusal(&mut self) -> Option<(Site, String)> {
        self.loop_found.take()
    }

    fn waits_for_sessions(&self) -> bool {
        // As with ssh: what a command has left may still write to stderr.
        self.plan.is_ssh()
    }

    fn outcome(&self, run: RunOutcome) -> PipelineOutcome {
        let stages = self.stages.iter().zip(&self.plan.stages).zip(run.faults);
        let stages = stages.map(|((stage, planned), fault)| StageOutcome {
            ended: stage.ended,
            report: stage.report.clone(),
            fault,
            is_file: planned.is_file(),
        });
        PipelineOutcome {
            stages: stages.collect(),
            causes: run.causes,
            reader_left: run.reader_left,
            signal: run.signal,
        }
    }
}

impl PipelineWork {
    /// Returns the answers to the stages that wait for the earlier stages and whose results are known: Proceed or Kill.
    fn answers(&mut self) -> Vec<Action> {
        let mut answers = Vec::new();
        for stage in 0..self.stages.len() {
            if self.stages[stage].turn != ProceedState::Waits {
                continue;
            }
            let message = match self.before(stage) {
                None => continue,
                Some(Ok(())) => Payload::encode(&ToStage::Proceed)
                    .ok()
                    .map(ToAgent::Application),
                Some(Err(reason)) => Some(ToAgent::Kill { reason }),
            };
            self.stages[stage].turn = ProceedState::Answered;
            answers.extend(message.map(|message| Action::Send(stage, message)));
        }
        answers
    }

    /// Returns `Ok` if every earlier stage has succeeded, and the failure if one has not. Returns none while the
    /// result of one is still unknown.
    fn before(&self, stage: usize) -> Option<Result<(), String>> {
        let mut successor_is_fine = true;
        let mut failure = None;
        for index in (0..stage).rev() {
            let StageState { ended, report, .. } = &self.stages[index];
            let status = (*ended)?;
            let is_fine = match shell_status(status) {
                0 => true,
                SIGPIPE_STATUS => report.as_ref()?.output_stopped && successor_is_fine,
                _ => false,
            };
            if !is_fine {
                let site = self.plan.site(index);
                failure = Some(format!("{site} {}", describe(status)));
            }
            successor_is_fine = is_fine;
        }
        Some(failure.map_or(Ok(()), Err))
    }
}
